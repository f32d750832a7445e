// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sessions of a process that uses several devices (a model on two, `DataParallel`, or JAX, which
//! uses all).
//!
//! * The first session is that of the first device on which the process makes a context. A context
//!   on another device makes a further session, with a lane, credit, accounts and an admission of
//!   its own. To the broker each session is one client.
//! * With one session every call finds it with one load ([`super::session()`]). With several
//!   sessions that word is null, and a call looks for its device: by its stream, else by the
//!   thread's current context.
//! * If a call's device is unknown (a context made unseen during a capture, the seventeenth
//!   device), the call passes through.
//! * A managed job has one session: its memory is planned for one device.
//!
//! Only [`of_new`] waits, within the bound of the first attach. During a capture the driver gets
//! only requests for the current context, which is the thread's own state.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use weft_protocol::transport;

use super::helper;
use super::session::Session;
use crate::client::backing_mode;
use crate::client::clock;
use crate::client::settings::Settings;
use crate::driver::stream::{PER_THREAD_STREAM, Stream};
use crate::driver::{calls, capture, queries};
use crate::thread;

/// Devices with a session. The largest machines sold have sixteen.
const MOST: usize = 16;

/// Contexts whose device is remembered; mostly one per device.
const CONTEXTS: usize = 64;

/// No device has this ordinal.
const NONE: i32 = -1;

/// Longest wait, ns, for another thread that makes a session. That thread may wait 5 s for the
/// broker.
const PATIENCE: u64 = 6_000_000_000;

/// One of the process's devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceNumber(u8);

impl DeviceNumber {
    /// The first device.
    pub const FIRST: DeviceNumber = DeviceNumber(0);
    /// No device with a session.
    pub const NOWHERE: DeviceNumber = DeviceNumber(u8::MAX);
}

/// The only session. Null before it exists, and with several sessions. Never freed.
pub(super) static SESSION: AtomicPtr<Session> = AtomicPtr::new(ptr::null_mut());

#[inline]
pub(super) fn session() -> Option<&'static Session> {
    let session = SESSION.load(Ordering::Acquire);
    // SAFETY: null, or a leaked box that [`super::begin`] stored and no code frees.
    unsafe { session.as_ref() }
}

#[derive(Debug)]
struct Place {
    session: AtomicPtr<Session>,
    device: AtomicI32,
}

static PLACES: [Place; MOST] = [const {
    Place {
        session: AtomicPtr::new(ptr::null_mut()),
        device: AtomicI32::new(NONE),
    }
}; MOST];

/// Number of sessions.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Set while a thread makes a session.
static GROWING: AtomicBool = AtomicBool::new(false);

/// A context and its device's place. `context` 0: free; [`CLAIMED`]: being written.
#[derive(Debug)]
struct Known {
    context: AtomicUsize,
    place: AtomicU32,
}

static KNOWN: [Known; CONTEXTS] = [const {
    Known {
        context: AtomicUsize::new(0),
        place: AtomicU32::new(0),
    }
}; CONTEXTS];

/// Handle of no context: handles are aligned addresses.
const CLAIMED: usize = 1;

/// Stores the session of the first device.
pub fn begin(session: &'static Session) {
    put(DeviceNumber::FIRST, session);
    COUNT.store(1, Ordering::Release);
}

fn put(at: DeviceNumber, session: &'static Session) {
    if let Some(place) = PLACES.get(usize::from(at.0)) {
        place
            .session
            .store(ptr::from_ref(session).cast_mut(), Ordering::Release);
    }
}

/// Drops all sessions in a forked child.
pub fn forget() {
    COUNT.store(0, Ordering::Release);
    for place in &PLACES {
        let parents = place.session.swap(ptr::null_mut(), Ordering::AcqRel);
        place.device.store(NONE, Ordering::Release);
        // SAFETY: null, or a leaked box that no code frees.
        if let Some(parents) = unsafe { parents.as_ref() } {
            // After a fork inside one of weft's calls, that call continues with private memory in
            // mode Free.
            parents.link.lane_place.clear();
            parents.link.epoch_page_place.clear();
        }
    }
    forget_contexts();
    GROWING.store(false, Ordering::Release);
}

/// Forgets all contexts after some contexts ended, because handles are reused.
pub fn forget_contexts() {
    for known in &KNOWN {
        known.context.store(0, Ordering::Release);
    }
}

/// The session of a place.
pub fn at(place: DeviceNumber) -> Option<&'static Session> {
    let session = PLACES.get(usize::from(place.0))?.session.load(Ordering::Acquire);
    // SAFETY: null, or a leaked box that `begin` or `grow` stored and no code frees.
    unsafe { session.as_ref() }
}

/// The session of the process's first device.
pub fn first() -> Option<&'static Session> {
    at(DeviceNumber::FIRST)
}

/// All sessions.
pub fn all() -> impl Iterator<Item = &'static Session> + Clone {
    let count = COUNT.load(Ordering::Acquire).min(MOST);
    (0..count).filter_map(|place| at(DeviceNumber(place as u8)))
}

/// Whether the process uses several devices.
#[inline]
fn several() -> bool {
    COUNT.load(Ordering::Acquire) > 1
}

fn place_of(device: i32) -> Option<DeviceNumber> {
    let count = COUNT.load(Ordering::Acquire).min(MOST);
    let taken = PLACES.iter().take(count);
    let mut found = taken
        .zip(0u8..)
        .filter(|(place, _)| place.device.load(Ordering::Acquire) == device);
    found.next().map(|(_, at)| DeviceNumber(at))
}

/// The session of the device with this ordinal, if any.
pub fn known(device: i32) -> Option<&'static Session> {
    place_of(device).and_then(at)
}

/// Place of the device with this ordinal.
pub fn of_device(device: i32) -> DeviceNumber {
    match (several(), ordinal(DeviceNumber::FIRST)) {
        (true, _) => place_of(device).unwrap_or(DeviceNumber::NOWHERE),
        (false, Some(other)) if other != device && !backing_mode::managed() => DeviceNumber::NOWHERE,
        (false, _) => DeviceNumber::FIRST,
    }
}

/// Ordinal of a place's device, if known.
pub fn ordinal(at: DeviceNumber) -> Option<i32> {
    let device = PLACES.get(usize::from(at.0))?.device.load(Ordering::Acquire);
    (device != NONE).then_some(device)
}

/// Place of the device of the thread's current context.
pub fn here() -> DeviceNumber {
    if several() { of_current() } else { DeviceNumber::FIRST }
}

/// Place of a stream's device.
pub fn of_stream(stream: Stream) -> DeviceNumber {
    if several() {
        of_stream_among_several(stream)
    } else {
        DeviceNumber::FIRST
    }
}

fn of_current() -> DeviceNumber {
    match first().and_then(|first| first.completion.driver().current()) {
        Some(context) => remembered(context).unwrap_or_else(|| learn(context, false)),
        None => DeviceNumber::NOWHERE,
    }
}

fn of_stream_among_several(stream: Stream) -> DeviceNumber {
    // Default streams are those of the current context.
    if stream <= PER_THREAD_STREAM || capture::any() {
        return of_current();
    }
    let mut context = 0;
    // SAFETY: the out-parameter is valid; the client is about to give this stream to the driver.
    if !unsafe { calls::cuStreamGetCtx(stream, &mut context) }.ok() || context == 0 {
        return of_current();
    }
    remembered(context).unwrap_or_else(|| learn(context, true))
}

fn remembered(context: usize) -> Option<DeviceNumber> {
    let known = KNOWN
        .iter()
        .find(|known| known.context.load(Ordering::Acquire) == context)?;
    u8::try_from(known.place.load(Ordering::Acquire)).ok().map(DeviceNumber)
}

/// Asks the driver for a context's device. `elsewhere`: makes it current for that moment.
#[cold]
fn learn(context: usize, elsewhere: bool) -> DeviceNumber {
    if capture::any() {
        return DeviceNumber::NOWHERE;
    }
    // Elsewhere the driver has just named this context as that of a live stream.
    let here = match elsewhere {
        true => queries::within(context, || Ok(queries::here())).ok().flatten(),
        false => queries::here(),
    };
    let Some(place) = here.and_then(|(device, _)| place_of(device)) else {
        return DeviceNumber::NOWHERE;
    };
    for known in &KNOWN {
        let claim = known
            .context
            .compare_exchange(0, CLAIMED, Ordering::AcqRel, Ordering::Relaxed);
        if claim.is_ok() {
            known.place.store(u32::from(place.0), Ordering::Release);
            // Fails if all contexts were forgotten meanwhile.
            let _ = known
                .context
                .compare_exchange(CLAIMED, context, Ordering::AcqRel, Ordering::Relaxed);
            break;
        }
    }
    place
}

/// The session for a device on which a context will be made; makes one if needed.
pub fn of_new(device: i32) -> Option<&'static Session> {
    let first = first()?;
    if let Some(known) = place_of(device) {
        return at(known);
    }
    let ordinal = &PLACES.first()?.device;
    let claimed = ordinal.compare_exchange(NONE, device, Ordering::AcqRel, Ordering::Acquire);
    if claimed.is_ok() || claimed == Err(device) || backing_mode::managed() {
        return Some(first);
    }
    let begun = clock::now();
    while GROWING.swap(true, Ordering::AcqRel) {
        if clock::now().saturating_sub(begun) > PATIENCE {
            return None;
        }
        thread::rest(Duration::from_millis(1));
    }
    let _turn = Turn;
    match place_of(device) {
        Some(known) => at(known),
        None => grow(first, device),
    }
}

/// Guard of `GROWING`; its drop also runs in a panic.
struct Turn;

impl Drop for Turn {
    fn drop(&mut self) {
        GROWING.store(false, Ordering::Release);
    }
}

fn grow(first: &Session, device: i32) -> Option<&'static Session> {
    let count = COUNT.load(Ordering::Acquire);
    let place = PLACES.get(count)?;
    let settings = Settings {
        // The first session has handled both.
        autostart: false,
        explicit: false,
        ..first.link.settings.clone()
    };
    let mut session = match Session::make(*first.completion.driver(), settings) {
        Ok(session) => session,
        Err(why) => {
            log::info!("on another device this job runs without weft: {why}");
            return None;
        }
    };
    session.admission.further = count as u32;
    session.completion = session.completion.with_captures_of(&first.completion);
    let session: &'static Session = Box::leak(Box::new(session));
    helper::start(session, transport::path::socket());
    put(DeviceNumber(count as u8), session);
    place.device.store(device, Ordering::Release);
    COUNT.store(count + 1, Ordering::Release);
    // From now on each call looks for its device.
    SESSION.store(ptr::null_mut(), Ordering::Release);
    Some(session)
}

/// The session of a call in a process with several sessions; `None` in one without a session.
#[cold]
#[inline(never)]
pub fn among_several(stream: Option<Stream>) -> Option<&'static Session> {
    let place = several().then(|| stream.map_or_else(of_current, of_stream_among_several));
    place.and_then(at)
}
