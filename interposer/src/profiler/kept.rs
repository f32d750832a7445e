//! What the sampler keeps under its lock: events to spare, launches that are with the driver,
//! windows whose times are to be read, and samples that are to be told.
//!
//! Never waits for the device: what it has not passed is asked for later.
#![forbid(unsafe_code)]

use weft_protocol::Ns;
use weft_protocol::lane::{Kind, RECORDS};

use super::budget::{Budget, Stride};
use super::window::{self, Point, Scale};
use super::{Around, Half, WINDOW};
use crate::driver::events::{Context, Event, EventCalls, Reached};
use crate::driver::stream::Stream;
use crate::kernels::launch::LaunchInfo;

/// Events kept: enough for eight full windows. A driver takes some hundred bytes for each.
const EVENTS: usize = 8 * (2 * WINDOW + 2);

/// No event.
pub(super) const NONE: Event = 0;

/// So many samples told are a quarter of what a lane holds: the broker is to read them.
const RING_AT: usize = RECORDS / 4;

/// The rate of the device's clock against ours is taken over at least this time: below it, being
/// interrupted between two readings shows.
const RATE_SPAN: Ns = 20_000_000;

/// Over this time one reading is enough: an event that another process's time slice kept from being
/// reached at once shifts it by a few ms.
const LONG_SPAN: Ns = 1_000_000_000;

/// A reading that took longer was interrupted.
const AT_ONCE: Ns = 50_000;

/// Clocks that agree so far are the same clock, and two rates that do are the same rate.
const SAME_CLOCK: f64 = 0.05;

/// Windows are kept back until the rate is known; a job that never synchronises has none, and after
/// so many it is taken to be 1. Where the broker was told how slow its device is, that is the rate
/// from the beginning. Meanwhile the broker is told what they are at the likeliest rate
/// ([`Kind::Guess`]): a job that is killed tells nothing more.
const KEPT_BACK: usize = 512;

/// What is kept of it. As many as there are threads that launch at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begun {
    pub(super) start: Event,
    pub(super) end: Event,
    pub(super) stream: Stream,
    pub(super) kernel: u64,
    pub(super) sequence: u64,
    pub(super) entered: Ns,
    pub(super) launched: Ns,
    pub(super) after_sync: bool,
}

/// Threads that launch at a time; with more, some of their launches go unsampled.
pub(super) const BEGUN: usize = 16;

#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    pub(super) start: Event,
    pub(super) end: Event,
    pub(super) stream: Stream,
    pub(super) point: Point,
    pub(super) after_sync: bool,
}

#[derive(Debug, Default)]
pub(super) struct Window {
    pub(super) taken: Vec<Taken>,
    /// One more event right behind the first launch's: what an event takes.
    pub(super) extra: Option<Event>,
}

impl Window {
    /// Whether the device has passed all of it. The last launch first: while that is not done, it
    /// is the only question. What is before it on the same stream was passed as well, so most
    /// windows take one question.
    pub(super) fn reached(&self, driver: &EventCalls) -> Reached {
        let mut known: Option<Stream> = None;
        for taken in self.taken.iter().rev() {
            if known == Some(taken.stream) {
                continue;
            }
            let last = if taken.end == NONE { taken.start } else { taken.end };
            match driver.query(last) {
                Reached::Yes => known = known.or(Some(taken.stream)),
                other => return other,
            }
        }
        Reached::Yes
    }
}

#[derive(Debug, Default)]
pub(super) struct Inside {
    pub(super) budget: Budget,
    pub(super) stride: Stride,
    /// Launches that were to be passed over before this look.
    pub(super) passed: u32,
    pub(super) context: Option<Context>,
    pub(super) spare: Vec<Event>,
    pub(super) made: usize,
    /// Launches the open window still wants.
    pub(super) wanted: usize,
    pub(super) open: Window,
    pub(super) closed: std::collections::VecDeque<Window>,
    /// Least time between two events in a row.
    pub(super) tick: Option<f64>,
    pub(super) rate: Option<f64>,
    /// A first reading of it, to be confirmed.
    pub(super) rate_once: Option<f64>,
    pub(super) kept_back: Vec<Vec<Point>>,
    /// An event reached at once when it was recorded, and that time.
    pub(super) anchor: Option<(Event, Ns)>,
    pub(super) looked: Ns,
    /// Samples told since the broker was last rung for.
    pub(super) told: usize,
    /// Launches that are with the driver. Those of before `forget` are not found after.
    pub(super) begun: [Option<Begun>; BEGUN],
}

impl Inside {
    pub(super) fn event(&mut self, driver: &EventCalls) -> Option<Event> {
        if let Some(event) = self.spare.pop() {
            return Some(event);
        }
        if self.made >= EVENTS {
            return None;
        }
        let event = driver.create(true)?;
        self.made += 1;
        Some(event)
    }

    /// The event before a launch, recorded, and the one for behind it if there is to be one.
    pub(super) fn half(&mut self, driver: &EventCalls, launch: &LaunchInfo, ends: bool) -> Option<(Event, Event)> {
        let context = driver.current()?;
        // Events belong to the first context that was sampled; a process with several is sampled in
        // that one.
        if *self.context.get_or_insert(context) != context {
            return None;
        }
        let start = self.event(driver)?;
        let end = if ends { self.event(driver) } else { Some(NONE) };
        match end {
            Some(end) if driver.relaxed(|| driver.record(start, launch.stream)) => Some((start, end)),
            end => {
                self.spare.push(start);
                self.spare.extend(end.filter(|event| *event != NONE));
                None
            }
        }
    }

    /// Keeps a launch until it comes back from the driver. Where there is no room its events are
    /// spare again.
    pub(super) fn keep(&mut self, begun: Begun) -> Option<u16> {
        let free = self.begun.iter().position(Option::is_none);
        match free.and_then(|at| Some((at, self.begun.get_mut(at)?))) {
            Some((at, place)) => {
                *place = Some(begun);
                u16::try_from(at).ok()
            }
            None => {
                let events = [begun.start, begun.end].into_iter();
                self.spare.extend(events.filter(|event| *event != NONE));
                None
            }
        }
    }

    /// The launch that came back, if nothing was forgotten meanwhile.
    pub(super) fn take(&mut self, half: Half) -> Option<Begun> {
        let place = self.begun.get_mut(usize::from(half.place))?;
        place.take_if(|begun| begun.sequence == half.sequence)
    }

    pub(super) fn measure_event(&mut self, driver: &EventCalls, stream: Stream) {
        let Some(event) = self.event(driver) else { return };
        if driver.relaxed(|| driver.record(event, stream)) {
            self.open.extra = Some(event);
        } else {
            self.spare.push(event);
        }
    }

    /// Fills in the device's times. False if the driver does not tell them.
    pub(super) fn times(&mut self, driver: &EventCalls, window: &mut Window) -> bool {
        let Some(base) = window.taken.first().map(|taken| taken.start) else {
            return false;
        };
        for taken in &mut window.taken {
            let Some(start) = driver.elapsed(base, taken.start) else {
                return false;
            };
            taken.point.start = start;
            if taken.end != NONE {
                let Some(end) = driver.elapsed(base, taken.end) else {
                    return false;
                };
                taken.point.end = end;
            }
        }
        if let (Some(extra), Some(first)) = (window.extra, window.taken.first())
            && let Some(tick) = driver.elapsed(first.end, extra)
            && tick >= 0.0
        {
            self.tick = Some(self.tick.map_or(tick, |least| least.min(tick)));
        }
        self.set_rate(driver, window);
        true
    }

    /// Compares the device's clock with ours at launches onto an idle device: there an event is
    /// reached when it is recorded.
    pub(super) fn set_rate(&mut self, driver: &EventCalls, window: &mut Window) {
        for taken in &mut window.taken {
            if !taken.after_sync || taken.point.launched.saturating_sub(taken.point.entered) > AT_ONCE {
                continue;
            }
            let Some((anchor, at)) = self.anchor else {
                // The anchor keeps its event; the window goes on with none to give back.
                self.anchor = Some((taken.start, taken.point.launched));
                taken.start = NONE;
                continue;
            };
            let host = taken.point.launched.saturating_sub(at);
            if host < RATE_SPAN {
                continue;
            }
            if let Some(device) = driver.elapsed(anchor, taken.start)
                && device > 0.0
            {
                let rate = host as f64 / device;
                let same = |other: f64| (rate / other - 1.0).abs() < SAME_CLOCK;
                let confirmed = self.rate_once.replace(rate).is_some_and(same);
                if confirmed || host >= LONG_SPAN {
                    self.rate = Some(if same(1.0) { 1.0 } else { rate });
                }
            }
        }
    }

    pub(super) fn tell(&mut self, around: Around<'_>, window: &Window) {
        let points: Vec<Point> = window.taken.iter().map(|taken| taken.point).collect();
        if self.rate.is_none() {
            self.rate = around.link.stated_slowness();
        }
        let known = self.rate.is_some() || self.kept_back.len() + 1 >= KEPT_BACK;
        if !known {
            let scale = self.scale(self.likeliest());
            self.write(around, Kind::Guess, &points, scale);
        }
        self.kept_back.push(points);
        if known {
            self.flush(around);
        }
    }

    fn likeliest(&self) -> f64 {
        self.rate_once.unwrap_or(1.0)
    }

    fn scale(&self, rate: f64) -> Scale {
        let tick = self.tick.unwrap_or(0.0);
        Scale { tick, rate }
    }

    fn write(&mut self, around: Around<'_>, kind: Kind, points: &[Point], scale: Scale) {
        for (sample, point) in window::samples(points, scale).zip(points) {
            around
                .link
                .write(kind, point.launched, sample.kernel, sample.time, sample.gap);
            self.told += 1;
        }
    }

    /// Tells what is kept back, with the rate that is known or the likeliest.
    pub(super) fn flush(&mut self, around: Around<'_>) {
        let rate = self.rate.unwrap_or_else(|| self.likeliest());
        self.rate = Some(rate);
        let scale = self.scale(rate);
        for points in std::mem::take(&mut self.kept_back) {
            self.write(around, Kind::Sample, &points, scale);
        }
        // The broker reads at least five times a second without a ring, which would cost the job a
        // system call and, for a while, a core.
        if around.link.sampling() && self.told >= RING_AT {
            self.told = 0;
            around.link.fence_and_ring();
        }
    }

    pub(super) fn take_back(&mut self, window: Window) {
        let events = window.taken.iter().flat_map(|taken| [taken.start, taken.end]);
        self.spare
            .extend(events.chain(window.extra).filter(|event| *event != NONE));
    }
}
