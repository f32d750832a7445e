// SPDX-License-Identifier: MIT OR Apache-2.0
//! An administrator's caps on one user's jobs and memory ([`super::under_caps`] applies them).
//!
//! A waiter of a user at a cap is passed over as a suspended one is, and keeps its turn. A running
//! job that wants more than the cap leaves is denied it at once. A request is refused if the end of
//! the user's other jobs could not make room for it. Only facts exceed a cap: a lower cap ends no
//! job.
//!
//! A job on several devices counts once. Its further parts are counted only with the memory that
//! they take. A part never waits for a cap, as it might wait for its own job: it is refused.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use super::need::{Job, User};

/// Most that a user's jobs may have at once; `None`: no cap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UserCap {
    /// Running jobs.
    pub jobs: Option<u32>,
    /// Bytes of device memory on all devices, contexts included and managed memory not.
    pub memory: Option<u64>,
}

/// Cap under which a job lacks room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapLack {
    /// The job's own limit, bytes without contexts.
    Limit(u64),
    /// The cap on jobs: the user runs this many, and may run no more.
    Jobs(u32),
    /// The cap on memory.
    Memory {
        /// Bytes that the user's jobs have.
        has: u64,
        /// Bytes that the user's jobs may have.
        most: u64,
    },
}

/// Caps, and which jobs are parts of others.
#[derive(Debug, Clone, Default)]
pub(super) struct Caps {
    users: BTreeMap<User, UserCap>,
    parts: BTreeSet<Job>,
}

impl Caps {
    pub fn is_part(&self, job: Job) -> bool {
        self.parts.contains(&job)
    }

    pub fn set_part(&mut self, job: Job) {
        self.parts.insert(job);
    }

    pub fn forget(&mut self, job: Job) {
        self.parts.remove(&job);
    }

    /// Sets a user's cap; the default is none.
    pub fn set(&mut self, user: User, cap: UserCap) {
        match cap == UserCap::default() {
            true => self.users.remove(&user),
            false => self.users.insert(user, cap),
        };
    }

    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    pub fn of(&self, user: User) -> Option<UserCap> {
        self.users.get(&user).copied()
    }
}
