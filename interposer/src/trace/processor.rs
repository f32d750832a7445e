//! Whether the calling thread had a processor between two calls.
//!
//! On a machine with other work a thread is put aside in the middle of its own, and the gap before
//! its next call has that time in it. The system tells it apart: a thread that never gave up its
//! processor by itself (no voluntary switch) would have run for all of the time. Where it did give
//! it up (it slept, or waited for a lock or for another thread) nothing is taken off.
#![allow(unsafe_code)]

use std::cell::Cell;

use rustix::time::{ClockId, clock_gettime};
use weft_protocol::Ns;

/// What the system had counted for the thread when the job went on after its last recorded call.
#[derive(Debug, Clone, Copy)]
struct Counted {
    at: Ns,
    ran: Ns,
    gave_up: i64,
}

thread_local! {
    static LAST: Cell<Option<Counted>> = const { Cell::new(None) };
}

/// Processor time of the calling thread.
fn ran() -> Ns {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}

/// How often the calling thread gave its processor up by itself. `None` if the system does not say.
fn gave_up() -> Option<i64> {
    // SAFETY: a structure of integers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the out-parameter is valid through the call.
    let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    (result == 0).then_some(usage.ru_nvcsw)
}

/// The job goes on, at this time.
pub fn went_on(at: Ns) {
    LAST.set(gave_up().map(|gave_up| Counted {
        at,
        ran: ran(),
        gave_up,
    }));
}

/// Of the time since the job went on, how long the thread was ready but did not run; the call came
/// in at `entered`.
pub fn preempted(entered: Ns) -> Ns {
    let Some(last) = LAST.get() else { return 0 };
    if gave_up() != Some(last.gave_up) {
        return 0;
    }
    // What is asked here has run since `entered`: the thread ran a little less than counted, never
    // more.
    let ran = ran().saturating_sub(last.ran);
    entered.saturating_sub(last.at).saturating_sub(ran)
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::client::clock;

    #[test]
    fn sleeping_is_the_jobs_own_time() {
        assert_eq!(thread::spawn(|| preempted(clock::now())).join().unwrap(), 0);
        went_on(clock::now());
        thread::sleep(Duration::from_millis(30));
        assert_eq!(preempted(clock::now()), 0);
    }

    #[test]
    fn running_is_the_jobs_own_time_and_more_than_that_is_not() {
        // However busy the machine is: what was run and what was not are all of the time.
        let begin = clock::now();
        went_on(begin);
        let began = ran();
        while ran() - began < 20_000_000 {
            std::hint::spin_loop();
        }
        let entered = clock::now();
        let aside = preempted(entered);
        assert!(
            aside + 20_000_000 <= entered - begin + 100_000,
            "{aside} of {}",
            entered - begin
        );
    }
}
