//! The job's place on the device: it waits until it may begin, and stays within what it may have.
//!
//! * A job that fits begins at once; one question to the broker and its answer, before the first
//!   context, is all it notices.
//! * Waiting is only for the call that would make the first context, or (the job was let in and
//!   suspended at once) for its first memory. It ends when the job is admitted, when `WEFT_WAIT` is
//!   over, when the person presses Ctrl-C (a Python script ends by it), and when the broker is gone
//!   or keeps no queue any more (then the job goes on as without weft).
//! * A job that is not to wait (`--no-wait`) gets CUDA's "out of memory" and ends by itself, so
//!   that nothing it wrote is lost; its exit code becomes 75. One that goes on nevertheless is
//!   ended.
//! * Without a broker nothing waits and nothing is refused.
//! * What a job left open of its memory (`WEFT_BACKING=auto`) is decided with its admission; where
//!   the broker says nothing it is device memory.
//! * Beyond its share a job gets what is free. Where nothing is, it gets CUDA's own "out of
//!   memory". A job that said nothing of its memory (no figure, no profile) waits before, for
//!   [`GROWS`] (or `WEFT_WAIT`), if a neighbour that runs may end.
//! * Frameworks that keep memory for reuse (PyTorch) give that back at an "out of memory" and ask
//!   again. Who was seen to do so gets his first answer at once, and waits with the second try.

pub mod interrupt;
pub mod probe;
mod script;

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::futex::{self, Flags};
use weft_protocol::admission_slot::{AdmissionSlot, AdmissionState};
use weft_protocol::control::{ToBroker, Wants};
use weft_protocol::host;
use weft_protocol::{Ns, lane};

use self::probe::Changes;
use crate::client::backing_mode;
use crate::client::clock;
use crate::client::link::BrokerLink;
use crate::{paging, report, thread};

/// The broker answers within a millisecond. Who hears nothing and feels no beat for so long goes on
/// as without weft: more than two beats.
const ANSWER: Ns = 2_500_000_000;

/// Of a broker that lives, as its beat shows, an answer may take so long: with hundreds of jobs
/// that start at once on few cores, seconds. Who began without it would take memory that others
/// were given.
pub(crate) const LATE: Ns = 30_000_000_000;

/// A broker that keeps its queue moves the admission slot's beat once a second. One that was
/// stopped or is stuck keeps nobody waiting for longer than this.
const DEAD_BEAT: Ns = 10_000_000_000;

/// A broker that is gone may be back; its clients look for it once a second.
const GONE: Ns = 3_000_000_000;

/// Memory of a job that ended is the driver's again within this: a process that holds tens of
/// gigabytes takes some hundred milliseconds to end, and its channel to the broker may be closed
/// first.
const SETTLES: Ns = 2_000_000_000;

/// Why a job does not begin the broker has said before it lets it go; the helper has read that
/// within this. Whoever is let go may be gone in a millisecond.
const WORDS: Duration = Duration::from_millis(300);

/// Between two looks at whether the person lost patience.
const LOOK: Ns = 100_000_000;

/// A job that runs waits for what it wants more, where others have it, for so long if nothing else
/// was said (`WEFT_WAIT`). It waits inside an allocation, as a rule with the framework's allocator
/// locked and perhaps Python's lock held: everything in the process that allocates waits along, and
/// a service does not answer who asks whether it lives (those ask every 10 s as a rule, and kill
/// after the third time). Ten seconds: a neighbour that ends or gives back just now is waited for.
const GROWS: Ns = 10_000_000_000;

/// Who asks again within this after an answer asks for the same thing.
const AGAIN: Ns = 1_000_000_000;

/// A share grows by this part of the device at least, so that a job that says nothing of itself
/// asks a few times and not at each allocation.
const STEP: u64 = 32;

/// The exit code of a job that would have to wait and is not to: `EX_TEMPFAIL` of sysexits.h, try
/// again later.
pub const TRY_AGAIN: i32 = 75;

/// A job that would have to wait and is not to may take so long to end by itself: a framework's
/// error travels up through some frames, is printed, and what was buffered is written.
const ENDS: Duration = Duration::from_secs(10);

/// What became of the wish to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// Go on.
    Begin,
    /// There is no memory.
    NoMemory,
}

/// A device that a context is to be made on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sight {
    /// As `cuDeviceGetUuid` says, in hexadecimal.
    pub uuid: String,
    /// Bytes.
    pub total: u64,
    /// How many devices the process sees.
    pub devices: u32,
    /// Whether its memory may be managed, if that is open ([`backing_mode::is_open`]).
    pub manageable: bool,
}

/// The admission of a process to one device, as the client keeps it.
#[derive(Debug, Default)]
pub struct DeviceAdmission {
    /// It may begin, or weft has nothing to say.
    entered: AtomicBool,
    /// One thread asks, the others wait for it.
    asking: AtomicU32,
    /// Bytes held, and bytes on their way to the driver: one word, so that what becomes held is at
    /// no moment seen as both, or as neither, by another thread's claim.
    wanted: AtomicI64,
    /// One thread at a time asks for more.
    growing: AtomicBool,
    total: AtomicU64,
    /// When what it holds changed, and whether it looked at what is free.
    pub changes: Changes,
    /// What the broker last said that it may have.
    share: AtomicU64,
    /// When it was let in, if it had to wait; else 0.
    since: AtomicU64,
    /// When it was told last that there is no more, and what it held then.
    denied: AtomicU64,
    held_then: AtomicU64,
    /// It gives something back when there is no more, and asks again.
    helps_itself: AtomicBool,
    /// When it had last waited for more in vain.
    in_vain: AtomicU64,
    /// The person was told how it goes better the next time.
    advised: AtomicBool,
    /// 0: of the process's first device; else of one that it uses besides.
    pub further: u32,
    /// Device memory held.
    memory: AtomicI64,
    /// Managed memory that the job took by itself.
    own_managed: AtomicI64,
    /// The broker let it in. It may take that back as long as nothing was taken.
    let_in: AtomicBool,
    /// It would have had to wait, and is not to: it is on its way to its end.
    turned_away: AtomicBool,
}

/// This thread asks whether the job may begin. Given up also by a panic on the way: the other
/// threads wait for it.
struct Asking<'a>(&'a AtomicU32);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
        let _ = futex::wake(self.0, Flags::PRIVATE, i32::MAX as u32);
    }
}

/// This thread asks for more. Given up also by a panic on the way.
struct Growing<'a>(&'a AtomicBool);

impl Drop for Growing<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl DeviceAdmission {
    /// Whether the job was let in after a wait just now.
    pub fn fresh(&self, now: Ns) -> bool {
        let since = self.since.load(Ordering::Relaxed);
        since != 0 && now.saturating_sub(since) < SETTLES
    }

    /// What the last broker said that it may have.
    pub fn share(&self) -> u64 {
        self.share.load(Ordering::Relaxed)
    }

    /// Whether it would have had to wait and is not to: then its exit code is [`TRY_AGAIN`].
    pub fn turned_away(&self) -> bool {
        self.turned_away.load(Ordering::Acquire)
    }

    /// So many bytes are on their way to the driver. What is held and on its way with them.
    fn claims(&self, bytes: u64) -> u64 {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let before = self.wanted.fetch_add(bytes, Ordering::AcqRel);
        u64::try_from(before.saturating_add(bytes)).unwrap_or(0)
    }

    /// The same, where all of it is at most `share`; else nothing has changed.
    fn claims_within(&self, bytes: u64, share: u64) -> bool {
        let (bytes, share) = (
            i64::try_from(bytes).unwrap_or(i64::MAX),
            i64::try_from(share).unwrap_or(i64::MAX),
        );
        let fits = |wanted: i64| wanted.checked_add(bytes).filter(|wanted| *wanted <= share);
        self.wanted
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, fits)
            .is_ok()
    }

    /// What is held has changed by so much, and so much is not on its way any more.
    pub fn settled(&self, delta: i64, claimed: u64) {
        let claimed = i64::try_from(claimed).unwrap_or(i64::MAX);
        self.wanted.fetch_add(delta.wrapping_sub(claimed), Ordering::AcqRel);
    }

    /// Bytes held or on their way to the driver.
    pub(crate) fn wanted(&self) -> u64 {
        u64::try_from(self.wanted.load(Ordering::Acquire)).unwrap_or(0)
    }

    /// Whether the process has begun.
    pub fn entered(&self) -> bool {
        self.entered.load(Ordering::Acquire)
    }
}

/// The beat of a admission slot, as a wait has felt it: whether a broker lives that may yet answer.
#[derive(Debug)]
pub(crate) struct Beat {
    /// When the wait began.
    begun: Ns,
    /// The last one, and when it was felt.
    last: u64,
    at: Ns,
}

impl Beat {
    pub(crate) fn new(admission_slot: &AdmissionSlot, now: Ns) -> Beat {
        Beat {
            begun: now,
            last: admission_slot.heartbeat.load(Ordering::Relaxed),
            at: now,
        }
    }

    pub(crate) fn feel(&mut self, admission_slot: &AdmissionSlot, now: Ns) {
        let last = admission_slot.heartbeat.load(Ordering::Relaxed);
        if last != self.last {
            (self.last, self.at) = (last, now);
        }
    }

    /// Whether nobody keeps the queue any more.
    pub(crate) fn stands(&self, now: Ns) -> bool {
        now.saturating_sub(self.at) > DEAD_BEAT
    }

    /// Whether a first answer will not come: there was no sign of life for [`ANSWER`], or there was
    /// and yet none for [`LATE`].
    pub(crate) fn no_answer(&self, now: Ns) -> bool {
        now.saturating_sub(self.at) > ANSWER || now.saturating_sub(self.begun) > LATE
    }
}

impl DeviceAdmission {
    fn attached(&self, link: &BrokerLink) -> bool {
        link.lane.magic.load(Ordering::Relaxed) == lane::MAGIC
    }

    /// The process is about to make a context on this device. Waits until it may.
    pub fn enter(&self, link: &BrokerLink, about: Sight) -> Entry {
        let place = self;
        while !place.entered() {
            if place.turned_away() {
                return Entry::NoMemory;
            }
            if place
                .asking
                .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
            {
                let _turn = Asking(&place.asking);
                let entry = self.ask_and_wait(link, about);
                place.entered.store(entry == Entry::Begin, Ordering::Release);
                return entry;
            }
            let _ = futex::wait(&place.asking, Flags::PRIVATE, 1, Some(&clock::timespec(LOOK)));
        }
        Entry::Begin
    }

    fn ask_and_wait(&self, link: &BrokerLink, about: Sight) -> Entry {
        self.total.store(about.total, Ordering::Relaxed);
        let settings = &link.settings;
        // A process is one or the other on all its devices: the first one's broker is asked.
        let open = backing_mode::is_open() && about.manageable && self.further == 0;
        let wants = Wants {
            uuid: about.uuid,
            total: about.total,
            further: self.further,
            devices: about.devices,
            memory: settings.memory,
            duration: settings.duration.clone(),
            gang: settings.gang.clone(),
            processes: settings.processes,
            user: settings.user.clone(),
            managed: backing_mode::managed(),
            either: open,
            host: (open || backing_mode::managed()).then(host::left_of_groups).flatten(),
            runs: None,
        };
        let attached = self.attached(link);
        // Also where there is no broker: one that comes later is told that this job runs.
        let told = link.messages.put(ToBroker::Wants(wants));
        let entry = match told && attached {
            true => self.wait_for_admission_slot(link),
            false => Entry::Begin,
        };
        if entry == Entry::Begin && self.further == 0 {
            self.settles(link, open);
        }
        entry
    }

    /// The process begins: what was open of its memory is decided. `asked`: the broker was asked.
    fn settles(&self, link: &BrokerLink, asked: bool) {
        let admission_slot = &link.lane.admission_slot;
        let heard = admission_slot.state() == AdmissionState::Admitted;
        if backing_mode::decide(asked && heard && admission_slot.is_managed()) && asked {
            let note = "its memory is managed: as device memory it did not fit beside the others (WEFT_BACKING=auto)";
            link.messages.put(ToBroker::Note(note.into()));
        } else if asked && !heard {
            // Whatever broker there is or comes to be hears that together with the question.
            link.messages.put(ToBroker::OnDevice);
        }
    }

    /// Waits until the broker has said something and, if that is to wait, until it says something
    /// else.
    fn wait_for_admission_slot(&self, link: &BrokerLink) -> Entry {
        let settings = &link.settings;
        let begun = clock::now();
        // Before it is known whether to wait: a Ctrl-C that comes as the broker says so is one of
        // this wait's.
        let signals = interrupt::Watch::begin();
        let mut waits = false;
        let mut beat = Beat::new(&link.lane.admission_slot, begun);
        let mut gone = None;
        loop {
            let now = clock::now();
            let standing = link.lane.admission_slot.state();
            let waited = now.saturating_sub(begun);
            beat.feel(&link.lane.admission_slot, now);
            match standing {
                AdmissionState::Admitted => {
                    self.let_in.store(true, Ordering::Release);
                    if waits {
                        self.since.store(now, Ordering::Relaxed);
                        report::always(&format!("begins after {} s", waited / 1_000_000_000));
                    }
                    return Entry::Begin;
                }
                AdmissionState::Refused => {
                    link.messages.hear(WORDS);
                    return Entry::NoMemory;
                }
                AdmissionState::Unknown if !self.attached(link) => {
                    if now.saturating_sub(*gone.get_or_insert(now)) > GONE {
                        log::warn!("the broker is gone: this job begins as without weft");
                        return Entry::Begin;
                    }
                }
                AdmissionState::Unknown if !waits && beat.no_answer(now) => return Entry::Begin,
                AdmissionState::Unknown => {}
                AdmissionState::Waits => {
                    gone = None;
                    if settings.no_wait {
                        link.messages.hear(WORDS);
                        report::always(&format!(
                            "no device memory now (number {} in the queue) and --no-wait: ends with exit code {TRY_AGAIN}",
                            link.lane.admission_slot.position.load(Ordering::Relaxed)
                        ));
                        link.messages.put(ToBroker::WaitsNoMore);
                        self.turned_away.store(true, Ordering::Release);
                        interrupt::end_within(ENDS, TRY_AGAIN);
                        return Entry::NoMemory;
                    }
                    waits = true;
                }
            }
            if standing == AdmissionState::Waits && beat.stands(now) {
                log::warn!("the broker keeps no queue any more: this job begins as without weft");
                return Entry::Begin;
            }
            if settings.wait.is_some_and(|wait| waited > wait) && waits {
                report::always(&format!(
                    "no device memory within {} s (WEFT_WAIT, --wait)",
                    waited / 1_000_000_000
                ));
                link.messages.put(ToBroker::WaitsNoMore);
                return Entry::NoMemory;
            }
            if waits && signals.came() {
                link.messages.put(ToBroker::WaitsNoMore);
                // Who has no context on any device yet has nothing there to save.
                if self.further == 0 && !self.entered() {
                    signals.ends_script();
                }
                return Entry::NoMemory;
            }
            // The lane may be exchanged under this wait: the bound finds out.
            let _ = futex::wait(
                &link.lane.admission_slot.state,
                Flags::empty(),
                standing as u32,
                Some(&clock::timespec(LOOK)),
            );
        }
    }

    /// May the process take so much more? Claims it until [`DeviceAdmission::unclaim`].
    pub fn claim(&self, link: &BrokerLink, bytes: u64) -> bool {
        let admission_slot = &link.lane.admission_slot;
        // It was let in, was suspended before it took anything, and its turn passed to others.
        let put_back = admission_slot.state() == AdmissionState::Waits && self.held() == 0;
        if put_back
            && self.let_in.swap(false, Ordering::AcqRel)
            && self.wait_for_admission_slot(link) == Entry::NoMemory
        {
            return false;
        }
        let share = admission_slot.quota.load(Ordering::Acquire);
        if share != 0 {
            self.share.store(share, Ordering::Relaxed);
        }
        if self.claims(bytes) <= share || share == 0 || self.grows(link, admission_slot) {
            return true;
        }
        self.unclaim(bytes);
        if self.claims_alone(admission_slot, bytes) {
            return true;
        }
        self.held_then.store(self.held(), Ordering::Relaxed);
        self.denied.store(clock::now(), Ordering::Relaxed);
        false
    }

    /// What was refused may have been refused for what another thread wants at the same time, and
    /// does not get. What fits by itself is tried again until that is settled.
    fn claims_alone(&self, admission_slot: &AdmissionSlot, bytes: u64) -> bool {
        let begun = clock::now();
        loop {
            let share = admission_slot.quota.load(Ordering::Acquire);
            if self.held().saturating_add(bytes) > share {
                return false;
            }
            if self.claims_within(bytes, share) {
                return true;
            }
            if clock::now().saturating_sub(begun) > ANSWER {
                return false;
            }
            thread::rest(Duration::from_micros(100));
        }
    }

    /// Whether it was said what the job takes.
    fn said(&self, link: &BrokerLink) -> bool {
        link.settings.memory.is_some() || link.settings.profile.is_some()
    }

    /// A job that had not said what it takes has waited in vain for what others have: how that is
    /// said the next time, once. (What a job took is known when it has ended.) Who asks for more
    /// than there is, as programs do that try how much they can have, is told nothing.
    fn advises(&self, link: &BrokerLink) {
        if !self.said(link) && !self.advised.swap(true, Ordering::Relaxed) {
            report::always(
                "no more device memory is free, and nothing was said of what this job takes: when it has ended, weft queue lists what it took, weft profile keep makes that a profile, and with --profile it begins when so much is free",
            );
        }
    }

    /// For how long the job waits for what it wants more.
    fn patience(&self, link: &BrokerLink) -> Ns {
        let (place, now) = (self, clock::now());
        let just = |word: &AtomicU64| {
            let at = word.load(Ordering::Relaxed);
            at != 0 && now.saturating_sub(at) < AGAIN
        };
        let again = just(&place.denied);
        if again && self.held() < place.held_then.load(Ordering::Relaxed) {
            place.helps_itself.store(true, Ordering::Relaxed);
        }
        let first_of_two = place.helps_itself.load(Ordering::Relaxed) && !again;
        // Who was let in with a figure has what he said, and what is free.
        if self.said(link) || link.settings.no_wait || first_of_two || just(&place.in_vain) {
            return 0;
        }
        link.settings.wait.unwrap_or(GROWS)
    }

    /// What was claimed was not had.
    pub fn unclaim(&self, bytes: u64) {
        self.settled(0, bytes);
    }

    /// Asks for what is lacking, in a large step if it can be had. True if there is enough now, or
    /// nobody to ask.
    fn grows(&self, link: &BrokerLink, admission_slot: &AdmissionSlot) -> bool {
        let mut beat = Beat::new(admission_slot, clock::now());
        while self.growing.swap(true, Ordering::AcqRel) {
            let waits = admission_slot.growing.load(Ordering::Acquire) != 0;
            beat.feel(admission_slot, clock::now());
            if beat.no_answer(clock::now()) && !waits {
                return true;
            }
            thread::rest(if waits {
                Duration::from_millis(5)
            } else {
                Duration::from_micros(50)
            });
        }
        let _turn = Growing(&self.growing);
        self.ask_for_more(link, admission_slot)
    }

    fn ask_for_more(&self, link: &BrokerLink, admission_slot: &AdmissionSlot) -> bool {
        for coarse in [true, false] {
            let share = admission_slot.quota.load(Ordering::Acquire);
            let wanted = self.wanted();
            let lacks = wanted.saturating_sub(share);
            if share == 0 || lacks == 0 || !self.attached(link) {
                return true;
            }
            let step = self.total.load(Ordering::Relaxed) / STEP;
            let bytes = if coarse { lacks.max(step) } else { lacks };
            let answers = admission_slot.answers.load(Ordering::Acquire);
            let begun = clock::now();
            let patience = if coarse { 0 } else { self.patience(link) };
            if !link.messages.put(ToBroker::More { bytes, patience }) {
                return true;
            }
            // Before it waits: a signal that comes in between is not lost.
            let signals = (patience > 0).then(interrupt::Watch::begin);
            let mut waits = false;
            let mut beat = Beat::new(admission_slot, begun);
            while admission_slot.answers.load(Ordering::Acquire) == answers {
                let now = clock::now();
                beat.feel(admission_slot, now);
                if admission_slot.growing.load(Ordering::Acquire) != 0 {
                    waits = true;
                    let wanted = self.wanted();
                    // A person lost patience, or another thread of the job gave back what was
                    // lacking.
                    if signals.as_ref().is_some_and(interrupt::Watch::came)
                        || wanted <= admission_slot.quota.load(Ordering::Acquire)
                    {
                        link.messages.put(ToBroker::NoMore);
                        return wanted <= admission_slot.quota.load(Ordering::Acquire);
                    }
                }
                // No answer: the broker is gone or stuck, and the job goes on as without it.
                let silent = match waits {
                    true => beat.stands(now),
                    false => beat.no_answer(now),
                };
                if silent || !self.attached(link) {
                    return true;
                }
                let _ = futex::wait(
                    &admission_slot.answers,
                    Flags::empty(),
                    answers,
                    Some(&clock::timespec(LOOK)),
                );
            }
            if admission_slot.quota.load(Ordering::Acquire) >= wanted {
                if waits {
                    // The memory of the one that ended may not be the driver's yet.
                    self.since.store(clock::now(), Ordering::Relaxed);
                }
                return true;
            }
            if waits {
                self.in_vain.store(clock::now(), Ordering::Relaxed);
                self.advises(link);
            }
        }
        false
    }

    /// What the job is told of the device: (free, total), where that differs from what the driver
    /// says.
    pub fn view(&self, link: &BrokerLink, free: u64, total: u64) -> Option<(u64, u64)> {
        let admission_slot = &link.lane.admission_slot;
        let ceiling = match admission_slot.declared.load(Ordering::Relaxed) {
            // What it was granted beyond its share is its own too.
            1 => admission_slot.quota.load(Ordering::Relaxed),
            _ => admission_slot.limit.load(Ordering::Relaxed),
        };
        if ceiling == 0 {
            return None;
        }
        let free = free.min(ceiling.saturating_sub(self.held()));
        let total = match admission_slot.declared.load(Ordering::Relaxed) {
            1 => total.min(ceiling),
            _ => total,
        };
        Some((free, total))
    }

    /// What a new broker is told of a job that has begun.
    pub fn runs(&self, share_before: u64) -> Option<u64> {
        self.entered().then(|| self.held().max(share_before))
    }

    /// Device memory was taken or given back. `claimed`: what of the taken was claimed before, and
    /// is not any more.
    pub fn memory_changed(&self, link: &BrokerLink, delta: i64, claimed: u64) {
        self.memory.fetch_add(delta, Ordering::Relaxed);
        self.settled(delta, claimed);
        self.report_memory(link);
    }

    /// The job took managed memory by itself, or gave it back.
    pub fn own_managed_changed(&self, link: &BrokerLink, delta: i64) {
        self.own_managed.fetch_add(delta, Ordering::Relaxed);
        self.report_memory(link);
    }

    /// Bytes of device memory held.
    pub fn held(&self) -> u64 {
        u64::try_from(self.memory.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Bytes of managed memory that the job took by itself.
    pub fn own_managed(&self) -> u64 {
        u64::try_from(self.own_managed.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Writes what is held into the lane.
    pub fn report_memory(&self, link: &BrokerLink) {
        let held = u64::try_from(self.memory.load(Ordering::Relaxed)).unwrap_or(0);
        let counters = &link.lane.counters;
        counters.memory.store(held, Ordering::Relaxed);
        counters.memory_peak.fetch_max(held, Ordering::Relaxed);
        counters.managed_own.store(self.own_managed(), Ordering::Relaxed);
        paging::report(link);
    }
}
