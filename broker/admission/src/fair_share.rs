// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fair share: each user's recent usage, by weight.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::need::User;
use weft_protocol::Ns;

/// All users.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct FairShare {
    #[serde(rename = "had")]
    users: BTreeMap<User, Usage>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Usage {
    weight: u32,
    /// Byte-seconds of device memory, halved every half-life.
    service: f64,
    /// Recent time in which the user's jobs that wait for more memory kept others out, ns.
    #[serde(default)]
    guarded: f64,
}

impl Default for Usage {
    fn default() -> Usage {
        Usage {
            weight: 1,
            service: 0.0,
            guarded: 0.0,
        }
    }
}

impl FairShare {
    /// Sets a user's weight, at least 1.
    pub fn set_weight(&mut self, user: User, weight: u32) {
        self.users.entry(user).or_default().weight = weight.max(1);
    }

    /// A user's weight; the default is 1.
    pub fn weight(&self, user: User) -> u32 {
        self.users.get(&user).map_or(1, |usage| usage.weight)
    }

    /// Charges users for `time` ns with these shares (bytes) held.
    pub fn charge(&mut self, time: Ns, half_life: Ns, shares: impl Iterator<Item = (User, u64)>) {
        if time == 0 {
            return;
        }
        let seconds = time as f64 / 1e9;
        let kept = 0.5f64.powf(time as f64 / half_life.max(1) as f64);
        for usage in self.users.values_mut() {
            usage.service *= kept;
        }
        for (user, bytes) in shares {
            self.users.entry(user).or_default().service += bytes as f64 * seconds;
        }
    }

    /// Charges `time` ns to `users`, whose jobs kept others out. Other users' time decays at the
    /// rate `each / within`.
    pub fn charge_guard(&mut self, time: Ns, (each, within): (Ns, Ns), users: &[User]) {
        let forgotten = time as f64 * each as f64 / within.max(1) as f64;
        for (_, usage) in self.users.iter_mut().filter(|(user, _)| !users.contains(user)) {
            usage.guarded = (usage.guarded - forgotten).max(0.0);
        }
        for user in users {
            self.users.entry(*user).or_default().guarded += time as f64;
        }
    }

    /// Time left, of `each` ns, in which a user's jobs may keep others out.
    pub fn guard_left(&self, user: User, each: Ns) -> Ns {
        let guarded = self.users.get(&user).map_or(0.0, |usage| usage.guarded);
        each.saturating_sub(guarded as Ns)
    }

    /// A user's recent usage / weight, byte-seconds.
    pub fn recent_usage(&self, user: User) -> f64 {
        self.users
            .get(&user)
            .map_or(0.0, |usage| usage.service / f64::from(usage.weight))
    }
}
