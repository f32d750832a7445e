//! Which of the broker's threads goes first where there is more to run than cores, by the system's
//! nice values (-20 first, 19 last).
//!
//! | thread | nice | why |
//! |---|---|---|
//! | scheduler | -15 | a turn takes some us, and jobs wait for it. A woken thread else waits 0.4 ms for its core (measured), and background jobs get a third of what they could |
//! | control, memory, profile writer, beat | 0 | as jobs are |
//! | the door of a shared broker, what lets guests in and answers them | 10 | any user may knock as often as he likes |
//! | the same for who has wanted much of late; the log | 19 | a flood, even where each of it takes little, must not hold up a job's thread that wakes |
//!
//! Only a process that may (root, or `CAP_SYS_NICE`) gets ahead; all may step back. On Linux a nice
//! value is a thread's.
#![forbid(unsafe_code)]

use rustix::process::setpriority_process;

/// Where a thread stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rank {
    /// Jobs wait for each of its turns.
    First,
    /// Like a job.
    Usual,
    /// Strangers can keep it busy; honest newcomers wait for it, too.
    Door,
    /// Behind everybody.
    Last,
}

impl Rank {
    /// The calling thread has this rank from now on, and the threads that it starts. Where the
    /// system says no it stays what it was.
    pub fn take(self) {
        let nice = match self {
            Rank::First => -15,
            Rank::Usual => return,
            Rank::Door => 10,
            Rank::Last => 19,
        };
        let _ = setpriority_process(None, nice);
    }
}
