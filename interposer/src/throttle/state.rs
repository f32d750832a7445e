//! The session of one process on a device, which all hooks share.
//!
//! Made at the first successful `cuInit`, or for a further device. Never freed: threads may be
//! inside at exit. All data of a launch is atomic. Without a broker the lane is private memory with
//! mode `Free`.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use weft_gate::accounts::{AccountIndex, StreamAccount, StreamAccounts};
use weft_gate::active_streams::ActiveStreams;
use weft_gate::charge;
use weft_gate::fences::{FENCE_QUANTUM_NS, FenceDue, PLENTY_RATIO, fence_due};
use weft_gate::run_ahead;
use weft_protocol::Ns;
use weft_protocol::lane::{Kind, Mode, flags};
use weft_protocol::transport;

use super::autotune::Tuning;
use super::completion::CompletionTracker;
use super::end_lines::EndLines;
use super::post_launch::{AfterLaunch, Ticket, Want};
use super::ticket_lock::TicketLock;
use crate::admission::DeviceAdmission;
use crate::client::costs::Costs;
use crate::client::link::BrokerLink;
use crate::client::settings::Settings;
use crate::client::{clock, deferral};
use crate::driver::events::EventCalls;
use crate::driver::stream::{Stream, own_stream};
use crate::internal_error::{caught, failpoint, fails_at, guarded};
use crate::kernels::launch::{Launch, LaunchKind};
use crate::profiler::{Look, OpenSample, Sampler, SamplerContext};
use crate::{process, thread};

/// The session.
#[derive(Debug)]
pub struct Session {
    /// Link to the broker.
    pub link: BrokerLink,
    /// The driver's event functions.
    pub driver: EventCalls,
    /// Likely times of kernels that are charged much less, and whether any count.
    pub longs: Costs,
    has_longs: AtomicBool,
    /// Whether the device does not switch processes (MPS); likely times then do not apply.
    never_switches: AtomicBool,
    /// Tuning bursts of the job.
    pub tuning: Tuning,
    /// Predicted times of graphs, from their kernels' times.
    pub sums: Costs,
    /// Order at the gate.
    pub tickets: TicketLock,
    /// Work of each stream.
    pub accounts: StreamAccounts,
    /// Completions of that work.
    pub completion: CompletionTracker,
    /// Samples.
    pub sampler: Sampler,
    /// Captures under way in the process.
    pub captures: AtomicU32,
    /// Heartbeat at which the broker stopped, plus 1; 0: it did not stop.
    pub standstill: AtomicU64,
    /// Lines that are printed at the end.
    pub(super) end_lines: EndLines,
    /// Whether the process is idle and has launched nothing since.
    pub(super) rested: AtomicBool,
    /// Time, ns, from which the gate is open, because a thread waits for deferred launches.
    pub hurry: AtomicU64,
    /// Predicted end of the background launches' work, ns.
    pub free_at: AtomicU64,
    /// Account of the stream of the last background launch.
    last_place: AtomicU32,
    /// Admission to the device.
    pub admission: DeviceAdmission,
    /// Streams with work.
    pub(super) active_streams: ActiveStreams,
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
            tickets: TicketLock::default(),
            accounts: StreamAccounts::default(),
            completion: CompletionTracker::default(),
            sampler: Sampler::default(),
            captures: AtomicU32::new(0),
            hurry: AtomicU64::new(Ns::MAX),
            free_at: AtomicU64::new(0),
            last_place: AtomicU32::new(0),
            standstill: AtomicU64::new(0),
            end_lines: EndLines::default(),
            rested: AtomicBool::new(false),
            admission: DeviceAdmission::default(),
            active_streams: ActiveStreams::default(),
        })
    }

    pub(super) fn mode(&self) -> Mode {
        // Unknown: the broker is faulty, so behave as if there were none.
        Mode::from_word(self.link.lane.orders.mode.load(Ordering::Relaxed)).unwrap_or(Mode::Free)
    }

    #[inline]
    pub(super) fn cost(&self, launch: Launch) -> Ns {
        if let Some(cost) = self.link.costs.get(launch.identity()) {
            return cost;
        }
        if launch.kind() == LaunchKind::Graph
            && let Some(sum) = self.sums.get(launch.identity())
        {
            return sum.max(self.unknown());
        }
        self.unknown()
    }

    /// Cost of a launch about which nothing is known, ns.
    fn unknown(&self) -> Ns {
        self.link.lane.orders.unknown_cost.load(Ordering::Relaxed)
    }

    /// Notes likely times of kernels that are charged much less.
    pub fn know_long(&self, times: &[(u64, Ns)]) {
        for (kernel, time) in times {
            self.longs.set(*kernel, *time);
        }
        let matters = !self.never_switches.load(Ordering::Acquire);
        self.has_longs.store(matters, Ordering::Release);
    }

    /// Notes that the device runs under MPS, which the broker did not know when it sent likely
    /// times.
    pub fn never_switches(&self) {
        self.never_switches.store(true, Ordering::Release);
        self.has_longs.store(false, Ordering::Release);
    }

    /// Likely time of a kernel with this cost, ns.
    #[inline]
    pub(super) fn long(&self, kernel: u64, cost: Ns) -> Ns {
        match self.has_longs.load(Ordering::Acquire) {
            true => charge::long_time(cost, self.longs.get(kernel)),
            false => cost,
        }
    }

    /// Sets the cost of a graph of unknown duration: the sum of its kernels' costs.
    pub fn learn_graph(&self, hash: u64, kernels: &[u64]) {
        /// Most time that all kernels of unknown duration together count, ns: longer than most
        /// gaps. The device soon measures a graph that is served.
        const UNKNOWN_TOGETHER_NS: Ns = 2_000_000;
        let unknown = self.unknown();
        let (mut known, mut others): (Ns, Ns) = (0, 0);
        for kernel in kernels {
            match self.link.costs.get(*kernel) {
                Some(cost) => known = known.saturating_add(cost),
                None => others = others.saturating_add(unknown),
            }
        }
        self.sums
            .set(hash, known.saturating_add(others.min(UNKNOWN_TOGETHER_NS)));
    }

    /// Implements [`super::before_launch`]. Only the part for a job without other jobs is inlined
    /// into the hook; the rest is behind a call that also stops panics.
    #[inline(always)]
    pub fn before_launch(&self, launch: Launch) -> Ticket {
        let mode = self.mode();
        if mode == Mode::Free {
            return Ticket::NOTHING;
        }
        let counters = &self.link.lane.counters;
        match launch.kind() {
            LaunchKind::Kernel => counters.launches.fetch_add(1, Ordering::Relaxed),
            LaunchKind::Graph => counters.graph_launches.fetch_add(1, Ordering::Relaxed),
        };
        if launch.is_captured() || launch.identity() == 0 {
            self.count_odd(launch);
            if launch.is_captured() {
                return Ticket::NOTHING;
            }
        }
        let flags = self.link.lane.orders.flags.load(Ordering::Relaxed);
        // One launch of hundreds is sampled while the job serves: see `Sampler::due`.
        let serving = flags & flags::SAMPLE != 0;
        match mode {
            Mode::Free | Mode::Alone => {}
            Mode::Foreground => {
                let onto_idle = self.foreground(launch);
                if serving && self.sampler.due(onto_idle) {
                    return self.watch(launch, Look::Serve { onto_idle });
                }
            }
            Mode::Background => {
                let ticket = self.background(launch, false);
                if ticket.waits() {
                    return ticket;
                }
                return self.sampled_or(ticket, launch, serving);
            }
        }
        if flags & flags::PROFILE != 0 {
            return self.watch(launch, Look::Profile);
        }
        Ticket::NOTHING
    }

    /// Passes a launch that is already counted through the gate, when its turn comes.
    pub fn deferred(&self, launch: Launch) -> Ticket {
        let serving = self.link.lane.orders.flags.load(Ordering::Relaxed) & flags::SAMPLE != 0;
        match self.mode() {
            Mode::Background => {
                let _whole = thread::uncancelled();
                let ticket = self.background(launch, true);
                self.sampled_or(ticket, launch, serving)
            }
            Mode::Foreground => {
                self.foreground(launch);
                Ticket::NOTHING
            }
            Mode::Free | Mode::Alone => Ticket::NOTHING,
        }
    }

    #[cold]
    fn count_odd(&self, launch: Launch) {
        let counters = &self.link.lane.counters;
        if launch.is_captured() {
            counters.captured.fetch_add(1, Ordering::Relaxed);
        }
        if launch.identity() == 0 {
            counters.unnamed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The ticket of a background job's launch, or of its sample. A sampled launch gets no fence;
    /// the next fence covers it.
    #[inline(always)]
    fn sampled_or(&self, ticket: Ticket, launch: Launch, serving: bool) -> Ticket {
        let onto_idle = ticket.is_first();
        if serving && self.sampler.due(onto_idle) {
            let sampled = self.watch(launch, Look::Serve { onto_idle });
            return if sampled.is_nothing() { ticket } else { sampled };
        }
        ticket
    }

    /// Samples a launch.
    #[cold]
    #[inline(never)]
    fn watch(&self, launch: Launch, look: Look) -> Ticket {
        guarded(|| {
            failpoint("sample");
            self.sampler.before(self.around(), launch, look)
        })
        .flatten()
        .map_or(Ticket::NOTHING, |half| Ticket::sampled(half.place, half.sequence))
    }

    /// Handles a foreground job's launch; true if it is the first since the job was idle. Costs two
    /// locked instructions (record number, launch epoch), a third at the end of a silence, and one
    /// clock read.
    ///
    /// The order makes it sound:
    /// * First the record, then the launch epoch. The broker reads launch epochs, then records,
    ///   then gives credit bound to these epochs. If the broker sees a raised launch epoch, the
    ///   record is visible. Credit given without this launch is bound to a sum that the launch
    ///   changes, so it is void before the driver gets the launch.
    /// * The launch epoch's rise is a sequentially consistent read-modify-write; then comes the
    ///   read of whether the broker sleeps. The broker announces sleep, then reads the records
    ///   again. One of the two sees the other, so no end of a silence is missed.
    ///
    /// This is the fast path, for kernels whose cost needs no search. It calls nothing, so it saves
    /// no registers. It cannot panic, so nothing guards it.
    #[inline(never)]
    fn foreground(&self, launch: Launch) -> bool {
        let orders = &self.link.lane.orders;
        if launch.kind() == LaunchKind::Graph {
            return self.foreground_slowly(launch);
        }
        // The slowest instruction (11 ns) first, so that the rest runs in parallel with it.
        let Some(now) = clock::at_once() else {
            return self.foreground_slowly(launch);
        };
        let epoch = orders.epoch.load(Ordering::Relaxed) as usize;
        let unknown = orders.unknown_cost.load(Ordering::Relaxed);
        let Some(cost) = self.link.costs.at_once(launch.identity(), unknown) else {
            return self.foreground_slowly(launch);
        };
        if fails_at("foreground") {
            return self.foreground_slowly(launch);
        }
        // Last, because it has an effect.
        let Some(ends_silence) = self.active_streams.mark_at_once(own_stream(launch.stream())) else {
            return self.foreground_slowly(launch);
        };
        self.record(launch, now, cost);
        self.link.epoch_page.bump(epoch);
        if ends_silence && self.link.wants_ring() {
            return self.end_silence();
        }
        self.rested()
    }

    /// The steps of [`Session::foreground`] in their order, for any launch.
    #[inline(never)]
    fn foreground_slowly(&self, launch: Launch) -> bool {
        let rested = caught(|| {
            failpoint("foreground");
            let now = clock::now();
            let epoch = self.link.lane.orders.epoch.load(Ordering::Relaxed) as usize;
            // First: another thread's synchronisation before the record must not report an idle
            // process.
            let ends_silence = self.active_streams.mark(own_stream(launch.stream()));
            self.record(launch, now, self.cost(launch));
            self.link.epoch_page.bump(epoch);
            if ends_silence {
                self.link.ring();
            }
            self.rested()
        });
        rested.unwrap_or(false)
    }

    #[cold]
    #[inline(never)]
    fn end_silence(&self) -> bool {
        self.link.wake_broker();
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
    fn record(&self, launch: Launch, now: Ns, cost: Ns) {
        let kind = match launch.kind() {
            LaunchKind::Kernel => Kind::Launch,
            LaunchKind::Graph => Kind::Graph,
        };
        self.link
            .write(kind, now, launch.identity(), cost, launch.stream() as u64);
    }

    /// Handles a background job's launch. With credit it costs four locked instructions (credit,
    /// account, total issued, record number), a fifth at the end of a silence, and one clock read.
    /// Without credit the launch waits here if `waits`, or if it cannot be deferred.
    #[inline(never)]
    fn background(&self, launch: Launch, waits: bool) -> Ticket {
        let ticket = caught(|| {
            failpoint("background");
            // Early, as in `foreground`; again after a wait.
            let mut now = clock::now();
            let cost = self.cost(launch);
            let own = own_stream(launch.stream());
            let want = Want {
                kernel: launch.identity(),
                cost,
                stream: launch.stream(),
                place: self.accounts.place(own),
            };
            let mut foreground = false;
            if !self.pass_at_once(want.kernel, cost, now)
                && !self.pass_with_pair(&want, now)
                && !self.pass_for_peers(&want)
            {
                if process::is_copy() {
                    return Ticket::NOTHING;
                }
                if !waits && deferral::leaves() {
                    return Ticket::WAITS;
                }
                self.pass_in_turn(&want);
                now = clock::now();
                foreground = self.mode() == Mode::Foreground;
            }
            let ends_silence = self.active_streams.mark(own);
            self.issue(&want, now);
            self.record(launch, now, cost);
            // The job became the foreground job during the wait. Record and launch epoch are
            // written as for its launches, so credit given for its silence is void before the
            // driver gets this one.
            if foreground {
                self.link
                    .epoch_page
                    .bump(self.link.lane.orders.epoch.load(Ordering::Relaxed) as usize);
                if ends_silence {
                    self.link.ring();
                }
            }
            Ticket::background(want.place, now, self.rested())
        });
        ticket.unwrap_or(Ticket::NOTHING)
    }

    /// Books work that went through the gate.
    pub(super) fn issue(&self, want: &Want, now: Ns) {
        if self.accounts.issue(want.place, want.cost, now) {
            self.completion.begins(now);
        }
        // A race may lose one cost: the device is then polled a little early.
        let free = run_ahead::end_after_launch(self.free_at.load(Ordering::Relaxed), now, want.cost);
        self.free_at.store(free, Ordering::Relaxed);
        self.link.lane.reports.issued.fetch_add(want.cost, Ordering::AcqRel);
    }

    /// Implements [`super::after_launch`].
    #[inline(always)]
    pub fn after_launch(&self, ticket: Ticket, stream: Stream, result: u32) {
        match ticket.rest() {
            AfterLaunch::Nothing => {}
            AfterLaunch::Background { place, at } => {
                let elsewhere = self.last_place.load(Ordering::Relaxed) != u32::from(place.at);
                if elsewhere {
                    self.last_place.store(u32::from(place.at), Ordering::Relaxed);
                }
                if let Some(account) = self.accounts.account(place.at)
                    && (elsewhere || account.unfenced() >= FENCE_QUANTUM_NS)
                {
                    self.fence(stream, place, at, result, elsewhere);
                }
            }
            AfterLaunch::Sampled { place, sequence } => self.sampled(OpenSample { place, sequence }, result),
        }
    }

    #[cold]
    fn sampled(&self, half: OpenSample, result: u32) {
        guarded(|| self.sampler.after(self.around(), half, result));
    }

    /// Records a fence if enough work is unfenced.
    #[inline(never)]
    fn fence(&self, stream: Stream, place: AccountIndex, at: Ns, result: u32, elsewhere: bool) {
        caught(|| self.fence_now(stream, place, at, result, elsewhere));
    }

    /// `elsewhere`: whether the launch before went to another stream.
    fn fence_now(&self, stream: Stream, place: AccountIndex, at: Ns, result: u32, elsewhere: bool) {
        failpoint("mark");
        let unfenced = self.accounts.account(place.at).map_or(0, StreamAccount::unfenced);
        if result != 0 {
            return;
        }
        // With little credit the next launch will wait for these completions; with much credit it
        // will not.
        let credit = self.link.lane.orders.credit.load(Ordering::Relaxed);
        match fence_due(unfenced, credit) {
            FenceDue::No => {
                // A waiting launch puts its fence in its own stream. In a job that changes streams
                // the work is on other streams, without fences, and counts as ended some ms late.
                let little = u64::try_from(credit).unwrap_or(0) < FENCE_QUANTUM_NS * PLENTY_RATIO;
                if elsewhere && little && self.captures.load(Ordering::Acquire) == 0 {
                    let _whole = thread::uncancelled();
                    self.completion.fence(&self.driver, &self.accounts, place, stream);
                }
                return;
            }
            FenceDue::Rarely if !self.completion.due(at) => return,
            FenceDue::Rarely | FenceDue::Now => {}
        }
        // Not earlier: in a burst most launches return before this point, and the two thread-state
        // changes take 15 ns.
        let _whole = thread::uncancelled();
        if self.captures.load(Ordering::Acquire) == 0 {
            self.completion.fence(&self.driver, &self.accounts, place, stream);
        }
        self.ask_device(at);
    }

    /// The parts of the session that the sampler needs.
    fn around(&self) -> SamplerContext<'_> {
        SamplerContext {
            link: &self.link,
            driver: &self.driver,
            captures: &self.captures,
        }
    }

    /// Reports the remaining samples as the process ends.
    pub fn tell_samples(&self) {
        self.sampler.farewell(self.around());
    }

    /// Reports launch counts.
    pub fn tell_launches(&self) {
        self.sampler.tell_launches(self.around());
    }

    /// Notes that a synchronising call returned, in stage 1.
    pub(super) fn sampler_synced(&self) {
        self.sampler.synced(self.around());
    }
}
