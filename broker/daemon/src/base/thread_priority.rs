// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nice values of the broker's threads (-20 first, 19 last), for machines with too few cores.
//!
//! | thread | nice | why |
//! |---|---|---|
//! | scheduler | -15 | jobs wait for its iterations of some us. At nice 0 a woken thread waits 0.4 ms for a core (measured), and background jobs get a third of what they could |
//! | control, memory, profile writer, beat | 0 | as jobs |
//! | a shared broker's acceptor, and threads that let guests in and answer them; outcomes | 10 | any user may connect at any rate |
//! | those threads for a user that caused much work; history; the log | 19 | even a flood of small work must not delay a job's waking thread |
//!
//! At 19 the thread of outcomes had 0.7 % of a core that two busy threads shared: 300 jobs that
//! ended at once kept their lanes for more than 60 s.
//!
//! Only root or `CAP_SYS_NICE` may lower a nice value; any process may raise it. On Linux each
//! thread has its own nice value.
#![forbid(unsafe_code)]

use rustix::process::setpriority_process;

/// Priority of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadPriority {
    /// The scheduler, for whose iterations jobs wait.
    First,
    /// The priority of a job.
    Usual,
    /// Work that any user can cause, and for which clients wait.
    Guests,
    /// Behind all others.
    Last,
}

impl ThreadPriority {
    /// Gives this priority to the calling thread and to threads that it starts. If the system
    /// refuses, nothing changes.
    pub fn take(self) {
        let nice = match self {
            ThreadPriority::First => -15,
            ThreadPriority::Usual => return,
            ThreadPriority::Guests => 10,
            ThreadPriority::Last => 19,
        };
        let _ = setpriority_process(None, nice);
    }
}
