// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that the job marks.

use weft_protocol::lane::Mode;

use super::attached;
use crate::throttle::requests::{count, weft_request_begin, weft_request_end};

#[test]
fn a_request_counts_as_beside_others_if_they_were_there_at_either_end() {
    let (session, broker) = attached(Mode::Alone);
    let counted = || {
        let times = &broker.lane.requests;
        let of = |durations: &weft_protocol::lane::Durations| durations.figures().map_or(0, |figures| figures.count);
        (of(&times.alone), of(&times.beside))
    };
    count(session, false, 1_000_000);
    assert_eq!(counted(), (1, 0));
    count(session, true, 1_000_000);
    assert_eq!(counted(), (1, 1));
    for mode in [Mode::Foreground, Mode::Background] {
        broker.order(mode);
        count(session, false, 1_000_000);
    }
    assert_eq!(counted(), (1, 3));
    // Without a broker no process reads the counts.
    broker.order(Mode::Free);
    count(session, true, 1_000_000);
    assert_eq!(counted(), (1, 3));
}

#[test]
fn marks_in_a_process_that_never_called_the_driver_do_nothing() {
    let token = weft_request_begin();
    assert_ne!(token, 0);
    for token in [token, 0, u64::MAX, 1] {
        weft_request_end(token);
    }
}
