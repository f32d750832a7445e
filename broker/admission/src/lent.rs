// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory above a job's request.
//!
//! A job with a limit ([`Need::limit`](super::Need::limit)) keeps its request: no job of its
//! priority or below gets that. It grows up to the limit while memory is free, and the memory
//! above its request is lent. Others get the lent part
//! * at once, if the job does not hold it ([`super::undeclared`]);
//! * else once its memory has moved to the host, if it can move.
#![forbid(unsafe_code)]

use super::need::Job;
use super::state::Admission;
use weft_protocol::Ns;

/// Time for which a job that began keeps its memory from an overdue equal, ns.
const SETTLED_NS: Ns = 600_000_000_000;

/// Why a job needs room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoomNeed {
    /// It runs and wants more than its request.
    Growth,
    /// To begin, or to return with no more than its request.
    Request,
    /// Its memory made room for others for as long as it allows.
    Overdue,
}

impl Admission {
    /// The limit of a running job, bytes without contexts.
    pub fn limit(&self, job: Job) -> Option<u64> {
        self.running.get(&job)?.ask.need.limit
    }

    /// Bytes of a running job's share above its request, if it has a limit.
    pub fn lent(&self, job: Job) -> u64 {
        let own = self.running.get(&job).filter(|own| own.ask.need.limit.is_some());
        let about = own.and_then(|own| self.devices.get(&own.device));
        let above = own
            .zip(about)
            .map(|(own, about)| own.share.saturating_sub(own.ask.need.fixed(about)));
        above.unwrap_or(0)
    }

    /// Bytes of a running job that another one of this priority gets if the job's memory moves: all
    /// of a less important job, and of an equal one without a limit that began [`SETTLED_NS`] ago
    /// if the other one is overdue; else the lent ones, except for growth.
    pub fn yields(&self, job: Job, (priority, need, now): (u8, RoomNeed, Ns)) -> u64 {
        let Some(own) = self.running.get(&job) else { return 0 };
        let settled = own.ask.need.limit.is_none() && now.saturating_sub(own.since) >= SETTLED_NS;
        match need {
            _ if own.ask.priority > priority => own.share,
            RoomNeed::Overdue if own.ask.priority == priority && settled => own.share,
            RoomNeed::Growth => 0,
            _ => self.lent(job),
        }
    }

    /// Bytes that a running job may take below its limit; `None`: it has none.
    pub(super) fn limit_left(&self, job: Job) -> Option<u64> {
        let own = self.running.get(&job)?;
        let limit = own.ask.need.limit.filter(|_| !own.ask.need.backing.is_managed())?;
        let contexts = own.ask.need.contexts(self.devices.get(&own.device)?);
        Some(limit.saturating_add(contexts).saturating_sub(own.share))
    }
}
