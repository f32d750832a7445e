//! The broker's clock in a run: what the world says it is.
#![forbid(unsafe_code)]

use std::cell::Cell;

use weft_scheduler::Ns;

/// A run begins at this time, so that a clock can jump back.
pub(crate) const BEGIN_NS: Ns = 100_000_000_000;

thread_local! {
    static BROKER: Cell<Ns> = const { Cell::new(BEGIN_NS) };
}

/// What the broker reads.
pub(crate) fn broker() -> Ns {
    BROKER.get()
}

/// The world sets it.
pub(crate) fn set_broker(now: Ns) {
    BROKER.set(now);
}
