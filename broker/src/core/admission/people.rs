//! What each user has had of late, by weight, and whose turn it is among those who wait.
//!
//! Turns are those of start-time fair queueing (Goyal, Vin and Cheng 1996; their start tag is our `turn`, their finish tag `after`, their virtual time the level of
//! those who wait): a job's turn comes when those of the user's earlier ones are through, each counted with what it takes over the user's weight. So the
//! first job of a user is level with the foremost of all others, however many those bring.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::need::User;
use crate::protocol::Ns;

/// All users.
#[derive(Debug, Clone, Default)]
pub struct People {
    had: BTreeMap<User, Had>,
}

#[derive(Debug, Clone, Copy)]
struct Had {
    weight: u32,
    /// Byte-seconds of device memory, those of a half-life ago counted half.
    service: f64,
    /// The turn of the user's next job.
    after: f64,
}

impl Default for Had {
    fn default() -> Had {
        Had {
            weight: 1,
            service: 0.0,
            after: 0.0,
        }
    }
}

impl People {
    /// A user's weight.
    pub fn weigh(&mut self, user: User, weight: u32) {
        self.had.entry(user).or_default().weight = weight.max(1);
    }

    /// The turn of a user's new job that takes so much (any measure, the same for all). `level`: the least turn of those who wait, if anybody does.
    pub fn turn(&mut self, user: User, level: Option<f64>, takes: f64) -> f64 {
        // With nobody waiting everybody is level: what was had in quiet times is held against nobody.
        let level = level.unwrap_or_else(|| self.had.values().map(|had| had.after).fold(0.0, f64::max));
        let had = self.had.entry(user).or_default();
        let turn = had.after.max(level);
        had.after = turn + takes / f64::from(had.weight);
        turn
    }

    /// Time went by in which these shares were held.
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

    /// What a user had of late for his weight.
    pub fn had(&self, user: User) -> f64 {
        self.had
            .get(&user)
            .map_or(0.0, |had| had.service / f64::from(had.weight))
    }
}
