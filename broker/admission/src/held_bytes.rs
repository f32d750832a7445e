// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes that a job holds, now and lately.
#![forbid(unsafe_code)]

use weft_protocol::Ns;

/// Time after which memory that an important job does not hold is free for any job. It is longer
/// than one round of most jobs that take and return memory, and shorter than a wait for memory.
pub(super) const UNHELD_NS: Ns = 5_000_000_000;

/// Bytes that an undeclared job holds, with contexts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeldBytes {
    now: u64,
    /// Most bytes that it keeps from less important jobs.
    most: u64,
    /// Most bytes since `since`, when it began to hold less than `most`.
    less: u64,
    since: Ns,
}

impl HeldBytes {
    /// Bytes held by the last report.
    pub(super) fn current(&self) -> u64 {
        self.now
    }

    pub(super) fn new(bytes: u64, now: Ns) -> HeldBytes {
        HeldBytes {
            now: bytes,
            most: bytes,
            less: bytes,
            since: now,
        }
    }

    pub(super) fn update(&mut self, bytes: u64, now: Ns) {
        self.most = self.lately(now);
        let begins_less = self.less >= self.most;
        if bytes >= self.most {
            *self = HeldBytes::new(bytes, now);
        } else if begins_less {
            (self.less, self.since) = (bytes, now);
        }
        self.now = bytes;
        self.less = self.less.max(bytes);
    }

    /// Most bytes of the last [`UNHELD_NS`].
    pub(super) fn lately(&self, now: Ns) -> u64 {
        match now.saturating_sub(self.since) >= UNHELD_NS {
            true => self.less,
            false => self.most,
        }
    }
}
