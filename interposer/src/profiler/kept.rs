// SPDX-License-Identifier: MIT OR Apache-2.0
//! State under the sampler's lock. Never waits for the device: pending events are queried later.
#![forbid(unsafe_code)]

use weft_gate::sampling::{Budget, Stride, UsualLaunch};
use weft_protocol::Ns;
use weft_protocol::lane::{Kind, RECORDS};

use super::window::{self, Point};
use super::{OpenSample, SamplerContext, WINDOW};
use crate::client::clock;
use crate::driver::events::{Context, Event, EventCalls, Reached};
use crate::driver::stream::Stream;

/// Events for eight full windows. A driver takes some hundred bytes for each event.
const MOST_EVENTS: usize = 8 * (2 * WINDOW + 2);

pub(super) const NONE: Event = 0;

/// Samples until the broker is rung.
const RING_AT: usize = RECORDS / 4;

#[derive(Debug, Clone, Copy)]
pub(super) struct Begun {
    pub(super) start: Event,
    pub(super) end: Event,
    pub(super) stream: Stream,
    pub(super) kernel: u64,
    pub(super) sequence: u64,
    pub(super) entered: Ns,
    /// When the first event was recorded, at the earliest.
    pub(super) asked: Ns,
    pub(super) launched: Ns,
    pub(super) onto_idle: bool,
}

/// Threads that launch at the same time. Further launches are not sampled.
pub(super) const BEGUN: usize = 16;

#[derive(Debug, Clone, Copy)]
pub(super) struct SampledLaunch {
    pub(super) start: Event,
    pub(super) end: Event,
    pub(super) stream: Stream,
    pub(super) point: Point,
}

#[derive(Debug, Default)]
pub(super) struct EventWindow {
    pub(super) taken: Vec<SampledLaunch>,
    /// A second event after the first launch, for an event's cost, and when it was recorded, ns.
    pub(super) extra: Option<(Event, Ns)>,
}

impl EventWindow {
    /// Whether the device has passed the whole window. The last launch is queried first: it is
    /// pending, or passed together with all launches before it on its stream.
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
pub(super) struct SamplerState {
    pub(super) budget: Budget,
    pub(super) usual_launch: UsualLaunch,
    /// Time of a sample's two records.
    pub(super) usual_records: UsualLaunch,
    pub(super) stride: Stride,
    pub(super) passed: u32,
    pub(super) context: Option<Context>,
    pub(super) spare: Vec<Event>,
    pub(super) made: usize,
    /// Launches that the open window still wants.
    pub(super) wanted: usize,
    pub(super) open: EventWindow,
    pub(super) closed: std::collections::VecDeque<EventWindow>,
    /// Windows that were closed.
    pub(super) windows: u64,
    /// Least time between two consecutive events.
    pub(super) tick: Option<f64>,
    /// Number of measurements.
    pub(super) ticks: u32,
    pub(super) looked: Ns,
    pub(super) told: usize,
    /// Launches that are with the driver.
    pub(super) begun: [Option<Begun>; BEGUN],
}

impl SamplerState {
    pub(super) fn event(&mut self, driver: &EventCalls) -> Option<Event> {
        if let Some(event) = self.spare.pop() {
            return Some(event);
        }
        if self.made >= MOST_EVENTS {
            return None;
        }
        let event = driver.create(true)?;
        self.made += 1;
        Some(event)
    }

    /// Records the event before a launch. Returns it, with the event for after the launch if
    /// `ends`.
    pub(super) fn half(&mut self, driver: &EventCalls, stream: Stream, ends: bool) -> Option<(Event, Event)> {
        let context = driver.current()?;
        // Events belong to one context: the first.
        if *self.context.get_or_insert(context) != context {
            return None;
        }
        let start = self.event(driver)?;
        let end = if ends { self.event(driver) } else { Some(NONE) };
        match end {
            Some(end) if driver.relaxed(|| driver.record(start, stream)) => Some((start, end)),
            end => {
                self.spare.push(start);
                self.spare.extend(end.filter(|event| *event != NONE));
                None
            }
        }
    }

    /// Keeps a launch until the driver returns.
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

    /// Takes the returned launch, unless forgotten.
    pub(super) fn take(&mut self, half: OpenSample) -> Option<Begun> {
        let place = self.begun.get_mut(usize::from(half.place))?;
        place.take_if(|begun| begun.sequence == half.sequence)
    }

    pub(super) fn measure_event(&mut self, driver: &EventCalls, stream: Stream) {
        let Some(event) = self.event(driver) else { return };
        if driver.relaxed(|| driver.record(event, stream)) {
            self.open.extra = Some((event, clock::now()));
        } else {
            self.spare.push(event);
        }
    }

    /// Fills in the device's times. False if the driver does not report them.
    pub(super) fn times(&mut self, driver: &EventCalls, window: &mut EventWindow) -> bool {
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
        if let (Some((extra, at)), Some(first)) = (window.extra, window.taken.first())
            && first.point.ended_after(at)
            && let Some(tick) = driver.elapsed(first.end, extra)
            && tick >= 0.0
        {
            self.tick = Some(self.tick.map_or(tick, |least| least.min(tick)));
            self.ticks += 1;
        }
        true
    }

    /// Reports a window's samples.
    pub(super) fn tell(&mut self, around: SamplerContext<'_>, window: &EventWindow) {
        let serves = !around.link.sampling();
        let points: Vec<Point> = window.taken.iter().map(|taken| taken.point).collect();
        for sample in window::samples(&points, self.tick.unwrap_or(0.0)) {
            let (kind, a, b) = match sample.bounds {
                Some((least, most)) if serves => (Kind::Between, least, most),
                _ => (Kind::Sample, sample.time, sample.gap),
            };
            around.link.write(kind, sample.at, sample.kernel, a, b);
            if let Some((least, most)) = sample.bounds.filter(|_| !serves) {
                let (over, short) = (sample.time.saturating_sub(least), most.saturating_sub(sample.time));
                around
                    .link
                    .write(Kind::SampleError, sample.at, sample.kernel, over, short);
                self.told += 1;
            }
            self.told += 1;
        }
        // The broker reads five times a second anyway; a ring costs the job a system call and, for
        // a while, a core.
        if !serves && self.told >= RING_AT {
            self.told = 0;
            around.link.fence_and_ring();
        }
    }

    pub(super) fn take_back(&mut self, window: EventWindow) {
        let events = window.taken.iter().flat_map(|taken| [taken.start, taken.end]);
        self.spare.extend(
            events
                .chain(window.extra.map(|(event, _)| event))
                .filter(|event| *event != NONE),
        );
    }
}
