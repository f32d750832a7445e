// SPDX-License-Identifier: MIT OR Apache-2.0
//! The core's own cost: in steady state it allocates nothing. (Events a second: `scripts/lab --kind
//! core`.)

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use weft_lab::speed::Crowd;
use weft_scheduler::PolicyName;

/// The system's allocator, counting by thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches a const-initialised
// thread-local without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps GlobalAlloc's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; the pointer came from the same allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn steady_state_allocates_nothing() {
    for policy in PolicyName::ALL {
        let mut crowd = Crowd::new(policy, 200);
        for _ in 0..200 {
            crowd.round();
        }
        let before = (ALLOCATIONS.with(Cell::get), crowd.events());
        for _ in 0..200 {
            crowd.round();
        }
        let allocations = ALLOCATIONS.with(Cell::get) - before.0;
        let events = crowd.events() - before.1;
        assert!(events > 10_000);
        assert_eq!(allocations, 0, "{policy}: in {events} events");
        assert!(crowd.grants() > 50, "{policy}: nothing was done");
    }
}
