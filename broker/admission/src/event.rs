//! What the machine is told and what it answers.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use super::need::{Device, DeviceId, Job, Need, User};
use weft_protocol::amount::shown;

/// A job wants in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Which.
    pub job: Job,
    /// Whose.
    pub user: User,
    /// 0 (most important) to 9.
    pub priority: u8,
    /// What it takes.
    pub need: Need,
    /// Where it may run; empty: anywhere.
    pub devices: Vec<DeviceId>,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A device is there, or was measured anew. What its contexts take more or less than was
    /// thought, those who run there have more or less.
    Device(Device),
    /// A user's weight; 1 where nothing is said. Never below 1.
    Weight(User, u32),
    /// A job wants in. One that is known already has asked; the second time changes nothing.
    Asks(Ask),
    /// A job runs already with this share (bytes, contexts included): the broker was started anew.
    /// A fact, whether it fits or not.
    Holds(Ask, DeviceId, u64),
    /// A running job turns out to have so many bytes beyond its share. A fact as well.
    Has(Job, u64),
    /// A running job gives back so much of its share: a process of it came to another device.
    Gives(Job, u64),
    /// A further process of a job that is known has come.
    Joins(Job),
    /// A process of a job has gone; with its last one the job ends.
    Leaves(Job),
    /// A running job wants so many bytes more than its share, or else to hear at once that they are
    /// not free.
    Grows(Job, u64),
    /// It wants so many bytes more and waits for them where they are not free but may come to be:
    /// those who run beside it and do not wait themselves may end. Who waits so goes before all who
    /// have not begun.
    GrowsInTime(Job, u64),
    /// It waits no longer for what it wanted more.
    GrowsNoMore(Job),
    /// Another priority.
    Priority(Job, u8),
    /// A job is suspended. If it waits it is not let in meanwhile; if it was let in and took
    /// nothing yet, it waits again, at the place that it had.
    Away(Job),
    /// A suspended job goes on.
    Back(Job),
    /// A job whose backing was open has device memory, whatever was decided: it began before it
    /// heard. A fact as well.
    OnDevice(Job),
    /// A job ended, died, or no longer wants in.
    Ends(Job),
    /// Nothing happened, but time went by.
    Tick,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// The job may begin.
    Admit {
        /// Which.
        job: Job,
        /// Where.
        device: DeviceId,
        /// Bytes it may have, contexts included. For a managed job: what of it is no managed
        /// memory.
        share: u64,
    },
    /// The job can never run here.
    Refuse {
        /// Which.
        job: Job,
        /// The figures.
        why: Never,
    },
    /// The job may have so much more.
    Grant {
        /// Which.
        job: Job,
        /// Bytes more.
        bytes: u64,
    },
    /// It may not: so much is free.
    Deny {
        /// Which.
        job: Job,
        /// Bytes that it asked for.
        bytes: u64,
        /// Bytes that are free.
        free: u64,
    },
}

/// Why a job can never run: the best device that it may use has too little.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Never {
    /// The device.
    #[error(
        "it needs {} ({} of that for {}), and the largest device it may use has {}",
        shown(*need), shown(*contexts), whose(*processes), shown(*memory)
    )]
    Device {
        /// Bytes.
        need: u64,
        /// Bytes.
        contexts: u64,
        /// How many have a context.
        processes: u32,
        /// Bytes.
        memory: u64,
    },
    /// The host.
    #[error("it needs {} of the host, and managed jobs may take {}", shown(*need), shown(*memory))]
    Host {
        /// Bytes.
        need: u64,
        /// Bytes.
        memory: u64,
    },
    /// The link.
    #[error("moving what it touches in a round takes longer than the link may be used")]
    Link,
    /// None of the devices that it may use is there.
    #[error("none of the devices it may use is here")]
    NoDevice,
}

/// Whose contexts: of how many processes, where that may surprise.
fn whose(processes: u32) -> String {
    match processes {
        0 | 1 => "contexts".to_string(),
        many => format!("the contexts of {many} processes, as LOCAL_WORLD_SIZE says or as many came"),
    }
}
