// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stage-1 profiler: times the job's kernels and the device's idle time after them.
//!
//! Now and then a run of launches (a *window*) is put between pairs of events. Their times are read
//! when the device has passed them long ago. The profiler never waits for the device.
//!
//! * Its part of the job's time is measured and bounded ([`weft_gate::sampling`]).
//! * A rarely sampled kernel opens a small window. Now and then a kernel that is last before a
//!   synchronising call opens one too, because the big gaps are there. One event at the next launch
//!   ends the last gap.
//! * No driver call during a capture. The lock is only tried: a launch that finds it taken is not
//!   sampled, and the gap before it is not reported.
//! * [`kept`] is the state under the lock; [`window`] subtracts the measurement's own cost.
#![forbid(unsafe_code)]

mod kept;
mod stretches;
mod tally;
mod window;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use weft_gate::sampling::{AT_ONCE_NS, Pause, RARE, READ_INTERVAL_NS, Work};
use weft_protocol::Ns;
use weft_protocol::lane::Kind;

use self::kept::{BEGUN, Begun, EventWindow, NONE, SampledLaunch, SamplerState};
use self::stretches::Stretches;
use self::tally::Tally;
use self::window::Point;
use crate::client::clock;
use crate::client::link::BrokerLink;
use crate::driver::events::{EventCalls, Reached};
use crate::kernels::launch::Launch;

/// The parts of the session that the sampler needs.
#[derive(Debug, Clone, Copy)]
pub struct SamplerContext<'a> {
    pub link: &'a BrokerLink,
    pub driver: &'a EventCalls,
    /// Captures under way in the process: no event is made meanwhile.
    pub captures: &'a AtomicU32,
}

const WINDOW: usize = 32;

/// Most windows that wait to be read.
const WINDOWS: usize = 128;

/// Number of launches that are last before a synchronising call, of which one is sampled.
const TAIL_CHANCE: u32 = 8;

/// Most launches between two full windows.
const PAUSE: u32 = 256;

/// Most that queries of pending events cost the budget, ns.
const QUERY_COST_NS: Ns = 5_000;

/// Launch time above which the thread had no core. The device may have waited for it, so the launch
/// is no sample.
const INTERRUPTED_NS: Ns = 10_000_000;

/// Time of two records above which a thread without a core explains it better than a slow driver,
/// ns: a record takes about 1 us.
const RECORDS_NS: Ns = 4_000;

/// Small windows in which an event's cost is measured.
const TICKS: u32 = 16;

/// A sampled launch between its two events.
#[derive(Debug, Clone, Copy)]
pub struct OpenSample {
    pub place: u16,
    pub sequence: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    Profile,
    /// A serving job's occasional sample.
    Serve {
        /// Whether the device is idle at the launch.
        onto_idle: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Worth {
    Nothing,
    /// A big gap may follow.
    Tail,
    /// Its identity has few samples.
    Rare,
    Window,
}

#[derive(Debug, Default)]
pub struct Sampler {
    inside: Mutex<SamplerState>,
    /// Launches to pass over while serving. Inexact, as in [`Pause`].
    skip: AtomicU32,
    sequence: AtomicU64,
    tally: Tally,
    stretches: Stretches,
    /// Launches until the next full window, in stage 1.
    pause: Pause,
    /// Whether the next launch belongs to a window or ends it.
    open: AtomicBool,
    /// Whether no launch came since a synchronising call.
    after_sync: AtomicBool,
    last: AtomicU64,
}

impl Sampler {
    /// Whether to sample a serving job's launch, by a load and a store.
    #[inline(always)]
    pub fn due(&self) -> bool {
        match self.skip.load(Ordering::Relaxed) {
            0 => true,
            left => {
                self.skip.store(left - 1, Ordering::Relaxed);
                false
            }
        }
    }

    /// Asks for a serving job's next launch, as far as the budget allows: its kernel has no time
    /// yet.
    #[inline]
    pub fn soon(&self) {
        self.skip.store(0, Ordering::Relaxed);
    }

    /// Records the first event of a launch that is sampled.
    pub fn before(&self, around: SamplerContext<'_>, launch: Launch, look: Look) -> Option<OpenSample> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let (after_sync, worth) = match look {
            Look::Profile => {
                let after_sync = self.seen_after_sync(launch.identity());
                (after_sync, self.worth(launch.identity()))
            }
            Look::Serve { onto_idle } => (onto_idle, Worth::Nothing),
        };
        if look == Look::Profile && worth == Worth::Nothing && !self.open.load(Ordering::Relaxed) {
            return None;
        }
        let driver = around.driver;
        if !driver.has_times() {
            // A serving job needs no more samples.
            self.skip.store(u32::MAX, Ordering::Relaxed);
        }
        if launch.identity() == 0 || around.captures.load(Ordering::Acquire) != 0 || !driver.has_times() {
            return None;
        }
        let Ok(mut inside) = self.inside.try_lock() else {
            return None;
        };
        let inside = &mut *inside;
        let most = if look == Look::Profile { WINDOW } else { 1 };
        let full = inside.open.taken.len() >= most;
        let sampled = !full
            && match look {
                Look::Profile => inside.wanted > 0 || self.choose(inside, around, worth),
                Look::Serve { .. } => self.choose_serving(inside, around),
            };
        // The launch after a sampled one ends its gap.
        let belongs = sampled || !inside.open.taken.is_empty();
        self.open.store(belongs, Ordering::Relaxed);
        if !belongs {
            return None;
        }
        let entered = clock::now();
        // After other work the first event is reached as the kernel begins.
        let first = inside.open.taken.is_empty();
        let onto_idle = first && (after_sync || driver.relaxed(|| driver.is_idle(launch.stream())));
        let asked = clock::now();
        let half = inside.half(driver, launch.stream(), sampled);
        let launched = clock::now();
        inside.budget.spend(Work::Record, launched.saturating_sub(entered));
        let begun = half.map(|(start, end)| Begun {
            start,
            end,
            stream: launch.stream(),
            kernel: launch.identity(),
            sequence,
            entered,
            asked,
            launched,
            onto_idle,
        });
        match begun.and_then(|begun| inside.keep(begun)) {
            Some(place) => Some(OpenSample { place, sequence }),
            None => {
                self.close(inside);
                None
            }
        }
    }

    /// Notes a stage-1 launch. True: the first since a synchronising call.
    #[inline]
    fn seen_after_sync(&self, kernel: u64) -> bool {
        self.last.store(kernel, Ordering::Relaxed);
        self.stretches.launched(kernel);
        let after_sync = self.after_sync.load(Ordering::Relaxed);
        if after_sync {
            self.after_sync.store(false, Ordering::Relaxed);
        }
        after_sync
    }

    /// Most launches end here, after two locked instructions.
    #[inline]
    fn worth(&self, kernel: u64) -> Worth {
        let known = self.tally.launched(kernel);
        if self.pause.over() {
            Worth::Window
        } else if known.rare {
            Worth::Rare
        } else if known.tail && self.pause.chance(TAIL_CHANCE) {
            Worth::Tail
        } else {
            Worth::Nothing
        }
    }

    fn close(&self, inside: &mut SamplerState) {
        if inside.wanted > 0 || inside.open.taken.len() > 1 {
            inside.wanted = 0;
            self.pause.begin(PAUSE);
        }
        self.open.store(false, Ordering::Relaxed);
        let window = std::mem::take(&mut inside.open);
        if !window.taken.is_empty() {
            inside.windows += 1;
            inside.closed.push_back(window);
        }
    }

    fn choose_serving(&self, inside: &mut SamplerState, around: SamplerContext<'_>) -> bool {
        let now = clock::now();
        if now.saturating_sub(inside.looked) > READ_INTERVAL_NS {
            self.read(inside, around, now);
        }
        let chosen = inside.budget.allows_serving(now) && inside.closed.len() < WINDOWS;
        inside.wanted = usize::from(chosen);
        // The next launch ends the sample's gap.
        if chosen {
            self.skip.store(0, Ordering::Relaxed);
        } else {
            self.pass_over(inside, now);
        }
        chosen
    }

    fn pass_over(&self, inside: &mut SamplerState, now: Ns) {
        let most = inside.stride.most(now, inside.passed);
        inside.passed = self.pause.some(most);
        self.skip.store(inside.passed, Ordering::Relaxed);
    }

    fn choose(&self, inside: &mut SamplerState, around: SamplerContext<'_>, worth: Worth) -> bool {
        let wanted = match worth {
            Worth::Nothing => return false,
            Worth::Tail | Worth::Rare => 1,
            Worth::Window => WINDOW,
        };
        let now = clock::now();
        if now.saturating_sub(inside.looked) > READ_INTERVAL_NS {
            self.read(inside, around, now);
        }
        if !inside.budget.allows(now, worth == Worth::Rare) || inside.closed.len() >= WINDOWS {
            if worth == Worth::Window {
                self.pause.begin(PAUSE);
            }
            return false;
        }
        inside.wanted = wanted;
        true
    }

    pub fn after(&self, around: SamplerContext<'_>, half: OpenSample, result: u32) {
        let returned = clock::now();
        // The launching thread may wait: for some event calls at most.
        let Ok(mut inside) = self.inside.lock() else { return };
        let inside = &mut *inside;
        let Some(half) = inside.take(half) else { return };
        let driver = around.driver;
        let ends = half.end != NONE;
        let taken = returned.saturating_sub(half.entered);
        let serves = !around.link.sampling();
        let kept_core = match half.onto_idle && serves {
            true => inside.usual_launch.is_usual(taken, AT_ONCE_NS),
            false => taken <= INTERRUPTED_NS,
        };
        // If the device has passed the first event, it may have waited for the launch, or for the
        // second event.
        let behind_work = || half.onto_idle || !serves || !ends || driver.query(half.start) == Reached::NotYet;
        let mut waited_for_host = false;
        let counts = result == 0
            && around.captures.load(Ordering::Acquire) == 0
            && driver.relaxed(|| {
                let recorded = !ends || driver.record(half.end, half.stream);
                waited_for_host = !behind_work();
                recorded
            });
        let left = clock::now();
        let mut unsure = match (kept_core, waited_for_host) {
            (_, true) => left.saturating_sub(half.asked),
            (false, false) => taken,
            (true, false) => 0,
        };
        let records = half.launched.saturating_sub(half.asked) + left.saturating_sub(returned);
        // On an idle device the time of the records is the kernel's, too.
        if half.onto_idle && serves && ends && !inside.usual_records.kept_core(records, RECORDS_NS) {
            unsure = unsure.saturating_add(records);
        }
        if !counts || (unsure > 0 && !ends) {
            inside
                .spare
                .extend([half.start, half.end].into_iter().filter(|event| *event != NONE));
            self.close(inside);
            return;
        }
        inside.open.taken.push(SampledLaunch {
            start: half.start,
            end: half.end,
            stream: half.stream,
            point: Point {
                kernel: half.kernel,
                sequence: half.sequence,
                start: 0.0,
                end: f64::INFINITY,
                entered: half.entered,
                launched: half.launched,
                returned,
                left,
                onto_idle: half.onto_idle,
                unsure,
            },
        });
        if ends {
            if around.link.sampling() {
                self.tally.sampled(half.kernel);
            }
            // An event's cost is measured in full windows, and otherwise in the first small ones.
            if inside.open.taken.len() == 1 && (inside.wanted >= WINDOW || inside.ticks < TICKS) {
                inside.measure_event(driver, half.stream);
            }
            inside.wanted = inside.wanted.saturating_sub(1);
        } else {
            self.close(inside);
            self.pass_over(inside, left);
        }
        inside.budget.spend(Work::Record, clock::now().saturating_sub(returned));
    }

    /// Reads closed windows after a synchronising call, and the first windows even if they are
    /// open.
    pub fn synced(&self, around: SamplerContext<'_>) {
        self.after_sync.store(true, Ordering::Relaxed);
        self.tally.was_last(self.last.load(Ordering::Relaxed));
        if let Some(repeats) = self.stretches.ended() {
            let counters = &around.link.lane.counters;
            counters.stretches.fetch_add(1, Ordering::Relaxed);
            counters.repeated.fetch_add(u64::from(repeats), Ordering::Relaxed);
        }
        let Ok(mut inside) = self.inside.try_lock() else { return };
        let inside = &mut *inside;
        let now = clock::now();
        // A short job may have no further launch. The gaps after these windows are lost.
        let first = inside.windows < RARE && !inside.open.taken.is_empty();
        if first {
            self.close(inside);
        }
        let due = first || now.saturating_sub(inside.looked) > READ_INTERVAL_NS;
        if around.captures.load(Ordering::Acquire) == 0 && due {
            self.read(inside, around, now);
        }
    }

    /// Whether a window is open.
    #[inline]
    pub fn has_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Closes and reads a serving job's window after a synchronising call: no launch may follow.
    #[cold]
    pub fn ended(&self, around: SamplerContext<'_>) {
        let Ok(mut inside) = self.inside.try_lock() else { return };
        let inside = &mut *inside;
        self.close(inside);
        if around.captures.load(Ordering::Acquire) == 0 {
            self.read(inside, around, clock::now());
        }
    }

    /// Ends an open window and the pause, because work of weft's own follows.
    pub fn interrupt(&self) {
        self.after_sync.store(false, Ordering::Relaxed);
        if let Ok(mut inside) = self.inside.lock() {
            self.close(&mut inside);
        }
    }

    /// Forgets the events of an ended context; 0: an unknown context.
    pub fn forget(&self, context: usize) {
        let Ok(mut inside) = self.inside.lock() else { return };
        if context != 0 && inside.context.is_some_and(|own| own != context) {
            return;
        }
        inside.begun = [None; BEGUN];
        inside.context = None;
        inside.spare.clear();
        inside.made = 0;
        inside.wanted = 0;
        inside.open = EventWindow::default();
        inside.closed.clear();
    }

    pub fn tell_launches(&self, around: SamplerContext<'_>) {
        let now = clock::now();
        self.tally
            .tell(|kernel, launches| around.link.write(Kind::Counted, now, kernel, launches, 0));
    }

    fn read(&self, inside: &mut SamplerState, around: SamplerContext<'_>, now: Ns) {
        inside.looked = now;
        let driver = around.driver;
        if inside.closed.is_empty() || driver.current() != inside.context {
            return;
        }
        driver.relaxed(|| {
            while let Some(mut window) = inside.closed.pop_front() {
                match window.reached(driver) {
                    Reached::NotYet => {
                        inside.closed.push_front(window);
                        break;
                    }
                    Reached::Yes => {
                        let asked = clock::now();
                        if inside.times(driver, &mut window) {
                            inside.tell(around, &window);
                        }
                        inside.budget.spend(Work::Read, clock::now().saturating_sub(asked));
                    }
                    Reached::Never => {}
                }
                inside.take_back(window);
            }
        });
        // A query counts at its own cost: the driver may do work that the job's next query would
        // have caused.
        inside
            .budget
            .spend(Work::Ask, (clock::now().saturating_sub(now)).min(QUERY_COST_NS));
    }
}
