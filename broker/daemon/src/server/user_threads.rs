// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that welcome clients and answer questions for the acceptor, a bounded number per user.
//!
//! Further work waits, so a slow or busy user delays only their own work.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::base::thread_priority::ThreadPriority;
use crate::server::Accounts;

/// Work of one kind.
pub struct UserThreads<W> {
    name: &'static str,
    accounts: Accounts,
    lines: Arc<Mutex<AllWork<W>>>,
}

type AllWork<W> = BTreeMap<u32, UserWork<W>>;

/// Work of one user.
struct UserWork<W> {
    busy: usize,
    waiting: VecDeque<W>,
}

/// Limits for one user.
#[derive(Debug, Clone, Copy)]
pub struct ThreadLimits {
    /// Threads at once.
    pub at_once: usize,
    /// Work that may wait for a thread.
    pub waiting: usize,
}

impl<W> Clone for UserThreads<W> {
    fn clone(&self) -> UserThreads<W> {
        UserThreads {
            name: self.name,
            accounts: self.accounts.clone(),
            lines: Arc::clone(&self.lines),
        }
    }
}

impl<W> std::fmt::Debug for UserThreads<W> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("UserThreads")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

fn lock<W>(lines: &Mutex<AllWork<W>>) -> MutexGuard<'_, AllWork<W>> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<W: Send + 'static> UserThreads<W> {
    /// Starts without work. `name` is the threads' name. Their priority is the caller's, or the
    /// last one for a user who causes much work.
    pub fn new(name: &'static str, accounts: Accounts) -> UserThreads<W> {
        UserThreads {
            name,
            accounts,
            lines: Arc::default(),
        }
    }

    /// Work under way or waiting.
    pub fn count(&self) -> usize {
        lock(&self.lines)
            .values()
            .map(|line| line.busy + line.waiting.len())
            .sum()
    }

    /// Work of one user under way or waiting.
    pub fn count_of(&self, uid: u32) -> usize {
        let lines = lock(&self.lines);
        lines.get(&uid).map_or(0, |line| line.busy + line.waiting.len())
    }

    /// Runs `does`, now or after the user's earlier work. If there is no room, the work is
    /// returned; if no thread can be started, it is dropped.
    pub fn take(&self, uid: u32, work: W, most: ThreadLimits, does: impl Fn(W) + Send + 'static) -> Result<(), W> {
        let mut lines = lock(&self.lines);
        let line = lines.entry(uid).or_insert_with(|| UserWork {
            busy: 0,
            waiting: VecDeque::new(),
        });
        if line.busy >= most.at_once {
            if line.waiting.len() >= most.waiting {
                return Err(work);
            }
            line.waiting.push_back(work);
            return Ok(());
        }
        line.busy += 1;
        drop(lines);
        let mut thread = UserThread {
            uid,
            lines: Arc::clone(&self.lines),
            over: false,
        };
        let accounts = self.accounts.clone();
        let priority = match accounts.is_high(uid) {
            true => ThreadPriority::Last,
            false => ThreadPriority::Usual,
        };
        let started = std::thread::Builder::new().name(self.name.into()).spawn(move || {
            priority.take();
            let mut next = Some(work);
            while let Some(work) = next {
                accounts.at_cost_of(uid, || does(work));
                next = thread.next();
            }
        });
        if let Err(error) = started {
            // The user's other threads take the waiting work.
            log::warn!("cannot start a thread for {}: {error}", self.name);
        }
        Ok(())
    }
}

/// One of a user's threads.
struct UserThread<W> {
    uid: u32,
    lines: Arc<Mutex<AllWork<W>>>,
    over: bool,
}

impl<W> UserThread<W> {
    /// The next work. `None` ends the thread under the same lock, so that later work starts
    /// another.
    fn next(&mut self) -> Option<W> {
        let mut lines = lock(&self.lines);
        let work = lines.get_mut(&self.uid).and_then(|line| line.waiting.pop_front());
        if work.is_none() {
            self.over = true;
            ends(&mut lines, self.uid);
        }
        work
    }
}

impl<W> Drop for UserThread<W> {
    fn drop(&mut self) {
        if !self.over {
            // The thread could not be started, or panicked.
            ends(&mut lock(&self.lines), self.uid);
        }
    }
}

fn ends<W>(lines: &mut AllWork<W>, uid: u32) {
    if let Some(line) = lines.get_mut(&uid) {
        line.busy -= 1;
        if line.busy == 0 {
            lines.remove(&uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);
    const LIMITS: ThreadLimits = ThreadLimits { at_once: 2, waiting: 3 };

    #[test]
    fn a_user_who_is_slow_waits_for_himself_alone() {
        let threads = UserThreads::<(u32, Sender<u32>)>::new("test", Accounts::default());
        let (done, ended) = channel();
        // User 7's work waits for a message.
        let (go, gate) = channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let slow = |number: u32| {
            let gate = Arc::clone(&gate);
            threads.take(7, (number, done.clone()), LIMITS, move |(number, done)| {
                let _ = gate.lock().expect("nobody panics").recv_timeout(PATIENCE);
                let _ = done.send(number);
            })
        };
        for number in 0..5 {
            assert!(slow(number).is_ok(), "{number}");
        }
        assert!(slow(5).is_err(), "no more of them wait");
        assert_eq!((threads.count(), threads.count_of(7), threads.count_of(8)), (5, 5, 0));
        let other = threads.take(8, (100, done.clone()), LIMITS, |(number, done)| {
            let _ = done.send(number);
        });
        assert!(other.is_ok());
        assert_eq!(ended.recv_timeout(PATIENCE), Ok(100));
        for _ in 0..5 {
            go.send(()).expect("they wait for it");
        }
        let mut all: Vec<u32> = (0..5).map(|_| ended.recv_timeout(PATIENCE).expect("done")).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4]);
        let begin = std::time::Instant::now();
        while threads.count() > 0 {
            assert!(begin.elapsed() < PATIENCE, "threads end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
