//! Stage 1: how long the job's kernels run, and how long the device idles after them.
//!
//! Now and then a run of launches (a *window*) is put between pairs of events; the times are read later, when the device has long passed them,
//! and go to the broker as records. Nothing here ever waits for the device.
//!
//! * The share of the job's time that goes into it is measured and kept ([`budget`]).
//! * A kernel that was hardly sampled yet opens a small window of its own, so that every identity gets samples; so does now and then
//!   one that was last before a synchronising call, after which the big gaps are. The launch after a window gets one event, which ends its last gap.
//! * No driver call at all while anything captures. One lock, only ever tried: a launch of another thread in between goes unsampled, and the
//!   gap before it is then not told.
//! * [`window`] takes the instrument's own cost off.
#![forbid(unsafe_code)]

mod budget;
mod tally;
mod window;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use weft_broker::protocol::Ns;
use weft_broker::protocol::lane::{Kind, RECORDS};

use self::budget::{Budget, Pause, Work};
use self::tally::Tally;
use self::window::{Point, Scale};
use super::driver::{Context, Driver, Event, Reached};
use super::state::Session;
use super::step::Step;
use super::{LaunchInfo, Stream, clock};

/// Launches of a full window.
const WINDOW: usize = 32;

/// Windows whose events wait to be read. Most are small.
const WINDOWS: usize = 128;

/// Events kept: enough for eight full windows. A driver takes some hundred bytes for each.
const EVENTS: usize = 8 * (2 * WINDOW + 2);

/// No event.
const NONE: Event = 0;

/// One launch in so many is sampled of an identity that was last before a synchronising call.
const TAIL_CHANCE: u32 = 8;

/// Most launches between two full windows.
const PAUSE: u32 = 256;

/// What a look at events that were not reached yet takes at most, of the sampler's own making: some calls of a microsecond.
const QUESTION: Ns = 5_000;

/// While the job serves up to so many launches are passed over between two looks, however short: what a look costs is spread over them.
const PASSED_OVER: u32 = 512;

/// So many samples told are a quarter of what a lane holds: the broker is to read them.
const RING_AT: usize = RECORDS / 4;

/// Between two looks whether a window can be read.
const LOOK: Ns = 200_000;

/// The rate of the device's clock against ours is taken over at least this time: below it, being interrupted between two readings shows.
const RATE_SPAN: Ns = 20_000_000;

/// Over this time one reading is enough: an event that another process's time slice kept from being reached at once shifts it by a few ms.
const LONG_SPAN: Ns = 1_000_000_000;

/// A reading that took longer was interrupted.
const AT_ONCE: Ns = 50_000;

/// Clocks that agree so far are the same clock, and two rates that do are the same rate.
const SAME_CLOCK: f64 = 0.05;

/// Windows are kept back until the rate is known; a job that never synchronises has none, and after so many it is taken to be 1. Where the broker was told
/// how slow its device is, that is the rate from the beginning.
const KEPT_BACK: usize = 512;

/// A sampled launch between its two halves: where it is kept, and its number.
#[derive(Debug, Clone, Copy)]
pub struct Half {
    /// Where.
    pub place: u16,
    /// Its number in the process.
    pub sequence: u64,
}

/// What is kept of it. As many as there are threads that launch at a time.
#[derive(Debug, Clone, Copy)]
struct Begun {
    start: Event,
    end: Event,
    stream: Stream,
    kernel: u64,
    sequence: u64,
    entered: Ns,
    launched: Ns,
    after_sync: bool,
}

/// Threads that launch at a time; with more, some of their launches go unsampled.
const BEGUN: usize = 16;

#[derive(Debug, Clone, Copy)]
struct Taken {
    start: Event,
    end: Event,
    stream: Stream,
    point: Point,
    after_sync: bool,
}

#[derive(Debug, Default)]
struct Window {
    taken: Vec<Taken>,
    /// One more event right behind the first launch's: what an event takes.
    extra: Option<Event>,
}

impl Window {
    /// Whether the device has passed all of it. The last launch first: while that is not done, it is the only question. What is before it on
    /// the same stream was passed as well, so most windows take one question.
    fn reached(&self, driver: &Driver) -> Reached {
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
struct Inside {
    budget: Budget,
    context: Option<Context>,
    spare: Vec<Event>,
    made: usize,
    /// Launches the open window still wants.
    wanted: usize,
    open: Window,
    closed: std::collections::VecDeque<Window>,
    /// Least time between two events in a row.
    tick: Option<f64>,
    rate: Option<f64>,
    /// A first reading of it, to be confirmed.
    rate_once: Option<f64>,
    kept_back: Vec<Vec<Point>>,
    /// An event reached at once when it was recorded, and that time.
    anchor: Option<(Event, Ns)>,
    looked: Ns,
    /// Samples told since the broker was last rung for.
    told: usize,
    /// Launches that are with the driver. Those of before `forget` are not found after.
    begun: [Option<Begun>; BEGUN],
}

/// Why a launch is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Stage 1.
    Profile,
    /// The job serves, and now and then a launch is sampled.
    Serve {
        /// It goes to an idle device.
        onto_idle: bool,
    },
}

/// What a launch of stage 1 is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Worth {
    Nothing,
    /// A sample: a big gap may follow.
    Tail,
    /// A sample: its identity has hardly any.
    Rare,
    /// The beginning of a full window.
    Window,
}

/// The sampler of a process.
#[derive(Debug, Default)]
pub struct Sampler {
    inside: Mutex<Inside>,
    /// Launches to be passed over before the next one is looked at, while the job serves. Not exact: threads may count one launch for two.
    skip: AtomicU32,
    /// The rate of the device's clock is known.
    rated: AtomicBool,
    sequence: AtomicU64,
    /// What is known of each identity.
    tally: Tally,
    /// How many launches go by, in stage 1, until the next full window.
    pause: Pause,
    /// A window is open, or was when anybody last held the lock: the next launch belongs to it, or ends it.
    open: AtomicBool,
    /// Nothing was launched since a synchronising call returned.
    after_sync: AtomicBool,
    /// The identity that was launched last.
    last: AtomicU64,
}

impl Sampler {
    /// Whether a serving job's launch is to be looked at. Costs a load and a store, no locked instruction. Until it is known how the device's clock
    /// runs, launches onto an idle device are, which tell it.
    #[inline(always)]
    pub fn due(&self, onto_idle: bool) -> bool {
        if onto_idle && !self.rated.load(Ordering::Relaxed) {
            return true;
        }
        match self.skip.load(Ordering::Relaxed) {
            0 => true,
            left => {
                self.skip.store(left - 1, Ordering::Relaxed);
                false
            }
        }
    }

    /// Before a launch: perhaps the first event.
    pub fn before(&self, session: &Session, launch: &LaunchInfo, look: Look) -> Step {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let (after_sync, worth) = match look {
            Look::Profile => (self.seen_after_sync(launch.kernel_hash), self.worth(launch.kernel_hash)),
            Look::Serve { onto_idle } => (onto_idle, Worth::Nothing),
        };
        if look == Look::Profile && worth == Worth::Nothing && !self.open.load(Ordering::Relaxed) {
            return Step::NOTHING;
        }
        let driver = &session.driver;
        if launch.kernel_hash == 0 || session.captures.load(Ordering::Acquire) != 0 || !driver.has_times() {
            return Step::NOTHING;
        }
        let Ok(mut inside) = self.inside.try_lock() else {
            return Step::NOTHING;
        };
        let inside = &mut *inside;
        let most = if look == Look::Profile { WINDOW } else { 1 };
        let full = inside.open.taken.len() >= most;
        let sampled = !full
            && match look {
                Look::Profile => inside.wanted > 0 || self.choose(inside, session, worth),
                Look::Serve { .. } => self.choose_serving(inside, session),
            };
        // A launch behind a sampled one tells when the gap after that ended, be it sampled itself or not.
        let belongs = sampled || !inside.open.taken.is_empty();
        self.open.store(belongs, Ordering::Relaxed);
        if !belongs {
            return Step::NOTHING;
        }
        let entered = clock::now();
        let half = inside.half(driver, launch, sampled);
        let launched = clock::now();
        inside.budget.spend(Work::Record, launched.saturating_sub(entered));
        let begun = half.map(|(start, end)| Begun {
            start,
            end,
            stream: launch.stream,
            kernel: launch.kernel_hash,
            sequence,
            entered,
            launched,
            after_sync,
        });
        match begun.and_then(|begun| inside.keep(begun)) {
            Some(place) => Step::sampled(place, sequence),
            None => {
                self.close(inside);
                Step::NOTHING
            }
        }
    }

    /// A launch of stage 1: whether it is the first since a synchronising call returned.
    #[inline]
    fn seen_after_sync(&self, kernel: u64) -> bool {
        self.last.store(kernel, Ordering::Relaxed);
        let after_sync = self.after_sync.load(Ordering::Relaxed);
        if after_sync {
            self.after_sync.store(false, Ordering::Relaxed);
        }
        after_sync
    }

    /// What a launch of stage 1 is worth. Most are worth nothing and end here: they cost two locked instructions.
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

    /// The open window is complete, or as complete as it gets.
    fn close(&self, inside: &mut Inside) {
        if inside.wanted > 0 || inside.open.taken.len() > 1 {
            inside.wanted = 0;
            self.pause.begin(PAUSE);
        }
        self.open.store(false, Ordering::Relaxed);
        let window = std::mem::take(&mut inside.open);
        if !window.taken.is_empty() {
            inside.closed.push_back(window);
        }
    }

    /// Whether this launch is sampled, while the job serves. The one after it ends its gap; then some are passed over.
    fn choose_serving(&self, inside: &mut Inside, session: &Session) -> bool {
        let now = clock::now();
        if now.saturating_sub(inside.looked) > LOOK {
            self.read(inside, session, now);
            if inside.rate.is_some() {
                self.rated.store(true, Ordering::Relaxed);
            }
        }
        let chosen = inside.budget.allows_serving(now) && inside.closed.len() < WINDOWS;
        inside.wanted = usize::from(chosen);
        // If it is sampled, the next launch ends its gap.
        let skip = if chosen { 0 } else { self.pause.some(PASSED_OVER) };
        self.skip.store(skip, Ordering::Relaxed);
        chosen
    }

    /// Whether this launch is sampled, and how many after it.
    fn choose(&self, inside: &mut Inside, session: &Session, worth: Worth) -> bool {
        let wanted = match worth {
            Worth::Nothing => return false,
            Worth::Tail | Worth::Rare => 1,
            Worth::Window => WINDOW,
        };
        let now = clock::now();
        if now.saturating_sub(inside.looked) > LOOK {
            self.read(inside, session, now);
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

    /// After it: the second event.
    pub fn after(&self, session: &Session, half: Half, result: u32) {
        let returned = clock::now();
        // The launch's own thread may wait for the lock a moment: it is held for some event calls at most.
        let Ok(mut inside) = self.inside.lock() else { return };
        let inside = &mut *inside;
        let Some(half) = inside.take(half) else { return };
        let driver = &session.driver;
        let ends = half.end != NONE;
        if result != 0
            || session.captures.load(Ordering::Acquire) != 0
            || (ends && !driver.relaxed(|| driver.record(half.end, half.stream)))
        {
            inside
                .spare
                .extend([half.start, half.end].into_iter().filter(|event| *event != NONE));
            self.close(inside);
            return;
        }
        let left = clock::now();
        inside.open.taken.push(Taken {
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
            },
            after_sync: half.after_sync,
        });
        if ends {
            if session.sampling() {
                self.tally.sampled(half.kernel);
            }
            // What an event takes is learnt from full windows, and where there are none from the first small ones.
            if inside.open.taken.len() == 1 && (inside.wanted >= WINDOW || inside.tick.is_none()) {
                inside.measure_event(driver, half.stream);
            }
            inside.wanted = inside.wanted.saturating_sub(1);
        } else {
            self.close(inside);
            self.skip.store(self.pause.some(PASSED_OVER), Ordering::Relaxed);
        }
        inside.budget.spend(Work::Record, clock::now().saturating_sub(returned));
    }

    /// A synchronising call returned: what is closed can be read.
    pub fn synced(&self, session: &Session) {
        self.after_sync.store(true, Ordering::Relaxed);
        self.tally.was_last(self.last.load(Ordering::Relaxed));
        let Ok(mut inside) = self.inside.try_lock() else { return };
        let inside = &mut *inside;
        let now = clock::now();
        if session.captures.load(Ordering::Acquire) == 0 && now.saturating_sub(inside.looked) > LOOK {
            self.read(inside, session, now);
        }
    }

    /// The context ends, and all events with it.
    pub fn forget(&self) {
        let Ok(mut inside) = self.inside.lock() else { return };
        inside.begun = [None; BEGUN];
        inside.context = None;
        inside.spare.clear();
        inside.made = 0;
        inside.wanted = 0;
        inside.open = Window::default();
        inside.closed.clear();
        inside.anchor = None;
    }

    /// Tells the broker how often what was launched, as far as it was not told.
    pub fn tell_launches(&self, session: &Session) {
        let now = clock::now();
        self.tally
            .tell(|kernel, launches| session.write(Kind::Counted, now, kernel, launches, 0));
    }

    /// The process ends: a job too short to tell the rate still tells its samples. No driver call: what was not read yet is lost.
    pub fn farewell(&self, session: &Session) {
        self.tell_launches(session);
        if let Ok(mut inside) = self.inside.try_lock()
            && !inside.kept_back.is_empty()
        {
            inside.flush(session);
        }
    }

    /// Reads the oldest closed windows that the device has passed, and tells the broker.
    fn read(&self, inside: &mut Inside, session: &Session, now: Ns) {
        inside.looked = now;
        let driver = &session.driver;
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
                            inside.tell(session, &window);
                        }
                        inside.budget.spend(Work::Read, clock::now().saturating_sub(asked));
                    }
                    Reached::Never => {}
                }
                inside.take_back(window);
            }
        });
        // The questions themselves at what they take: a driver that is asked about an event may do then what the job's own next question would
        // have made it do, and that is not the sampler's cost.
        inside
            .budget
            .spend(Work::Ask, (clock::now().saturating_sub(now)).min(QUESTION));
    }
}

impl Inside {
    fn event(&mut self, driver: &Driver) -> Option<Event> {
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
    fn half(&mut self, driver: &Driver, launch: &LaunchInfo, ends: bool) -> Option<(Event, Event)> {
        let context = driver.current()?;
        // Events belong to the first context that was sampled; a process with several is sampled in that one.
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

    /// Keeps a launch until it comes back from the driver. Where there is no room its events are spare again.
    fn keep(&mut self, begun: Begun) -> Option<u16> {
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
    fn take(&mut self, half: Half) -> Option<Begun> {
        let place = self.begun.get_mut(usize::from(half.place))?;
        place.take_if(|begun| begun.sequence == half.sequence)
    }

    fn measure_event(&mut self, driver: &Driver, stream: Stream) {
        let Some(event) = self.event(driver) else { return };
        if driver.relaxed(|| driver.record(event, stream)) {
            self.open.extra = Some(event);
        } else {
            self.spare.push(event);
        }
    }

    /// Fills in the device's times. False if the driver does not tell them.
    fn times(&mut self, driver: &Driver, window: &mut Window) -> bool {
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

    /// Compares the device's clock with ours at launches onto an idle device: there an event is reached when it is recorded.
    fn set_rate(&mut self, driver: &Driver, window: &mut Window) {
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

    fn tell(&mut self, session: &Session, window: &Window) {
        self.kept_back
            .push(window.taken.iter().map(|taken| taken.point).collect());
        if self.rate.is_none() {
            self.rate = session.stated_slowness();
        }
        if self.rate.is_none() && self.kept_back.len() < KEPT_BACK {
            return;
        }
        self.flush(session);
    }

    /// Tells what is kept back, with the rate that is known or the likeliest.
    fn flush(&mut self, session: &Session) {
        let scale = Scale {
            tick: self.tick.unwrap_or(0.0),
            rate: *self.rate.get_or_insert(self.rate_once.unwrap_or(1.0)),
        };
        for points in self.kept_back.drain(..) {
            for (sample, point) in window::samples(&points, scale).zip(&points) {
                session.write(Kind::Sample, point.launched, sample.kernel, sample.time, sample.gap);
                self.told += 1;
            }
        }
        // The broker reads at least five times a second without a ring, which would cost the job a system call and, for a while, a core.
        if session.sampling() && self.told >= RING_AT {
            self.told = 0;
            session.fence_and_ring();
        }
    }

    fn take_back(&mut self, window: Window) {
        let events = window.taken.iter().flat_map(|taken| [taken.start, taken.end]);
        self.spare
            .extend(events.chain(window.extra).filter(|event| *event != NONE));
    }
}
