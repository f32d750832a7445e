// SPDX-License-Identifier: MIT OR Apache-2.0
//! A simulated driver of events: the test decides when a stream has reached them. Streams separate
//! concurrent tests. Each thread has a device of its own, with one queue.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::Mutex;

use crate::client::clock;
use crate::driver::events::EventCalls;

#[derive(Debug, Default, Clone, Copy)]
struct Event {
    stream: usize,
    recorded: bool,
    reached: bool,
    time: u64,
}

static EVENTS: Mutex<Option<HashMap<usize, Event>>> = Mutex::new(None);

thread_local! {
    static CONTEXT: Cell<usize> = const { Cell::new(0xc0) };
    static CLOCK: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<u64> = const { Cell::new(0) };
    static AT_ONCE: Cell<bool> = const { Cell::new(false) };
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

/// Time of a call in played time.
const CALL: u64 = 1_000;

fn events<T>(act: impl FnOnce(&mut HashMap<usize, Event>) -> T) -> T {
    CALLS.set(CALLS.get() + 1);
    clock::played::pass(CALL);
    act(EVENTS.lock().expect("no panic").get_or_insert_default())
}

/// Event calls of this thread so far.
pub fn calls() -> usize {
    CALLS.get()
}

/// Reaches all events recorded on a stream; returns their number.
pub fn reach(stream: usize) -> usize {
    events(|events| {
        let mut reached = 0;
        for event in events
            .values_mut()
            .filter(|event| event.stream == stream && event.recorded && !event.reached)
        {
            event.reached = true;
            reached += 1;
        }
        reached
    })
}

/// Gives this thread a device in real time.
pub fn live() {
    LIVE.set(clock::now());
    CLOCK.set(0);
}

/// Current device time, device ns.
fn device_now() -> u64 {
    clock::now().saturating_sub(LIVE.get())
}

/// Launches a kernel of `ns` device ns.
pub fn work(ns: u64) {
    CLOCK.set(CLOCK.get().max(device_now()) + ns);
}

/// Waits until all work is done.
pub fn catch_up() {
    let left = CLOCK.get().saturating_sub(device_now());
    clock::played::pass(left);
    while device_now() < CLOCK.get() {
        std::hint::spin_loop();
    }
}

/// Sets whether this thread's events are reached as they are recorded.
pub fn at_once(yes: bool) {
    AT_ONCE.set(yes);
}

/// Puts the thread into another context.
pub fn set_context(context: usize) {
    CONTEXT.set(context);
}

extern "C" fn create(event: *mut usize, _flags: u32) -> u32 {
    let new = events(|events| {
        let new = events.len() + 1;
        events.insert(new, Event::default());
        new
    });
    // SAFETY: the session passes a pointer to a local.
    unsafe { *event = new };
    0
}

extern "C" fn record(event: usize, stream: usize) -> u32 {
    let (time, reached) = (CLOCK.get().max(device_now()), AT_ONCE.get());
    events(|events| match events.get_mut(&event) {
        Some(known) => {
            *known = Event {
                stream,
                recorded: true,
                reached,
                time,
            };
            0
        }
        None => 400,
    })
}

extern "C" fn query(event: usize) -> u32 {
    events(|events| match events.get(&event) {
        Some(event) if event.reached => 0,
        Some(_) => 600,
        None => 400,
    })
}

extern "C" fn elapsed(milliseconds: *mut f32, from: usize, to: usize) -> u32 {
    let times = events(|events| Some((events.get(&from)?.time, events.get(&to)?.time)));
    let Some((from, to)) = times else { return 400 };
    // SAFETY: the session passes a pointer to a local.
    unsafe { *milliseconds = ((to as f64 - from as f64) / 1e6) as f32 };
    0
}

extern "C" fn current(context: *mut usize) -> u32 {
    // SAFETY: the session passes a pointer to a local.
    unsafe { *context = CONTEXT.get() };
    0
}

/// The driver's functions.
pub fn driver() -> EventCalls {
    EventCalls::find(|name: &CStr| match name.to_bytes() {
        b"cuEventCreate" => Some(create as *mut ()),
        b"cuEventRecord" => Some(record as *mut ()),
        b"cuEventQuery" => Some(query as *mut ()),
        b"cuEventElapsedTime" => Some(elapsed as *mut ()),
        b"cuCtxGetCurrent" => Some(current as *mut ()),
        _ => None,
    })
}
