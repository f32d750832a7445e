// SPDX-License-Identifier: MIT OR Apache-2.0
//! Detection of preemption: whether the calling thread had a processor between two calls.
//!
//! On a busy machine the gap before a call contains preemption. A thread without a voluntary switch
//! would have run all the time, so the rest was preemption. After a voluntary switch (sleep, lock,
//! other thread) nothing is subtracted.
#![allow(unsafe_code)]

use std::cell::Cell;

use rustix::time::{ClockId, clock_gettime};
use weft_protocol::Ns;

/// The thread's counters when the job continued after its last recorded call.
#[derive(Debug, Clone, Copy)]
struct ThreadCounters {
    at: Ns,
    ran: Ns,
    gave_up: i64,
}

thread_local! {
    static LAST: Cell<Option<ThreadCounters>> = const { Cell::new(None) };
}

/// Processor time of the calling thread, ns.
fn ran() -> Ns {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}

/// Voluntary switches of the calling thread. `None` if the system does not report them.
fn gave_up() -> Option<i64> {
    // SAFETY: a structure of integers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the out-parameter is valid through the call.
    let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    (result == 0).then_some(usage.ru_nvcsw)
}

/// Notes that the job continues at this time, ns.
pub fn went_on(at: Ns) {
    LAST.set(gave_up().map(|gave_up| ThreadCounters {
        at,
        ran: ran(),
        gave_up,
    }));
}

/// Time since the job continued in which the thread was ready but did not run, ns. The call came in
/// at `entered`.
pub fn preempted(entered: Ns) -> Ns {
    let Some(last) = LAST.get() else { return 0 };
    if gave_up() != Some(last.gave_up) {
        return 0;
    }
    // These queries ran after `entered`, so the thread ran a little less than counted, never more.
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
        // On any machine, time run and time not run add up to the whole.
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
