//! The session of one process: what all hooks share.
//!
//! It is made once, at the first successful `cuInit`, and never freed: threads may be inside when
//! the process ends. Everything a launch touches is an atomic; while no broker is attached the lane
//! is private memory whose mode says `Free`.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use weft_protocol::Ns;
use weft_protocol::lane::{Kind, Mode, flags};
use weft_protocol::transport;

use super::active_streams::Busy;
use super::autotune::Tuning;
use super::completion::{QUANTUM, Settle};
use super::post_launch::{Rest, Step, Want};
use super::streams::{Account, Place, Streams};
use super::ticket_lock::Turn;
use crate::admission::DeviceAdmission;
use crate::client::costs::Costs;
use crate::client::link::BrokerLink;
use crate::client::settings::Settings;
use crate::client::{clock, deferral};
use crate::driver::events::EventCalls;
use crate::driver::stream::{Stream, own_stream};
use crate::internal_error::{caught, failpoint, fails_at, guarded};
use crate::kernels::launch::{LaunchInfo, LaunchKind};
use crate::profiler::{Around, Half, Look, Sampler};
use crate::thread;

/// Credit for so many times the unmarked work is plenty.
const PLENTY: Ns = 4;

/// The session.
#[derive(Debug)]
pub struct Session {
    /// What ties it to the broker.
    pub link: BrokerLink,
    /// The driver's functions.
    pub driver: EventCalls,
    /// What kernels may well take that are charged much less, and whether there are any.
    pub longs: Costs,
    has_longs: AtomicBool,
    /// The device does not switch between processes: what kernels may take at worst is nothing to
    /// go by.
    never_switches: AtomicBool,
    /// Whether the job times its own kernels just now.
    pub tuning: Tuning,
    /// Predicted times of graphs, added up from their kernels'.
    pub sums: Costs,
    /// Whose turn it is.
    pub turn: Turn,
    /// Work a stream.
    pub streams: Streams,
    /// Its ends.
    pub settle: Settle,
    /// Stage-1 samples.
    pub sampler: Sampler,
    /// Captures under way in the process.
    pub captures: AtomicU32,
    /// The heartbeat at which the broker was found standing still, plus one; 0 = it was not.
    pub standstill: AtomicU64,
    /// The process became idle and has launched nothing since: the next launch finds an idle
    /// device.
    pub(super) rested: AtomicBool,
    /// From this time on the gate is open, because somebody waits for what was left behind at it.
    pub hurry: AtomicU64,
    /// When the device is done with what was launched as a background job, as predicted.
    pub free_at: AtomicU64,
    /// The account of the stream to which a background job launched last.
    last_place: AtomicU32,
    /// Its place on the device.
    pub admission: DeviceAdmission,
    /// The streams with work.
    pub(super) busy: Busy,
}

impl Session {
    /// A session without a broker.
    pub fn make(driver: EventCalls, settings: Settings) -> Result<Session, transport::Error> {
        Ok(Session {
            link: BrokerLink::new(settings)?,
            driver,
            longs: Costs::few(),
            has_longs: AtomicBool::new(false),
            never_switches: AtomicBool::new(false),
            sums: Costs::few(),
            tuning: Tuning::default(),
            turn: Turn::default(),
            streams: Streams::default(),
            settle: Settle::default(),
            sampler: Sampler::default(),
            captures: AtomicU32::new(0),
            hurry: AtomicU64::new(Ns::MAX),
            free_at: AtomicU64::new(0),
            last_place: AtomicU32::new(0),
            standstill: AtomicU64::new(0),
            rested: AtomicBool::new(false),
            admission: DeviceAdmission::default(),
            busy: Busy::default(),
        })
    }

    pub(super) fn mode(&self) -> Mode {
        // A number that is no mode means that the broker talks nonsense: behave as without it.
        Mode::from_word(self.link.lane.orders.mode.load(Ordering::Relaxed)).unwrap_or(Mode::Free)
    }

    #[inline]
    pub(super) fn cost(&self, kernel: u64, kind: LaunchKind, hint: Ns) -> Ns {
        if hint != 0 {
            return hint;
        }
        if let Some(cost) = self.link.costs.get(kernel) {
            return cost;
        }
        if kind == LaunchKind::Graph
            && let Some(sum) = self.sums.get(kernel)
        {
            return sum;
        }
        self.link.lane.orders.unknown_cost.load(Ordering::Relaxed)
    }

    /// What kernels may well take that are charged much less.
    pub fn know_long(&self, times: &[(u64, Ns)]) {
        for (kernel, time) in times {
            self.longs.set(*kernel, *time);
        }
        let matters = !self.never_switches.load(Ordering::Acquire);
        self.has_longs.store(matters, Ordering::Release);
    }

    /// The device turned out to be shared under MPS. The broker could not know it when it told what
    /// kernels may take.
    pub fn never_switches(&self) {
        self.never_switches.store(true, Ordering::Release);
        self.has_longs.store(false, Ordering::Release);
    }

    /// What a kernel of this cost may well take.
    #[inline]
    pub(super) fn long(&self, kernel: u64, cost: Ns) -> Ns {
        match self.has_longs.load(Ordering::Acquire) {
            true => self.longs.get(kernel).map_or(cost, |long| long.max(cost)),
            false => cost,
        }
    }

    /// A graph whose own duration was not learnt costs what its kernels cost together.
    pub fn learn_graph(&self, hash: u64, kernels: &[u64]) {
        let unknown = self.link.lane.orders.unknown_cost.load(Ordering::Relaxed);
        let sum = kernels.iter().fold(0, |sum: Ns, kernel| {
            sum.saturating_add(self.link.costs.get(*kernel).unwrap_or(unknown))
        });
        self.sums.set(hash, sum);
    }

    /// See [`super::before_launch`]. What is inlined into the hook is what a job without company
    /// costs; the rest is behind a call that also keeps a panic from the job.
    #[inline(always)]
    pub fn before_launch(&self, launch: &LaunchInfo) -> Step {
        let mode = self.mode();
        if mode == Mode::Free {
            return Step::NOTHING;
        }
        let counters = &self.link.lane.counters;
        match launch.kind {
            LaunchKind::Kernel => counters.launches.fetch_add(1, Ordering::Relaxed),
            LaunchKind::Graph => counters.graph_launches.fetch_add(1, Ordering::Relaxed),
        };
        if launch.capturing || launch.kernel_hash == 0 {
            self.count_odd(launch.capturing, launch.kernel_hash);
            if launch.capturing {
                return Step::NOTHING;
            }
        }
        let flags = self.link.lane.orders.flags.load(Ordering::Relaxed);
        // Sampled in one launch of hundreds while the job serves: see `Sampler::due`.
        let serving = flags & flags::SAMPLE != 0;
        match mode {
            Mode::Free | Mode::Alone => {}
            Mode::Foreground => {
                let onto_idle = match (launch.kind, launch.cost_hint) {
                    (LaunchKind::Kernel, 0) => self.hold_kernel(launch.kernel_hash, launch.stream),
                    (kind, hint) => self.hold(launch.kernel_hash, launch.stream, kind, hint),
                };
                if serving && self.sampler.due(onto_idle) {
                    return self.watch(launch, Look::Serve { onto_idle });
                }
            }
            Mode::Background => {
                let step = match (launch.kind, launch.cost_hint) {
                    (LaunchKind::Kernel, 0) => self.fill_kernel(launch.kernel_hash, launch.stream),
                    (kind, hint) => self.fill(launch.kernel_hash, launch.stream, kind, hint),
                };
                if step.waits() {
                    return step;
                }
                let onto_idle = step.is_first();
                if serving && self.sampler.due(onto_idle) {
                    // A sampled launch gets no mark; the next one's mark is behind it, too.
                    let sampled = self.watch(launch, Look::Serve { onto_idle });
                    return if sampled.is_nothing() { step } else { sampled };
                }
                return step;
            }
        }
        if flags & flags::PROFILE != 0 {
            return self.watch(launch, Look::Profile);
        }
        Step::NOTHING
    }

    #[cold]
    fn count_odd(&self, capturing: bool, kernel: u64) {
        let counters = &self.link.lane.counters;
        if capturing {
            counters.captured.fetch_add(1, Ordering::Relaxed);
        }
        if kernel == 0 {
            counters.unnamed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A launch that somebody wants to know more about than that it was. Its parts go by
    /// themselves: a launch whose address is taken would lie on the stack of every hook, and the
    /// hook could not end by a jump to the driver.
    #[inline(always)]
    pub(super) fn watch(&self, launch: &LaunchInfo, look: Look) -> Step {
        self.watch_parts(launch.kernel_hash, launch.stream, launch.kind, launch.cost_hint, look)
    }

    #[cold]
    #[inline(never)]
    fn watch_parts(&self, kernel_hash: u64, stream: Stream, kind: LaunchKind, cost_hint: Ns, look: Look) -> Step {
        let launch = LaunchInfo {
            kernel_hash,
            stream,
            kind,
            cost_hint,
            // Such a launch is not looked at.
            capturing: false,
        };
        guarded(|| {
            failpoint("sample");
            self.sampler.before(self.around(), &launch, look)
        })
        .flatten()
        .map_or(Step::NOTHING, |half| Step::sampled(half.place, half.sequence))
    }

    /// [`Session::hold`] for what is launched most, where nothing has to be searched for: the same
    /// in the same order, in code that calls no other, so that it saves no registers, and cannot
    /// panic, so that nothing guards it.
    #[inline(never)]
    fn hold_kernel(&self, kernel: u64, stream: Stream) -> bool {
        let orders = &self.link.lane.orders;
        let slowly = || self.hold(kernel, stream, LaunchKind::Kernel, 0);
        let Some(now) = clock::at_once() else { return slowly() };
        let epoch = orders.epoch.load(Ordering::Relaxed) as usize;
        let unknown = orders.unknown_cost.load(Ordering::Relaxed);
        let Some(cost) = self.link.costs.at_once(kernel, unknown) else {
            return slowly();
        };
        if fails_at("hold") {
            return slowly();
        }
        // Last, because it changes something.
        let Some(ends_silence) = self.busy.mark_at_once(own_stream(stream)) else {
            return slowly();
        };
        self.launched(kernel, stream, LaunchKind::Kernel, now, cost);
        self.link.epoch_page.bump(epoch);
        if ends_silence && self.link.wants_ring() {
            return self.end_silence();
        }
        self.rested()
    }

    #[cold]
    #[inline(never)]
    fn end_silence(&self) -> bool {
        self.link.wake_broker();
        self.rested()
    }

    #[inline(never)]
    pub(super) fn hold(&self, kernel: u64, stream: Stream, kind: LaunchKind, hint: Ns) -> bool {
        caught(|| self.hold_now(kernel, stream, kind, hint)).unwrap_or(false)
    }

    /// A foreground job's launch; true if it is the first since the job was idle. It takes two
    /// locked instructions (a number for the record, the launch epoch), a third where it ends a
    /// silence, and one look at the clock.
    ///
    /// The order is what makes it sound:
    /// * The record, then the launch epoch. The broker reads the launch epochs, then the records,
    ///   then gives credit bound to what it read of the launch epochs: a launch epoch that it has
    ///   seen raised means a record that it can see. So credit that was given without knowing of
    ///   this launch is bound to a sum that this launch changes, and is void before the driver
    ///   hears of it.
    /// * The launch epoch is raised by a sequentially consistent read-modify-write, and after it
    ///   comes the look whether the broker sleeps. The broker says that it sleeps, then looks at
    ///   the records once more. Whichever is first, one of the two sees the other: no silence ends
    ///   unnoticed.
    #[inline(always)]
    fn hold_now(&self, kernel: u64, stream: Stream, kind: LaunchKind, hint: Ns) -> bool {
        failpoint("hold");
        // The slowest instruction of all (11 ns): early, so that what follows runs beside it.
        let now = clock::now();
        let epoch = self.link.lane.orders.epoch.load(Ordering::Relaxed) as usize;
        // Before the record: another thread's synchronisation in between must not tell that nothing
        // is left.
        let ends_silence = self.busy.mark(own_stream(stream));
        self.launched(kernel, stream, kind, now, self.cost(kernel, kind, hint));
        self.link.epoch_page.bump(epoch);
        if ends_silence {
            self.link.ring();
        }
        self.rested()
    }

    /// Whether this is the first launch since the process was idle.
    #[inline(always)]
    fn rested(&self) -> bool {
        let rested = self.rested.load(Ordering::Relaxed);
        if rested {
            self.rested.store(false, Ordering::Relaxed);
        }
        rested
    }

    #[inline(always)]
    fn launched(&self, kernel: u64, stream: Stream, kind: LaunchKind, now: Ns, cost: Ns) {
        let kind = match kind {
            LaunchKind::Kernel => Kind::Launch,
            LaunchKind::Graph => Kind::Graph,
        };
        self.link.write(kind, now, kernel, cost, stream as u64);
    }

    /// [`Session::fill`] for what is launched most.
    #[inline(never)]
    fn fill_kernel(&self, kernel: u64, stream: Stream) -> Step {
        caught(|| self.fill_now(kernel, stream, LaunchKind::Kernel, 0, false)).unwrap_or(Step::NOTHING)
    }

    #[inline(never)]
    fn fill(&self, kernel: u64, stream: Stream, kind: LaunchKind, hint: Ns) -> Step {
        caught(|| self.fill_now(kernel, stream, kind, hint, false)).unwrap_or(Step::NOTHING)
    }

    /// The same for a launch that waits if it must.
    #[inline(never)]
    pub(super) fn fill_in_turn(&self, kernel: u64, stream: Stream, kind: LaunchKind, hint: Ns) -> Step {
        guarded(|| self.fill_now(kernel, stream, kind, hint, true)).unwrap_or(Step::NOTHING)
    }

    /// A background job's launch that has credit: four locked instructions (the credit, the
    /// stream's account, what was issued in all, the record's number), a fifth where it ends a
    /// silence, and one look at the clock.
    #[inline(always)]
    fn fill_now(&self, kernel: u64, stream: Stream, kind: LaunchKind, hint: Ns, waits: bool) -> Step {
        failpoint("fill");
        // Early, as in `hold_now`; once more where the launch has waited.
        let mut now = clock::now();
        let cost = self.cost(kernel, kind, hint);
        let own = own_stream(stream);
        let place = self.streams.place(own);
        let want = Want {
            kernel,
            cost,
            stream,
            place,
        };
        if !self.pass_at_once(kernel, cost, now) && !self.pass_for_peers(&want) {
            if !waits && deferral::leaves() {
                return Step::WAITS;
            }
            self.pass_in_turn(&want);
            now = clock::now();
            if self.mode() == Mode::Foreground {
                return self.let_out(&want, kind, now);
            }
        }
        self.busy.mark(own);
        self.issue(&want, now);
        self.launched(kernel, stream, kind, now, cost);
        Step::background(place, now, self.rested())
    }

    /// A launch that came to the gate as a background job's and leaves it as the foreground job's.
    /// It is booked as what it came as; but its record and its launch epoch are a foreground job's,
    /// and in that order ([`Session::hold_now`]): credit that others have for this job's silence is
    /// void before the driver hears of it.
    #[cold]
    fn let_out(&self, want: &Want, kind: LaunchKind, now: Ns) -> Step {
        let ends_silence = self.busy.mark(own_stream(want.stream));
        self.issue(want, now);
        self.launched(want.kernel, want.stream, kind, now, want.cost);
        self.link
            .epoch_page
            .bump(self.link.lane.orders.epoch.load(Ordering::Relaxed) as usize);
        if ends_silence {
            self.link.ring();
        }
        Step::background(want.place, now, self.rested())
    }

    /// Books work that went through the gate.
    pub(super) fn issue(&self, want: &Want, now: Ns) {
        if self.streams.issue(want.place, want.cost, now) {
            self.settle.begins(now);
        }
        // Two threads at once may lose one of the two costs: the device is then asked a little
        // early.
        let free = self.free_at.load(Ordering::Relaxed).max(now).saturating_add(want.cost);
        self.free_at.store(free, Ordering::Relaxed);
        self.link.lane.reports.issued.fetch_add(want.cost, Ordering::AcqRel);
    }

    /// See [`super::after_launch`].
    #[inline(always)]
    pub fn after_launch(&self, step: Step, stream: Stream, result: u32) {
        match step.rest() {
            Rest::Nothing => {}
            Rest::Background { place, at } => {
                let elsewhere = self.last_place.load(Ordering::Relaxed) != u32::from(place.at);
                if elsewhere {
                    self.last_place.store(u32::from(place.at), Ordering::Relaxed);
                }
                if let Some(account) = self.streams.account(place.at)
                    && (elsewhere || account.unmarked() >= QUANTUM)
                {
                    self.marks(stream, place, at, result, elsewhere);
                }
            }
            Rest::Sampled { place, sequence } => self.sampled(Half { place, sequence }, result),
        }
    }

    #[cold]
    fn sampled(&self, half: Half, result: u32) {
        guarded(|| self.sampler.after(self.around(), half, result));
    }

    /// So much work is unmarked that it may be time for a mark.
    #[inline(never)]
    fn marks(&self, stream: Stream, place: Place, at: Ns, result: u32, elsewhere: bool) {
        caught(|| self.mark_now(stream, place, at, result, elsewhere));
    }

    /// `elsewhere`: the launch before was to another stream.
    fn mark_now(&self, stream: Stream, place: Place, at: Ns, result: u32, elsewhere: bool) {
        failpoint("mark");
        let unmarked = self.streams.account(place.at).map_or(0, Account::unmarked);
        if result != 0 {
            return;
        }
        // With little credit left the next launch will wait for just these ends; with much of it
        // nobody waits for them.
        let left = u64::try_from(self.link.lane.orders.credit.load(Ordering::Relaxed)).unwrap_or(0);
        if unmarked < QUANTUM {
            // Who waits puts a mark where he is about to launch. A job that goes from stream to
            // stream has its work on others then, where nobody may put one any more, and work
            // without a mark counts as ended some ms later.
            if elsewhere && left < QUANTUM * PLENTY && self.captures.load(Ordering::Acquire) == 0 {
                let _whole = thread::uncancelled();
                self.settle.mark(&self.driver, &self.streams, place, stream);
            }
            return;
        }
        if left > unmarked.saturating_mul(PLENTY) && !self.settle.due(at) {
            return;
        }
        // Only here: in a burst with plenty of credit each launch comes as far as this, and the two
        // changes of the thread's state take 15 ns.
        let _whole = thread::uncancelled();
        if self.captures.load(Ordering::Acquire) == 0 {
            self.settle.mark(&self.driver, &self.streams, place, stream);
        }
        self.ask_device(at);
    }

    /// What the sampler needs of it.
    fn around(&self) -> Around<'_> {
        Around {
            link: &self.link,
            driver: &self.driver,
            captures: &self.captures,
        }
    }

    /// What was sampled and not told yet is told: the process ends.
    pub fn tell_samples(&self) {
        self.sampler.farewell(self.around());
    }

    /// How often what was launched is told, as far as it was not.
    pub fn tell_launches(&self) {
        self.sampler.tell_launches(self.around());
    }

    /// A synchronising call returned, in stage 1.
    pub(super) fn sampler_synced(&self) {
        self.sampler.synced(self.around());
    }
}
