//! Stage 1: how long the job's kernels run, and how long the device idles after them.
//!
//! Now and then a run of launches (a *window*) is put between pairs of events; the times are read
//! later, when the device has long passed them, and go to the broker as records. Nothing here ever
//! waits for the device.
//!
//! * The share of the job's time that goes into it is measured and kept ([`budget`]).
//! * A kernel that was hardly sampled yet opens a small window of its own, so that every identity
//!   gets samples; so does now and then one that was last before a synchronising call, after which
//!   the big gaps are. The launch after a window gets one event, which ends its last gap.
//! * No driver call at all while anything captures. One lock, only ever tried: a launch of another
//!   thread in between goes unsampled, and the gap before it is then not told.
//! * [`kept`] is what lies under the lock; [`window`] takes the instrument's own cost off.
#![forbid(unsafe_code)]

mod budget;
mod kept;
mod tally;
mod window;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use weft_protocol::Ns;
use weft_protocol::lane::Kind;

use self::budget::{Pause, Work};
use self::kept::{BEGUN, Begun, Inside, NONE, Taken, Window};
use self::tally::Tally;
use self::window::Point;
use crate::client::clock;
use crate::client::link::BrokerLink;
use crate::driver::events::{EventCalls, Reached};
use crate::kernels::launch::LaunchInfo;

/// What the sampler needs of the session that it samples for.
#[derive(Debug, Clone, Copy)]
pub struct Around<'a> {
    /// Where samples go.
    pub link: &'a BrokerLink,
    /// Events.
    pub driver: &'a EventCalls,
    /// Captures under way in the process: with any, no event is made.
    pub captures: &'a AtomicU32,
}

/// Launches of a full window.
const WINDOW: usize = 32;

/// Windows whose events wait to be read. Most are small.
const WINDOWS: usize = 128;

/// One launch in so many is sampled of an identity that was last before a synchronising call.
const TAIL_CHANCE: u32 = 8;

/// Most launches between two full windows.
const PAUSE: u32 = 256;

/// What a look at events that were not reached yet takes at most, of the sampler's own making: some
/// calls of a microsecond.
const QUESTION: Ns = 5_000;

/// Between two looks whether a window can be read.
const LOOK: Ns = 200_000;

/// A sampled launch between its two halves: where it is kept, and its number.
#[derive(Debug, Clone, Copy)]
pub struct Half {
    /// Where.
    pub place: u16,
    /// Its number in the process.
    pub sequence: u64,
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
    /// A sample: its identity has hardly any, or it goes onto an idle device, which tells the rate
    /// of the device's clock while that is not known.
    Rare,
    /// The beginning of a full window.
    Window,
}

/// The sampler of a process.
#[derive(Debug, Default)]
pub struct Sampler {
    inside: Mutex<Inside>,
    /// Launches to be passed over before the next one is looked at, while the job serves. Not
    /// exact: threads may count one launch for two.
    skip: AtomicU32,
    /// The rate of the device's clock is known.
    rated: AtomicBool,
    sequence: AtomicU64,
    /// What is known of each identity.
    tally: Tally,
    /// How many launches go by, in stage 1, until the next full window.
    pause: Pause,
    /// A window is open, or was when anybody last held the lock: the next launch belongs to it, or
    /// ends it.
    open: AtomicBool,
    /// Nothing was launched since a synchronising call returned.
    after_sync: AtomicBool,
    /// The identity that was launched last.
    last: AtomicU64,
}

impl Sampler {
    /// Whether a serving job's launch is to be looked at. Costs a load and a store, no locked
    /// instruction. Until it is known how the device's clock runs, launches onto an idle device
    /// are, which tell it.
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
    pub fn before(&self, around: Around<'_>, launch: &LaunchInfo, look: Look) -> Option<Half> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let (after_sync, worth) = match look {
            Look::Profile => {
                let after_sync = self.seen_after_sync(launch.kernel_hash);
                (after_sync, self.worth(launch.kernel_hash, after_sync))
            }
            Look::Serve { onto_idle } => (onto_idle, Worth::Nothing),
        };
        if look == Look::Profile && worth == Worth::Nothing && !self.open.load(Ordering::Relaxed) {
            return None;
        }
        let driver = around.driver;
        if !driver.has_times() {
            // A job that serves is not asked about each launch for nothing.
            self.rated.store(true, Ordering::Relaxed);
            self.skip.store(u32::MAX, Ordering::Relaxed);
        }
        if launch.kernel_hash == 0 || around.captures.load(Ordering::Acquire) != 0 || !driver.has_times() {
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
        // A launch behind a sampled one tells when the gap after that ended, be it sampled itself
        // or not.
        let belongs = sampled || !inside.open.taken.is_empty();
        self.open.store(belongs, Ordering::Relaxed);
        if !belongs {
            return None;
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
            Some(place) => Some(Half { place, sequence }),
            None => {
                self.close(inside);
                None
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

    /// What a launch of stage 1 is worth. Most are worth nothing and end here: they cost two locked
    /// instructions.
    #[inline]
    fn worth(&self, kernel: u64, after_sync: bool) -> Worth {
        let known = self.tally.launched(kernel);
        if self.pause.over() {
            Worth::Window
        } else if known.rare || (after_sync && !self.rated.load(Ordering::Relaxed)) {
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

    /// Whether this launch is sampled, while the job serves. The one after it ends its gap; then
    /// some are passed over.
    fn choose_serving(&self, inside: &mut Inside, around: Around<'_>) -> bool {
        let now = clock::now();
        if now.saturating_sub(inside.looked) > LOOK {
            self.read(inside, around, now);
        }
        let chosen = inside.budget.allows_serving(now) && inside.closed.len() < WINDOWS;
        inside.wanted = usize::from(chosen);
        // If it is sampled, the next launch ends its gap.
        if chosen {
            self.skip.store(0, Ordering::Relaxed);
        } else {
            self.pass_over(inside, now);
        }
        chosen
    }

    /// While the job serves: some launches go by until the next look.
    fn pass_over(&self, inside: &mut Inside, now: Ns) {
        let most = inside.stride.most(now, inside.passed);
        inside.passed = self.pause.some(most);
        self.skip.store(inside.passed, Ordering::Relaxed);
    }

    /// Whether this launch is sampled, and how many after it.
    fn choose(&self, inside: &mut Inside, around: Around<'_>, worth: Worth) -> bool {
        let wanted = match worth {
            Worth::Nothing => return false,
            Worth::Tail | Worth::Rare => 1,
            Worth::Window => WINDOW,
        };
        let now = clock::now();
        if now.saturating_sub(inside.looked) > LOOK {
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

    /// After it: the second event.
    pub fn after(&self, around: Around<'_>, half: Half, result: u32) {
        let returned = clock::now();
        // The launch's own thread may wait for the lock a moment: it is held for some event calls
        // at most.
        let Ok(mut inside) = self.inside.lock() else { return };
        let inside = &mut *inside;
        let Some(half) = inside.take(half) else { return };
        let driver = around.driver;
        let ends = half.end != NONE;
        if result != 0
            || around.captures.load(Ordering::Acquire) != 0
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
            if around.link.sampling() {
                self.tally.sampled(half.kernel);
            }
            // What an event takes is learnt from full windows, and where there are none from the
            // first small ones.
            if inside.open.taken.len() == 1 && (inside.wanted >= WINDOW || inside.tick.is_none()) {
                inside.measure_event(driver, half.stream);
            }
            inside.wanted = inside.wanted.saturating_sub(1);
        } else {
            self.close(inside);
            self.pass_over(inside, left);
        }
        inside.budget.spend(Work::Record, clock::now().saturating_sub(returned));
    }

    /// A synchronising call returned: what is closed can be read.
    pub fn synced(&self, around: Around<'_>) {
        self.after_sync.store(true, Ordering::Relaxed);
        self.tally.was_last(self.last.load(Ordering::Relaxed));
        let Ok(mut inside) = self.inside.try_lock() else { return };
        let inside = &mut *inside;
        let now = clock::now();
        if around.captures.load(Ordering::Acquire) == 0 && now.saturating_sub(inside.looked) > LOOK {
            self.read(inside, around, now);
        }
    }

    /// What comes between the last launch and the next one is none of the job's: an open window
    /// ends here, and so does the job's pause before the next launch.
    pub fn interrupt(&self) {
        self.after_sync.store(false, Ordering::Relaxed);
        if let Ok(mut inside) = self.inside.lock() {
            self.close(&mut inside);
        }
    }

    /// A context has ended (0: some context), and all events in it.
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
        inside.open = Window::default();
        inside.closed.clear();
        inside.anchor = None;
    }

    /// Tells the broker how often what was launched, as far as it was not told.
    pub fn tell_launches(&self, around: Around<'_>) {
        let now = clock::now();
        self.tally
            .tell(|kernel, launches| around.link.write(Kind::Counted, now, kernel, launches, 0));
    }

    /// The process ends: a job too short to tell the rate still tells its samples. No driver call:
    /// what was not read yet is lost.
    pub fn farewell(&self, around: Around<'_>) {
        self.tell_launches(around);
        if let Ok(mut inside) = self.inside.try_lock()
            && !inside.kept_back.is_empty()
        {
            inside.flush(around);
        }
    }

    /// Reads the oldest closed windows that the device has passed, and tells the broker.
    fn read(&self, inside: &mut Inside, around: Around<'_>, now: Ns) {
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
        if inside.rate.is_some() {
            self.rated.store(true, Ordering::Relaxed);
        }
        // The questions themselves at what they take: a driver that is asked about an event may do
        // then what the job's own next question would have made it do, and that is not the
        // sampler's cost.
        inside
            .budget
            .spend(Work::Ask, (clock::now().saturating_sub(now)).min(QUESTION));
    }
}
