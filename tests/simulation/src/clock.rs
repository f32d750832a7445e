// SPDX-License-Identifier: MIT OR Apache-2.0
//! The broker's clock in a run, set by the world.
#![forbid(unsafe_code)]

use std::cell::Cell;

use weft_scheduler::Ns;

/// A run begins at this time, so that a clock can jump back.
pub(crate) const BEGIN_NS: Ns = 100_000_000_000;

thread_local! {
    static BROKER: Cell<Ns> = const { Cell::new(BEGIN_NS) };
}

/// Time that the broker reads.
pub(crate) fn broker() -> Ns {
    BROKER.get()
}

/// Sets the broker's clock.
pub(crate) fn set_broker(now: Ns) {
    BROKER.set(now);
}
