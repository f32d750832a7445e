// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admission of this process to a device: the wait before its first memory, and its quota after
//! that.
//!
//! * The call that would make the first context asks the broker for admission, and waits if
//!   necessary. A job that was suspended right after admission waits at its first allocation.
//! * The wait ends at admission, after `WEFT_WAIT`, or at Ctrl-C. Without a broker that keeps a
//!   queue the job continues without weft: no job waits, and none is refused.
//! * With `--no-wait` a job gets CUDA's "out of memory" and exits with code 75. If the job
//!   continues nevertheless, weft ends it.
//! * Auto backing (`WEFT_BACKING=auto`) is decided at admission; without an answer it is device
//!   memory.
//! * Above its quota a job gets the free memory, otherwise "out of memory". A job without declared
//!   need and profile first waits [`DEFAULT_PATIENCE_NS`] (or `WEFT_WAIT`). It waits only if
//!   another running job may end, and if it is not the most important of several jobs.
//! * Caching frameworks (PyTorch) free memory after an "out of memory" and ask again. Such a job
//!   gets its first answer at once and waits at the second try.

pub mod interrupt;
pub mod probe;
mod script;

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use rustix::thread::futex::{self, Flags};
use weft_protocol::admission_slot::{AdmissionSlot, AdmissionState, DEFAULT_PATIENCE_NS};
use weft_protocol::control::{ToBroker, Wants};
use weft_protocol::host;
use weft_protocol::{Ns, lane};

use self::probe::{MemoryChange, MemoryChanges};
use crate::client::backing_mode;
use crate::client::clock;
use crate::client::link::BrokerLink;
use crate::driver::abi::CuResult;
use crate::internal_error::guarded;
use crate::{paging, report, thread};

/// Silence after which a job continues without weft: over two heartbeats. An answer takes 1 ms.
const ANSWER_TIMEOUT_NS: Ns = 2_500_000_000;

/// Longest wait for an answer while the heartbeat moves. With hundreds of jobs on few cores an
/// answer takes seconds. A job that began without an answer would take memory given to other jobs.
pub(crate) const LONGEST_ANSWER_NS: Ns = 30_000_000_000;

/// Age of the heartbeat at which a wait ends. The broker beats once a second.
const HEARTBEAT_TIMEOUT_NS: Ns = 10_000_000_000;

/// Absence of a broker at which a wait ends. Clients look for a new one once a second.
const ABSENCE_TIMEOUT_NS: Ns = 3_000_000_000;

/// Time for the next broker after one that was replaced, ns.
const NEXT_BROKER_NS: Ns = 5_000_000_000;

/// Longest wait for a broker that ends while its process still exists. It writes its books, and the
/// next broker waits for them. On a slow disk that takes many seconds.
const LONGEST_END_NS: Ns = 60_000_000_000;

/// Wait of one claim for memory that returns to the device, ns. An order or the process's end waits
/// for it.
const RETURN_PATIENCE_NS: Ns = 1_000_000_000;

/// Time until the driver has reclaimed an ended job's memory: with tens of gigabytes some 100 ms.
const RELEASE_NS: Ns = 2_000_000_000;

/// Time to read the broker's reason for a refusal.
const REASON_TIMEOUT: Duration = Duration::from_millis(300);

/// Attempts of a claim whose quota others take meanwhile.
const CLAIM_TRIES: usize = 8;

/// Interval between two checks for Ctrl-C.
const POLL_NS: Ns = 100_000_000;

/// Time within which a request counts as a repetition of the refused one.
const REPEAT_NS: Ns = 1_000_000_000;

/// Divisor of the device's memory for the smallest step of a quota: not every allocation asks.
const QUOTA_STEPS: u64 = 32;

/// Exit code of a job that would have to wait but may not: `EX_TEMPFAIL` of sysexits.h.
pub const TRY_AGAIN: i32 = 75;

/// Time for such a job to end by itself, with its error printed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Answer to a job that wants to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmissionAnswer {
    /// The job may begin.
    Begin,
    /// No memory.
    NoMemory,
}

/// A device on which the process will make a context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRequest {
    /// From `cuDeviceGetUuid`, hexadecimal.
    pub uuid: String,
    /// Bytes.
    pub total: u64,
    /// Devices that the process sees.
    pub devices: u32,
    /// Whether the device can back managed memory, if the backing is open.
    pub manageable: bool,
}

/// This process's admission to one device.
#[derive(Debug, Default)]
pub struct DeviceAdmission {
    /// Whether the process may use the device; also set if there is no broker.
    entered: AtomicBool,
    /// 1 while a thread asks to begin; other threads wait on this futex.
    asking: AtomicU32,
    /// Bytes held plus claimed, in one word. When claimed bytes become held, no thread sees them
    /// twice or not at all.
    wanted: AtomicI64,
    growing: AtomicBool,
    total: AtomicU64,
    /// Changes of the process's memory, and probes.
    pub changes: MemoryChanges,
    last_quota: AtomicU64,
    /// Total bytes shown to a job with a declared need; 0: none yet.
    told_total: AtomicU64,
    /// Time of admission after a wait, ns; else 0.
    since: AtomicU64,
    /// Time of the last refused request, ns, and bytes held then.
    denied: AtomicU64,
    held_then: AtomicU64,
    /// Whether the job frees memory after a refusal and asks again.
    helps_itself: AtomicBool,
    /// End of the last failed wait, ns.
    in_vain: AtomicU64,
    advised: AtomicBool,
    /// Whether its memory is on the host: its return does not wait inside a request.
    away: AtomicBool,
    /// Whether its memory is being claimed for a call that waits.
    wanted_back: AtomicBool,
    /// Whether the broker is asked even if the quota suffices.
    asks_anew: AtomicBool,
    /// 0 for the first device, else the number of a further one.
    pub further: u32,
    memory: AtomicI64,
    own_managed: AtomicI64,
    /// Whether the broker admitted the process, which it may revoke until the process takes memory.
    let_in: AtomicBool,
    turned_away: AtomicBool,
}

/// Answer to a request for more quota.
#[derive(Debug, Clone, Copy)]
enum GrowthAnswer {
    /// The quota, bytes. 0: nothing is counted.
    Quota(u64),
    Denied,
    /// No broker answers. A job that waited goes on for `patience` ns from its first request on.
    Lost {
        patience: Ns,
    },
}

/// Waits until the number of answers is no longer `answers`, or while the broker keeps the request
/// until `is_over`. `is_asked`: whether the broker that was asked is still there. Returns whether
/// the request was kept; as an error, if the broker is gone or stuck.
fn await_answer(
    admission_slot: &AdmissionSlot,
    answers: u32,
    is_asked: impl Fn() -> bool,
    is_over: impl Fn() -> bool,
) -> Result<bool, bool> {
    let mut beat = HeartbeatWatch::new(admission_slot, clock::now());
    let mut waits = false;
    while admission_slot.answers.load(Ordering::Acquire) == answers {
        let now = clock::now();
        beat.update(admission_slot, now);
        if admission_slot.growing.load(Ordering::Acquire) != 0 {
            waits = true;
            if is_over() {
                return Ok(true);
            }
        }
        let silent = match waits {
            true => beat.is_dead(now),
            false => beat.no_answer(now),
        };
        if silent || !is_asked() {
            return Err(waits);
        }
        let poll = clock::timespec(POLL_NS);
        let _ = futex::wait(&admission_slot.answers, Flags::empty(), answers, Some(&poll));
    }
    Ok(waits)
}

/// The right to take device memory. Its drop undoes the unused part.
#[derive(Debug, Default)]
#[must_use]
pub struct Grant {
    /// `None` without a session: nothing is counted.
    of: Option<&'static DeviceAdmission>,
    /// Bytes claimed and not yet counted as held.
    claimed: u64,
    /// Dropped after the claim has ended.
    _change: Option<MemoryChange>,
}

impl Grant {
    /// Makes the driver call. Right after a wait the driver may not have reclaimed the ended job's
    /// memory yet: "out of memory" is then retried, for at most [`RELEASE_NS`].
    pub fn run(&self, take: impl Fn() -> CuResult) -> CuResult {
        let mut result = take();
        let is_fresh = || self.of.is_some_and(|admission| admission.is_fresh(clock::now()));
        while result == CuResult::OUT_OF_MEMORY && is_fresh() {
            thread::rest(Duration::from_millis(5));
            result = take();
        }
        result
    }

    /// Bytes to be passed to [`DeviceAdmission::memory_changed`] as claimed.
    pub fn claimed(&self) -> u64 {
        self.claimed
    }

    /// Marks the claim as ended: it was counted together with the memory.
    pub fn use_up(&mut self) {
        self.claimed = 0;
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(admission) = self.of
            && self.claimed > 0
        {
            admission.unclaim(self.claimed);
        }
    }
}

/// Guard of `asking`, dropped in a panic too.
struct EntryTurn<'a>(&'a AtomicU32);

impl Drop for EntryTurn<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
        let _ = futex::wake(self.0, Flags::PRIVATE, i32::MAX as u32);
    }
}

/// Guard of `growing`, dropped in a panic too.
struct GrowthTurn<'a>(&'a AtomicBool);

impl Drop for GrowthTurn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl DeviceAdmission {
    fn is_fresh(&self, now: Ns) -> bool {
        let since = self.since.load(Ordering::Relaxed);
        since != 0 && now.saturating_sub(since) < RELEASE_NS
    }

    /// The last broker's quota, bytes.
    pub fn last_quota(&self) -> u64 {
        self.last_quota.load(Ordering::Relaxed)
    }

    /// Whether the process may not wait and exits with [`TRY_AGAIN`].
    pub fn turned_away(&self) -> bool {
        self.turned_away.load(Ordering::Acquire)
    }

    /// Claims bytes only if the sum stays within `quota`. 0: nothing is counted.
    fn add_claim_within(&self, bytes: u64, quota: u64) -> bool {
        let most = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let (bytes, quota) = (most(bytes), if quota == 0 { i64::MAX } else { most(quota) });
        let fits = |wanted: i64| wanted.checked_add(bytes).filter(|wanted| *wanted <= quota);
        self.wanted
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, fits)
            .is_ok()
    }

    /// Adds `delta` to the bytes held and ends a claim of `claimed`.
    fn end_claim(&self, delta: i64, claimed: u64) {
        let claimed = i64::try_from(claimed).unwrap_or(i64::MAX);
        self.wanted.fetch_add(delta.wrapping_sub(claimed), Ordering::AcqRel);
    }

    pub(crate) fn wanted(&self) -> u64 {
        u64::try_from(self.wanted.load(Ordering::Acquire)).unwrap_or(0)
    }

    /// Whether the process may use the device.
    pub fn entered(&self) -> bool {
        self.entered.load(Ordering::Acquire)
    }
}

/// Watch during a wait: whether a live broker may still answer.
#[derive(Debug)]
pub(crate) struct HeartbeatWatch {
    begun: Ns,
    /// Last heartbeat, and time at which it was first seen, ns.
    last: u64,
    at: Ns,
}

impl HeartbeatWatch {
    pub(crate) fn new(admission_slot: &AdmissionSlot, now: Ns) -> HeartbeatWatch {
        HeartbeatWatch {
            begun: now,
            last: admission_slot.heartbeat.load(Ordering::Relaxed),
            at: now,
        }
    }

    pub(crate) fn update(&mut self, admission_slot: &AdmissionSlot, now: Ns) {
        let last = admission_slot.heartbeat.load(Ordering::Relaxed);
        if last != self.last {
            (self.last, self.at) = (last, now);
        }
    }

    /// Whether no broker keeps the queue.
    pub(crate) fn is_dead(&self, now: Ns) -> bool {
        now.saturating_sub(self.at) > HEARTBEAT_TIMEOUT_NS
    }

    /// Whether no first answer will come.
    pub(crate) fn no_answer(&self, now: Ns) -> bool {
        now.saturating_sub(self.at) > ANSWER_TIMEOUT_NS || now.saturating_sub(self.begun) > LONGEST_ANSWER_NS
    }
}

impl DeviceAdmission {
    fn attached(&self, link: &BrokerLink) -> bool {
        link.lane.magic.load(Ordering::Relaxed) == lane::MAGIC
    }

    /// Waits until the process may make a context.
    pub fn enter(&self, link: &BrokerLink, about: DeviceRequest) -> AdmissionAnswer {
        while !self.entered() {
            if self.turned_away() {
                return AdmissionAnswer::NoMemory;
            }
            if self
                .asking
                .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
            {
                let _turn = EntryTurn(&self.asking);
                let entry = self.ask_and_wait(link, about);
                self.entered.store(entry == AdmissionAnswer::Begin, Ordering::Release);
                return entry;
            }
            let _ = futex::wait(&self.asking, Flags::PRIVATE, 1, Some(&clock::timespec(POLL_NS)));
        }
        AdmissionAnswer::Begin
    }

    fn ask_and_wait(&self, link: &BrokerLink, about: DeviceRequest) -> AdmissionAnswer {
        self.total.store(about.total, Ordering::Relaxed);
        let settings = &link.settings;
        // All devices share one backing mode: only the first device's broker decides it.
        let open = backing_mode::is_open() && about.manageable && self.further == 0;
        let wants = Wants {
            uuid: about.uuid,
            total: about.total,
            further: self.further,
            devices: about.devices,
            memory: settings.memory.map(|need| need.request),
            duration: settings.duration.clone(),
            gang: settings.gang.clone(),
            processes: settings.processes,
            user: settings.user.clone(),
            managed: backing_mode::managed(),
            either: open,
            host: (open || backing_mode::managed()).then(host::left_of_groups).flatten(),
            runs: None,
            limit: link.settings.limit(),
        };
        let attached = self.attached(link);
        // Queued also without a broker, for a later one.
        let told = link.messages.put(ToBroker::Wants(wants));
        let entry = match told && attached {
            true => self.wait_for_admission(link),
            false => AdmissionAnswer::Begin,
        };
        if entry == AdmissionAnswer::Begin && self.further == 0 {
            self.decide_backing(link, open);
        }
        entry
    }

    /// Decides an open backing mode. `asked`: whether the broker got the question.
    fn decide_backing(&self, link: &BrokerLink, asked: bool) {
        let admission_slot = &link.lane.admission_slot;
        let heard = admission_slot.state() == AdmissionState::Admitted;
        if backing_mode::decide(asked && heard && admission_slot.is_managed()) && asked {
            let note =
                "its memory is managed, because it did not fit as device memory next to other jobs (WEFT_BACKING=auto)";
            link.messages.put(ToBroker::Note(note.into()));
        } else if asked && !heard {
            // The broker gets this message together with the question.
            link.messages.put(ToBroker::OnDevice);
        }
    }

    fn wait_for_admission(&self, link: &BrokerLink) -> AdmissionAnswer {
        let settings = &link.settings;
        let begun = clock::now();
        // First, so that a Ctrl-C during the answer counts.
        let signals = interrupt::SignalWatch::begin();
        let mut waits = false;
        let mut beat = HeartbeatWatch::new(&link.lane.admission_slot, begun);
        // Times since which the broker, and its process, are missing.
        let (mut ends, mut gone) = (None, None);
        loop {
            let now = clock::now();
            let state = link.lane.admission_slot.state();
            let waited = now.saturating_sub(begun);
            beat.update(&link.lane.admission_slot, now);
            match state {
                AdmissionState::Admitted => {
                    self.let_in.store(true, Ordering::Release);
                    if waits {
                        self.since.store(now, Ordering::Relaxed);
                        // The line that it waits may still be on its way.
                        link.messages.hear(REASON_TIMEOUT);
                        report::always(&format!("begins after {:.1} s", waited as f64 / 1e9));
                    }
                    return AdmissionAnswer::Begin;
                }
                AdmissionState::Refused => {
                    link.messages.hear(REASON_TIMEOUT);
                    return AdmissionAnswer::NoMemory;
                }
                AdmissionState::Unknown if !self.attached(link) => {
                    let since = *ends.get_or_insert(now);
                    if link.broker_runs() && now.saturating_sub(since) < LONGEST_END_NS {
                        gone = None;
                    } else if now.saturating_sub(*gone.get_or_insert(now)) > ABSENCE_TIMEOUT_NS {
                        log::warn!("the broker is gone: this job begins without weft");
                        return AdmissionAnswer::Begin;
                    }
                }
                AdmissionState::Unknown if !waits && beat.no_answer(now) => return AdmissionAnswer::Begin,
                AdmissionState::Unknown => {}
                AdmissionState::Waits => {
                    (ends, gone) = (None, None);
                    if settings.no_wait {
                        link.messages.hear(REASON_TIMEOUT);
                        report::always(&format!(
                            "no device memory is free (number {} in the queue) and --no-wait is set: exits with code {TRY_AGAIN}",
                            link.lane.admission_slot.position.load(Ordering::Relaxed)
                        ));
                        link.messages.put(ToBroker::WaitsNoMore);
                        self.turned_away.store(true, Ordering::Release);
                        interrupt::end_within(EXIT_TIMEOUT, TRY_AGAIN);
                        return AdmissionAnswer::NoMemory;
                    }
                    waits = true;
                }
            }
            if state == AdmissionState::Waits && beat.is_dead(now) {
                log::warn!("the broker no longer keeps a queue: this job begins without weft");
                return AdmissionAnswer::Begin;
            }
            if settings.wait.is_some_and(|wait| waited > wait) && waits {
                report::always(&format!(
                    "no device memory within {} s (WEFT_WAIT, --wait)",
                    waited / 1_000_000_000
                ));
                link.messages.put(ToBroker::WaitsNoMore);
                return AdmissionAnswer::NoMemory;
            }
            if waits && signals.came() {
                link.messages.put(ToBroker::WaitsNoMore);
                if self.further == 0 && !self.entered() {
                    signals.ends_script();
                }
                return AdmissionAnswer::NoMemory;
            }
            // The lane may be exchanged meanwhile; the bound of the wait covers that.
            let _ = futex::wait(
                &link.lane.admission_slot.state,
                Flags::empty(),
                state as u32,
                Some(&clock::timespec(POLL_NS)),
            );
        }
    }

    /// Reserves bytes for a driver call, after a bounded wait. `None`: the process may not have
    /// them.
    pub fn reserve(&'static self, link: &'static BrokerLink, bytes: u64) -> Option<Grant> {
        // Each attempt takes a message, and the broker takes quota back some times a second.
        for _ in 0..CLAIM_TRIES {
            // An internal error forbids nothing.
            let quota = guarded(|| self.claim(link, bytes)).unwrap_or(Some(0))?;
            let mut grant = self.reserve_context(link);
            grant.claimed = bytes;
            // The broker takes back unused quota, unless it sees that a change has begun.
            fence(Ordering::SeqCst);
            let left = link.lane.admission_slot.quota.load(Ordering::Acquire);
            if left >= quota || left >= self.wanted() {
                return Some(grant);
            }
        }
        None
    }

    /// As [`DeviceAdmission::reserve`], for the return of memory that a call waits for: it waits
    /// for up to [`RETURN_PATIENCE_NS`], as a job that wants more memory.
    pub fn reserve_in_time(&'static self, link: &'static BrokerLink, bytes: u64) -> Option<Grant> {
        self.wanted_back.store(true, Ordering::Relaxed);
        let grant = self.reserve(link, bytes);
        self.wanted_back.store(false, Ordering::Relaxed);
        grant
    }

    /// As [`DeviceAdmission::reserve`], but asks the broker even if the quota suffices.
    pub fn reserve_anew(&'static self, link: &'static BrokerLink, bytes: u64) -> Option<Grant> {
        self.asks_anew.store(true, Ordering::Relaxed);
        let grant = self.reserve(link, bytes);
        self.asks_anew.store(false, Ordering::Relaxed);
        grant
    }

    /// Reports that the driver refused `bytes` within the quota, because fewer are free. Returns
    /// whether the broker has taken that into account. A declared job keeps its quota.
    pub fn report_refusal(&self, link: &BrokerLink, bytes: u64, ask: impl FnOnce() -> Option<u64>) -> bool {
        let admission_slot = &link.lane.admission_slot;
        let attachment = link.attachment();
        let is_asked = || self.attached(link) && link.attachment() == attachment;
        if self.is_declared(link) || admission_slot.quota.load(Ordering::Acquire) == 0 || !is_asked() {
            return false;
        }
        let Some(free) = ask().filter(|free| *free < bytes) else {
            return false;
        };
        // The slot has room for one answer. Another thread's request reports as much.
        if self.growing.swap(true, Ordering::AcqRel) {
            return false;
        }
        let _turn = GrowthTurn(&self.growing);
        let answers = admission_slot.answers.load(Ordering::Acquire);
        if !link.messages.put(ToBroker::Refused { free }) {
            return false;
        }
        await_answer(admission_slot, answers, is_asked, || false).is_ok() && is_asked()
    }

    /// The grant for a context's own memory, which no quota bounds.
    pub fn reserve_context(&'static self, link: &'static BrokerLink) -> Grant {
        Grant {
            of: Some(self),
            claimed: 0,
            _change: guarded(|| self.changes.begin(link)),
        }
    }

    /// Probes free memory, if a probe is due. `ask` asks the driver for the free bytes.
    pub fn probe(&self, link: &BrokerLink, ask: impl FnOnce() -> Option<u64>) {
        guarded(|| {
            if let Some(probe) = self.changes.begin_probe(link)
                && let Some(free) = ask()
            {
                let held = (self.held(), self.own_managed());
                self.changes.report_probe(link, probe, free, held);
            }
        });
    }

    /// Probes free memory when the process makes its first context.
    pub fn probe_context(&self, link: &BrokerLink, ask: impl FnOnce() -> Option<u64>) {
        guarded(|| {
            if let Some(probe) = self.changes.begin_context_probe()
                && let Some(free) = ask()
            {
                let held = (self.held(), self.own_managed());
                self.changes.report_context_probe(link, probe, free, held);
            }
        });
    }

    /// Claims bytes, until [`DeviceAdmission::unclaim`]. Returns the quota that allows them; 0:
    /// they are not counted.
    pub(crate) fn claim(&self, link: &BrokerLink, bytes: u64) -> Option<u64> {
        let admission_slot = &link.lane.admission_slot;
        // The broker suspended the job before it took memory.
        let put_back = admission_slot.state() == AdmissionState::Waits && self.held() == 0;
        // Another thread may wait already. If the job runs without a quota, the broker has only
        // queued it.
        let waits = |of: bool| of || admission_slot.quota.load(Ordering::Acquire) != 0;
        if put_back
            && waits(self.let_in.swap(false, Ordering::AcqRel))
            && self.wait_for_admission(link) == AdmissionAnswer::NoMemory
        {
            return None;
        }
        let quota = admission_slot.quota.load(Ordering::Acquire);
        if quota != 0 {
            self.last_quota.store(quota, Ordering::Relaxed);
        }
        if !self.asks_anew.load(Ordering::Relaxed) && self.add_claim_within(bytes, quota) {
            return Some(quota);
        }
        let grown = self.grow(link, admission_slot, bytes);
        let grown = grown.or_else(|| self.claim_alone(admission_slot, bytes));
        if grown.is_none() {
            self.held_then.store(self.held(), Ordering::Relaxed);
            self.denied.store(clock::now(), Ordering::Relaxed);
        }
        grown
    }

    /// Claims again if the bytes fit. Another thread's claim without a broker may have caused the
    /// refusal, so this repeats until that claim has ended.
    fn claim_alone(&self, admission_slot: &AdmissionSlot, bytes: u64) -> Option<u64> {
        let begun = clock::now();
        loop {
            let quota = admission_slot.quota.load(Ordering::Acquire);
            if self.held().saturating_add(bytes) > quota {
                return None;
            }
            if self.add_claim_within(bytes, quota) {
                return Some(quota);
            }
            if clock::now().saturating_sub(begun) > ANSWER_TIMEOUT_NS {
                return self.add_claim_within(bytes, 0).then_some(quota);
            }
            thread::rest(Duration::from_micros(100));
        }
    }

    fn is_declared(&self, link: &BrokerLink) -> bool {
        let declared = link.settings.memory.is_some() || link.settings.profile.is_some();
        // One with a limit grows up to it.
        declared && link.settings.limit().is_none()
    }

    /// Advises once, after a failed wait, how to declare the need. It does not after a request for
    /// more than the device has: programs try out how much they can have.
    fn advise(&self, link: &BrokerLink) {
        if !self.is_declared(link) && link.settings.limit().is_none() && !self.advised.swap(true, Ordering::Relaxed) {
            report::always(
                "no more device memory is free, and this job has neither --memory nor a profile: when it has ended, make a profile of its memory use (weft queue, weft profile keep); with --profile it begins when that is free",
            );
        }
    }

    fn patience(&self, link: &BrokerLink) -> Ns {
        if self.wanted_back.load(Ordering::Relaxed) {
            return RETURN_PATIENCE_NS;
        }
        let now = clock::now();
        let just = |word: &AtomicU64| {
            let at = word.load(Ordering::Relaxed);
            at != 0 && now.saturating_sub(at) < REPEAT_NS
        };
        let again = just(&self.denied);
        if again && self.held() < self.held_then.load(Ordering::Relaxed) {
            self.helps_itself.store(true, Ordering::Relaxed);
        }
        let away = self.away.load(Ordering::Relaxed);
        let first_of_two = self.helps_itself.load(Ordering::Relaxed) && !again;
        // A declared job has its declared need, and the free memory.
        if self.is_declared(link) || link.settings.no_wait || away || first_of_two || just(&self.in_vain) {
            return 0;
        }
        link.settings.wait.unwrap_or(DEFAULT_PATIENCE_NS)
    }

    /// Ends a claim.
    pub(crate) fn unclaim(&self, bytes: u64) {
        self.end_claim(0, bytes);
    }

    /// Asks for more quota, and claims bytes of it. Returns the quota; 0: no broker answers. Only
    /// granted claims count, so a request that no device can meet costs other threads nothing.
    fn grow(&self, link: &BrokerLink, admission_slot: &AdmissionSlot, bytes: u64) -> Option<u64> {
        let claim_in = |quota: u64| self.add_claim_within(bytes, quota).then_some(quota);
        let mut beat = HeartbeatWatch::new(admission_slot, clock::now());
        while self.growing.swap(true, Ordering::AcqRel) {
            let waits = admission_slot.growing.load(Ordering::Acquire) != 0;
            beat.update(admission_slot, clock::now());
            // Another thread got or returned enough. Without a quota the next broker may be filling
            // in its lane.
            let quota = admission_slot.quota.load(Ordering::Acquire);
            if quota != 0 && claim_in(quota).is_some() {
                return Some(quota);
            }
            if beat.no_answer(clock::now()) && !waits {
                return claim_in(0);
            }
            thread::rest(if waits {
                Duration::from_millis(5)
            } else {
                Duration::from_micros(50)
            });
        }
        let _turn = GrowthTurn(&self.growing);
        let begun = clock::now();
        // Quotas that other threads claimed first.
        let mut taken = 0;
        while taken < CLAIM_TRIES {
            match self.ask_for_more(link, admission_slot, bytes) {
                GrowthAnswer::Quota(quota) if claim_in(quota).is_some() => return Some(quota),
                GrowthAnswer::Quota(_) => taken += 1,
                GrowthAnswer::Denied => return None,
                GrowthAnswer::Lost { patience } if patience > 0 && self.comes_back(link, begun, patience) => {}
                GrowthAnswer::Lost { .. } => return claim_in(0),
            }
        }
        None
    }

    /// Waits for the next broker after one that ended or was killed while this job waited. Returns
    /// whether that one came within `patience` ns of `begun`. The former broker may have let the
    /// job wait for longer than that: then it has a moment.
    fn comes_back(&self, link: &BrokerLink, begun: Ns, patience: Ns) -> bool {
        let returns = self.wanted_back.load(Ordering::Relaxed);
        let signals = (!returns).then(interrupt::SignalWatch::begin);
        // When the broker, and its process, were first missing.
        let (ends, mut gone) = (clock::now(), None);
        loop {
            let now = clock::now();
            let interrupted = signals.as_ref().is_some_and(interrupt::SignalWatch::came);
            let is_late = now.saturating_sub(begun) >= patience && now.saturating_sub(ends) >= NEXT_BROKER_NS;
            if is_late || interrupted {
                return false;
            }
            if self.attached(link) && link.lane.admission_slot.quota.load(Ordering::Acquire) != 0 {
                return true;
            }
            if link.broker_runs() && now.saturating_sub(ends) < LONGEST_END_NS {
                gone = None;
            } else if now.saturating_sub(*gone.get_or_insert(now)) > ABSENCE_TIMEOUT_NS {
                return false;
            }
            thread::rest(Duration::from_millis(5));
        }
    }

    /// Asks for a quota that has room for `own` more bytes.
    fn ask_for_more(&self, link: &BrokerLink, admission_slot: &AdmissionSlot, own: u64) -> GrowthAnswer {
        // Another broker's lane has no answer to this request.
        let attachment = link.attachment();
        let is_asked = || self.attached(link) && link.attachment() == attachment;
        for coarse in [true, false] {
            let quota = admission_slot.quota.load(Ordering::Acquire);
            let wanted = self.wanted().saturating_add(own);
            // A share of nothing is a quota of one byte.
            let lacks = wanted.saturating_sub(if quota == 1 { 0 } else { quota });
            if quota == 0 || lacks == 0 && !self.asks_anew.load(Ordering::Relaxed) {
                return GrowthAnswer::Quota(quota);
            }
            if !is_asked() {
                return GrowthAnswer::Lost { patience: 0 };
            }
            let step = self.total.load(Ordering::Relaxed) / QUOTA_STEPS;
            let bytes = if coarse && lacks > 0 { lacks.max(step) } else { lacks };
            let answers = admission_slot.answers.load(Ordering::Acquire);
            let patience = if coarse { 0 } else { self.patience(link) };
            if !link.messages.put(ToBroker::More { bytes, patience }) {
                return GrowthAnswer::Lost { patience: 0 };
            }
            // First, so that no signal is lost.
            let returns = self.wanted_back.load(Ordering::Relaxed);
            let signals = (patience > 0 && !returns).then(interrupt::SignalWatch::begin);
            let enough = || {
                let quota = admission_slot.quota.load(Ordering::Acquire);
                (self.wanted().saturating_add(own) <= quota).then_some(quota)
            };
            // Ctrl-C came, or another thread returned enough.
            let is_over = || signals.as_ref().is_some_and(interrupt::SignalWatch::came) || enough().is_some();
            let lost = |waits: bool| GrowthAnswer::Lost {
                patience: if waits { patience } else { 0 },
            };
            let waits = match await_answer(admission_slot, answers, is_asked, is_over) {
                Ok(waits) => waits,
                Err(waits) => return lost(waits),
            };
            if admission_slot.answers.load(Ordering::Acquire) == answers {
                link.messages.put(ToBroker::NoMore);
                return enough().map_or(GrowthAnswer::Denied, GrowthAnswer::Quota);
            }
            let quota = admission_slot.quota.load(Ordering::Acquire);
            // Another lane's answers also differ.
            if !is_asked() {
                return lost(waits);
            }
            if quota >= wanted || quota == 0 {
                if waits {
                    // The driver may not have the ended job's memory yet.
                    self.since.store(clock::now(), Ordering::Relaxed);
                }
                return GrowthAnswer::Quota(quota);
            }
            if waits && !returns {
                self.in_vain.store(clock::now(), Ordering::Relaxed);
                self.advise(link);
            }
        }
        GrowthAnswer::Denied
    }

    /// Bytes that the process may have while all other jobs stay; 0: not known.
    fn limit(link: &BrokerLink) -> u64 {
        let admission_slot = &link.lane.admission_slot;
        match admission_slot.declared.load(Ordering::Relaxed) {
            // Includes bytes that were granted later.
            1 => admission_slot.quota.load(Ordering::Relaxed),
            _ => admission_slot.limit.load(Ordering::Relaxed),
        }
    }

    /// Bytes by which `bytes` more would exceed the quota, which the broker may raise.
    pub fn lacks(&self, link: &BrokerLink, bytes: u64) -> u64 {
        match link.lane.admission_slot.quota.load(Ordering::Relaxed) {
            0 => 0,
            quota => self.wanted().saturating_add(bytes).saturating_sub(quota),
        }
    }

    /// Bytes by which `bytes` more would exceed the limit.
    pub fn beyond(&self, link: &BrokerLink, bytes: u64) -> u64 {
        match DeviceAdmission::limit(link) {
            0 => 0,
            limit => self.wanted().saturating_add(bytes).saturating_sub(limit),
        }
    }

    /// (free, total) bytes as the job sees them, if the driver's answer does not apply.
    pub fn view(&self, link: &BrokerLink, free: u64, total: u64) -> Option<(u64, u64)> {
        let admission_slot = &link.lane.admission_slot;
        let limit = DeviceAdmission::limit(link);
        if limit == 0 {
            return None;
        }
        let total = match admission_slot.declared.load(Ordering::Relaxed) {
            1 => {
                // The first share stays the total, whatever the broker grants later.
                let first = self
                    .told_total
                    .compare_exchange(0, limit, Ordering::Relaxed, Ordering::Relaxed);
                total.min(first.map_or_else(|known| known, |_| limit))
            }
            _ => total.min(link.settings.limit().unwrap_or(total)),
        };
        let free = free.min(limit.saturating_sub(self.held()));
        Some((free.min(total), total))
    }

    /// Notes that `bytes`, which are no longer counted as held, are on the host. Returns the bytes
    /// to claim before they return: all that a declared need promised, else these.
    pub fn leaves_device(&self, link: &BrokerLink, bytes: u64) -> u64 {
        self.away.store(true, Ordering::Relaxed);
        let quota = link.lane.admission_slot.quota.load(Ordering::Acquire);
        self.last_quota.store(self.held(), Ordering::Relaxed);
        match self.is_declared(link) {
            true => quota.saturating_sub(self.held()).max(bytes),
            false => bytes,
        }
    }

    /// Notes that all memory is on the device.
    pub fn back_on_device(&self) {
        self.away.store(false, Ordering::Relaxed);
    }

    /// Bytes reported to a new broker.
    pub fn reattach_bytes(&self, quota_before: u64) -> Option<u64> {
        self.entered().then(|| self.held().max(quota_before))
    }

    /// Counts device memory taken or freed, bytes, and ends a claim of `claimed`.
    pub fn memory_changed(&self, link: &BrokerLink, delta: i64, claimed: u64) {
        self.memory.fetch_add(delta, Ordering::Relaxed);
        self.end_claim(delta, claimed);
        self.report_memory(link);
    }

    /// Counts the job's own managed memory, bytes.
    pub fn own_managed_changed(&self, link: &BrokerLink, delta: i64) {
        self.own_managed.fetch_add(delta, Ordering::Relaxed);
        self.report_memory(link);
    }

    pub fn held(&self) -> u64 {
        u64::try_from(self.memory.load(Ordering::Relaxed)).unwrap_or(0)
    }

    pub fn own_managed(&self) -> u64 {
        u64::try_from(self.own_managed.load(Ordering::Relaxed)).unwrap_or(0)
    }

    pub fn report_memory(&self, link: &BrokerLink) {
        let held = u64::try_from(self.memory.load(Ordering::Relaxed)).unwrap_or(0);
        let counters = &link.lane.counters;
        counters.memory.store(held, Ordering::Relaxed);
        counters.memory_peak.fetch_max(held, Ordering::Relaxed);
        counters.managed_own.store(self.own_managed(), Ordering::Relaxed);
        paging::write_to(link);
    }
}
