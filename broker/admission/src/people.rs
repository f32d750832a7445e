//! Fair share: recent usage of each user, by weight.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::need::User;
use weft_protocol::Ns;

/// All users.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct People {
    had: BTreeMap<User, Had>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Had {
    weight: u32,
    /// Byte-seconds of device memory, halved every half-life.
    service: f64,
    /// Recent time for which the user's jobs that wait for more kept others out, ns.
    #[serde(default)]
    guarded: f64,
}

impl Default for Had {
    fn default() -> Had {
        Had {
            weight: 1,
            service: 0.0,
            guarded: 0.0,
        }
    }
}

impl People {
    /// Sets a user's weight, at least 1.
    pub fn weigh(&mut self, user: User, weight: u32) {
        self.had.entry(user).or_default().weight = weight.max(1);
    }

    /// A user's weight; the default is 1.
    pub fn weight(&self, user: User) -> u32 {
        self.had.get(&user).map_or(1, |had| had.weight)
    }

    /// Charges `time` ns with these shares held.
    pub fn pass(&mut self, time: Ns, half_life: Ns, shares: impl Iterator<Item = (User, u64)>) {
        if time == 0 {
            return;
        }
        let seconds = time as f64 / 1e9;
        let kept = 0.5f64.powf(time as f64 / half_life.max(1) as f64);
        for had in self.had.values_mut() {
            had.service *= kept;
        }
        for (user, bytes) in shares {
            self.had.entry(user).or_default().service += bytes as f64 * seconds;
        }
    }

    /// Charges `time` ns to `users`, whose jobs kept others out. Other users' time is forgotten at
    /// the rate `each / within`.
    pub fn guard(&mut self, time: Ns, (each, within): (Ns, Ns), users: &[User]) {
        let forgotten = time as f64 * each as f64 / within.max(1) as f64;
        for (_, had) in self.had.iter_mut().filter(|(user, _)| !users.contains(user)) {
            had.guarded = (had.guarded - forgotten).max(0.0);
        }
        for user in users {
            self.had.entry(*user).or_default().guarded += time as f64;
        }
    }

    /// How much longer a user's jobs may keep others out, of `each` ns.
    pub fn may_guard(&self, user: User, each: Ns) -> Ns {
        let guarded = self.had.get(&user).map_or(0.0, |had| had.guarded);
        each.saturating_sub(guarded as Ns)
    }

    /// A user's recent usage divided by the weight, byte-seconds.
    pub fn had(&self, user: User) -> f64 {
        self.had
            .get(&user)
            .map_or(0.0, |had| had.service / f64::from(had.weight))
    }
}
