// SPDX-License-Identifier: MIT OR Apache-2.0
//! Log lines caused by users' jobs, with a limit per user.
//!
//! The log has each client's own lines, its errors, its beginning and its end. A client can cause
//! thousands of such lines a second. They would fill the disk, or make the journal drop lines of
//! other users.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use log::Level;

/// Most lines of a user within [`SPELL`]: the jobs of an array may all start at once.
const LINES: u64 = 200;

/// Period after which a user's count of lines restarts.
const SPELL: Duration = Duration::from_secs(10);

/// The users with lines in their present period.
static USERS: Mutex<UserLines> = Mutex::new(UserLines(BTreeMap::new()));

/// Logs a line that a job of this user caused, unless the user has reached the limit.
pub fn line(uid: u32, level: Level, said: fmt::Arguments<'_>) {
    let now = Instant::now();
    let over = users().ended(now);
    over.iter().for_each(count);
    if users().takes(uid, now) {
        log::log!(level, "{said}");
    }
}

/// Logs the numbers of lines that were left out in periods that are over.
pub fn tend() {
    let over = users().ended(Instant::now());
    over.iter().for_each(count);
}

fn users() -> std::sync::MutexGuard<'static, UserLines> {
    USERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn count((uid, left_out): &(u32, u64)) {
    log::warn!("{left_out} lines of user {uid}'s jobs were left out within {SPELL:?}");
}

#[derive(Debug)]
struct UserLines(BTreeMap<u32, (Instant, u64)>);

impl UserLines {
    /// Counts a line of this user. Returns whether it is written.
    fn takes(&mut self, uid: u32, now: Instant) -> bool {
        let (_, lines) = self.0.entry(uid).or_insert((now, 0));
        *lines += 1;
        *lines <= LINES
    }

    /// Forgets periods that are over. Returns the users with lines left out, and their number.
    fn ended(&mut self, now: Instant) -> Vec<(u32, u64)> {
        let mut over = Vec::new();
        self.0.retain(|uid, (since, lines)| {
            let goes_on = now.saturating_duration_since(*since) < SPELL;
            if !goes_on && *lines > LINES {
                over.push((*uid, *lines - LINES));
            }
            goes_on
        });
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_so_many_lines_and_the_rest_is_counted() {
        let (mut users, begin) = (UserLines(BTreeMap::new()), Instant::now());
        let many = |users: &mut UserLines, at| (0..1_000).filter(|_| users.takes(7, at)).count() as u64;
        assert_eq!(many(&mut users, begin), LINES);
        assert_eq!(
            (many(&mut users, begin + SPELL / 2), users.ended(begin + SPELL / 2)),
            (0, Vec::new())
        );
        assert!(users.takes(8, begin + SPELL / 2), "another one has lines of his own");
        assert_eq!(users.ended(begin + SPELL), [(7, 2_000 - LINES)]);
        assert_eq!(many(&mut users, begin + SPELL), LINES);
        assert_eq!(
            users.ended(begin + SPELL + SPELL / 2),
            [],
            "nothing of the other was left out"
        );
    }
}
