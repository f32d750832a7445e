//! Observation of a device's memory: what contexts and strangers take there.
//!
//! `unknown = memory - free - held by clients`. Free bytes come from:
//! * clients' probes: after making a context, with the first memory, and when the broker asks;
//! * NVML, without a context ([`super::watch`]): before any admission and while a job waits.
//!
//! A probe counts only where all other clients were still
//! ([`weft_protocol::admission_slot::Moves`]; making a context is a change) and exited clients'
//! memory is the driver's again. Otherwise memory just given would count as unknown. The client
//! then probes again with its next memory.
//!
//! In a shared broker a probe is one user's claim, and it keeps other users out:
//! * Where NVML tells of the device, a probe is only a reason to ask NVML.
//! * Elsewhere, more foreign memory counts as far as another user or the owner reports it within
//!   [`CONFIRMS`].
//! * Without another user's job to probe, a claim counts until such a job has waited for
//!   [`CONFIRMS`].
//! * A change under way for [`LONG`] counts as all that its job may have. Memory that changes at
//!   each probe for [`LONG`] counts as reported.
//!
//! A context takes the increase of `unknown` since a recent sample, at most `unknown / contexts`.
//! The rest is strangers'. Context sizes outlive the broker ([`super::known`]).
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

use super::controller::{Controller, Gang};
use super::shares;
use crate::clock;
use crate::process::Process;
use weft_admission::{Admission, Device, DeviceId, Event, Job};
use weft_protocol::Ns;
use weft_protocol::admission_slot::Moves;

/// Largest context, as a part of the device; the rest is strangers' memory.
const LARGEST_CONTEXT: u64 = 8;

/// Largest context. Today's take some hundred megabytes.
const LARGEST: u64 = 2 << 30;

/// Assumed context where nothing is measured: `min(memory / CAUTIOUS_PART, CAUTIOUS)`.
const CAUTIOUS_PART: u64 = 16;
const CAUTIOUS: u64 = 512 << 20;

/// Largest distance of two samples whose difference counts as contexts: strangers come less often.
const TOGETHER: Ns = 30_000_000_000;

/// Time in which a device's first job makes its context. No job waits longer for its measurement.
const MEASURES: Ns = 10_000_000_000;

/// How long foreign memory is believed without NVML and clients. Then the first waiting job finds
/// out.
const FORGOTTEN: Ns = 30_000_000_000;

/// Time after which an exited client's memory is the driver's; [`SETTLES`] in
/// `interposer/src/admission/mod.rs` equals it.
const SETTLES: Ns = 2_000_000_000;

/// Time from a process's end until its memory is surely free: the driver reports it a moment late.
const GRACE: Ns = 200_000_000;

/// Time after which a change counts as stuck. Changes take microseconds, in a full driver some
/// milliseconds. A longer one is of a stopped client (Ctrl-Z, a debugger), or a lie.
const LONG: Ns = 1_000_000_000;

/// Time in which another user's probe can confirm a claim.
const CONFIRMS: Ns = 5_000_000_000;

/// Bound on a device's kept probes, one per user.
const BELIEVED: usize = 32;

/// How often NVML is asked for one client's probe, until memory is still at that moment.
const TRIES: u32 = 40;

/// What a client's probe found.
#[derive(Debug, Clone, Copy)]
pub struct MemoryProbe {
    /// Free bytes.
    pub free: u64,
    /// Bytes that the client held itself.
    pub held: u64,
    /// Bytes of managed memory taken by the client itself. The driver evicts them at will.
    pub own: u64,
    /// When the probe began.
    pub at: Ns,
}

/// A process that left a device; its memory may still be taken.
#[derive(Debug)]
struct Exited {
    device: DeviceId,
    process: Process,
    /// When its memory is the driver's at the latest.
    settled: Ns,
}

/// When a client was admitted; 0: not yet.
#[derive(Debug, Default)]
pub struct AdmittedAt(AtomicU64);

impl AdmittedAt {
    /// Sets the time to now, unless it is set.
    pub fn now(&self) {
        let _ = self
            .0
            .compare_exchange(0, clock::now(), Ordering::Relaxed, Ordering::Relaxed);
    }

    fn since(&self) -> Ns {
        self.0.load(Ordering::Relaxed)
    }
}

/// For how long a client's memory has been changing.
#[derive(Debug, Default)]
pub struct Blur {
    /// Since when each probe has seen a change; 0: it was still.
    since: AtomicU64,
    /// Start and number of the change under way; 0: none is.
    stuck: AtomicU64,
    which: AtomicU64,
}

/// State of a client's memory at a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// Unchanged since the probe began.
    Still,
    /// No context was made.
    Nothing,
    Changes,
    /// Seen to change at each probe for [`LONG`].
    ChangesOn,
    /// One change is under way for [`LONG`].
    Stands,
}

impl Blur {
    fn sees(&self, moves: &Moves, at: Ns, now: Ns) -> Seen {
        let first = |word: &AtomicU64| match word.load(Ordering::Relaxed) {
            0 => {
                word.store(now.max(1), Ordering::Relaxed);
                now
            }
            since => since,
        };
        let under_way = moves.under_way();
        match under_way {
            Some(which) if self.which.load(Ordering::Relaxed) == which => {}
            Some(which) => {
                self.which.store(which, Ordering::Relaxed);
                self.stuck.store(0, Ordering::Relaxed);
            }
            None => self.stuck.store(0, Ordering::Relaxed),
        }
        let stuck = under_way.map(|_| first(&self.stuck));
        match moves.still_since(at) {
            None => Seen::Nothing,
            Some(true) => {
                self.since.store(0, Ordering::Relaxed);
                Seen::Still
            }
            Some(false) => {
                let long = |since: Ns| now.saturating_sub(since) >= LONG;
                match (stuck.is_some_and(long), long(first(&self.since))) {
                    (true, _) => Seen::Stands,
                    (_, true) => Seen::ChangesOn,
                    _ => Seen::Changes,
                }
            }
        }
    }

    /// Notes the start of a change under way.
    fn watches(&self, moves: &Moves, now: Ns) {
        self.sees(moves, now, now);
    }
}

/// Claims of several users about a device.
#[derive(Debug, Default)]
struct Believed {
    /// Foreign memory by the last probe of each user, the latest last.
    looks: Vec<Seeing>,
    /// A claim that only one user makes, with the value before it.
    alone: Option<Alone>,
    /// Users whose claims were not borne out.
    doubted: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Seeing {
    uid: u32,
    foreign: u64,
    at: Ns,
}

#[derive(Debug, Clone, Copy)]
struct Alone {
    uid: u32,
    before: u64,
    /// Since when another user's job waits.
    waited_for: Option<Ns>,
}

/// Unknown memory of a device at one moment.
#[derive(Debug, Clone, Copy)]
struct MemorySample {
    /// Bytes that no known client held.
    unknown: u64,
    /// Clients that had a context.
    contexts: u64,
    at: Ns,
}

/// A probe and its client.
#[derive(Debug)]
struct Own {
    client: u64,
    look: MemoryProbe,
    /// Its user; `None`: the owner, whose claim needs no confirmation.
    uid: Option<u32>,
}

/// The jobs on the devices, for the observer.
#[derive(Debug)]
struct Jobs<'a> {
    machine: &'a Admission,
    gangs: &'a HashMap<Job, Gang>,
}

impl Jobs<'_> {
    fn about(&self, device: DeviceId) -> Option<Device> {
        self.machine.devices().find(|about| about.id == device).copied()
    }

    fn part(&self, job: Job) -> Option<u64> {
        shares::part(self.machine, self.gangs, job)
    }

    /// Asks other users' jobs on a device to probe. False where there are none.
    fn ask_others(&self, device: DeviceId, uid: u32) -> bool {
        let others = self
            .gangs
            .values()
            .filter(|gang| gang.device == device && gang.uid != uid);
        let admitted_at = others
            .flat_map(|gang| gang.members.values())
            .filter(|it| it.admitted_at.since() > 0);
        let asked = admitted_at.map(|member| {
            member
                .entry
                .lane
                .admission_slot
                .probe_requests
                .fetch_add(1, Ordering::Release)
        });
        asked.count() > 0
    }

    /// Whether a job of another user waits for this device.
    fn any_waits(&self, device: DeviceId, uid: u32) -> bool {
        let others = self
            .gangs
            .iter()
            .filter(|(_, gang)| gang.device == device && gang.uid != uid);
        others.into_iter().any(|(job, _)| self.machine.waits(*job))
    }
}

/// State of all devices' memory, by probes and NVML.
#[derive(Debug, Default)]
pub struct DeviceObserver {
    samples: HashMap<DeviceId, MemorySample>,
    /// Time of the last full sample.
    observed: HashMap<DeviceId, Ns>,
    /// Free bytes by NVML's last answer, also without a sample.
    last_free: HashMap<DeviceId, u64>,
    /// Claims by device, where NVML does not tell.
    believed: HashMap<DeviceId, Believed>,
    /// Devices that NVML is to be asked of, with the tries that are left.
    to_ask: BTreeMap<DeviceId, u32>,
    exited: Vec<Exited>,
}

impl DeviceObserver {
    /// Forgets a device whose number goes to another one.
    pub fn forget(&mut self, device: DeviceId) {
        self.samples.remove(&device);
        self.observed.remove(&device);
        self.last_free.remove(&device);
        self.believed.remove(&device);
    }

    /// Whether a full sample was made at or after `since`.
    pub fn saw(&self, device: DeviceId, since: Ns) -> bool {
        self.observed.get(&device).is_some_and(|at| *at >= since)
    }

    /// Whether NVML is to be asked of any device.
    pub fn asks(&self) -> bool {
        !self.to_ask.is_empty()
    }

    /// Counts one try for each device.
    pub fn asked(&mut self) {
        self.to_ask.retain(|_, tries| {
            *tries = tries.saturating_sub(1);
            *tries > 0
        });
    }

    /// Notes that a client with memory on this device is gone.
    pub fn exits(&mut self, device: DeviceId, process: Process) {
        let settled = clock::now().saturating_add(SETTLES);
        self.exited.push(Exited {
            device,
            process,
            settled,
        });
    }

    pub fn look_after_the_exited(&mut self) {
        if self.exited.is_empty() {
            return;
        }
        let now = clock::now();
        for one in &mut self.exited {
            if now.saturating_add(GRACE) < one.settled && one.process.runs() == Some(false) {
                one.settled = now.saturating_add(GRACE);
            }
        }
        // A probe that is under way began at most `SETTLES` ago.
        self.exited.retain(|one| now < one.settled.saturating_add(SETTLES));
    }

    /// When a device was last seen.
    #[cfg(test)]
    pub fn observed_at(&self, device: DeviceId) -> Option<Ns> {
        self.observed.get(&device).copied()
    }

    #[cfg(test)]
    pub fn forget_when(&mut self) {
        self.observed.clear();
    }

    /// The device before, and with estimated foreign memory where samples fail for long:
    /// `foreign = max(foreign, memory - free - held - contexts)`. Exited clients count as foreign.
    fn guess(&self, jobs: &Jobs<'_>, device: DeviceId) -> Option<(Device, Device)> {
        let free = self.last_free.get(&device)?;
        let before = jobs.about(device)?;
        let on = |gang: &&Gang| gang.device == device;
        let members = jobs.gangs.values().filter(on).flat_map(|gang| gang.members.values());
        let (mut held, mut contexts) = (0u64, 0u64);
        for member in members {
            let counters = &member.entry.lane.counters;
            held = held.saturating_add(counters.memory.load(Ordering::Acquire));
            held = held.saturating_add(counters.managed_own.load(Ordering::Acquire));
            contexts += u64::from(member.admitted_at.since() > 0);
        }
        let known = held.saturating_add(before.context.saturating_mul(contexts));
        let unknown = before.memory.saturating_sub(*free).saturating_sub(known);
        let foreign = before.foreign.max(unknown);
        Some((before, Device { foreign, ..before }))
    }

    /// Takes in free bytes at time `at`; `own`: the probing client's, `None`: NVML's.
    ///
    /// Returns the device before and after; `None`: no sample can be made.
    fn observe(
        &mut self,
        jobs: &Jobs<'_>,
        device: DeviceId,
        free: u64,
        at: Ns,
        own: Option<&Own>,
    ) -> Option<(Device, Device)> {
        let Held {
            bytes: held,
            contexts,
            unclear: managed,
        } = self.held(jobs, device, at, own)?;
        let before = jobs.about(device)?;
        let unknown = before.memory.saturating_sub(free).saturating_sub(held);
        let sample = MemorySample { unknown, contexts, at };
        let mut about = before;
        // The part of managed memory on the device is not known.
        if !managed {
            let last = self.samples.insert(device, sample);
            if let Some(each) = context_of(&about, sample, last) {
                about.context = each;
                about.measured = true;
            }
        }
        about.foreign = unknown.saturating_sub(about.context.saturating_mul(contexts));
        match own {
            Some(own) => {
                if let Some(uid) = own.uid {
                    about.foreign = self.believes(jobs, uid, before, about.foreign, at);
                }
            }
            None => {
                self.to_ask.remove(&device);
                self.believed.remove(&device);
            }
        }
        self.observed.insert(device, at);
        Some((before, about))
    }

    /// Foreign bytes to believe where a client of `uid` reports `says`.
    fn believes(&mut self, jobs: &Jobs<'_>, uid: u32, before: Device, says: u64, at: Ns) -> u64 {
        let mut believed = self.believed.remove(&before.id).unwrap_or_default();
        believed.looks.retain(|look| look.uid != uid);
        let recent = believed
            .looks
            .iter()
            .filter(|look| at.saturating_sub(look.at) <= CONFIRMS);
        let confirmed = recent.map(|look| look.foreign).max().unwrap_or(0);
        if believed.looks.len() >= BELIEVED {
            believed.looks.remove(0);
        }
        believed.looks.push(Seeing { uid, foreign: says, at });
        let mut foreign = says;
        if says <= before.foreign.max(confirmed) {
            if says > before.foreign {
                believed.doubted.retain(|doubted| *doubted != uid);
            }
            believed.alone = believed.alone.filter(|alone| says > alone.before);
        } else if jobs.ask_others(before.id, uid) || believed.doubted.contains(&uid) && jobs.any_waits(before.id, uid) {
            foreign = before.foreign.max(confirmed);
        } else {
            believed.alone.get_or_insert(Alone {
                uid,
                before: before.foreign,
                waited_for: None,
            });
        }
        self.believed.insert(before.id, believed);
        foreign
    }

    /// Foreign bytes to believe: a lone claim ends once another user has waited for [`CONFIRMS`].
    fn doubts(&mut self, jobs: &Jobs<'_>, before: &Device, now: Ns) -> u64 {
        let Some(alone) = self.believed.get(&before.id).and_then(|it| it.alone) else {
            return before.foreign;
        };
        let waited_for = jobs.any_waits(before.id, alone.uid);
        let Some(believed) = self.believed.get_mut(&before.id) else {
            return before.foreign;
        };
        let since = alone.waited_for.filter(|_| waited_for).or(waited_for.then_some(now));
        if since.is_none_or(|since| now.saturating_sub(since) < CONFIRMS) {
            believed.alone = Some(Alone {
                waited_for: since,
                ..alone
            });
            return before.foreign;
        }
        believed.alone = None;
        if !believed.doubted.contains(&alone.uid) && believed.doubted.len() < BELIEVED {
            believed.doubted.push(alone.uid);
        }
        log::info!(
            "nobody else saw what user {} says that others hold of a device",
            alone.uid
        );
        before.foreign.min(alone.before)
    }

    /// The device with assumptions for missing samples: its first context after `MEASURES`, no
    /// strangers after `FORGOTTEN`.
    fn without_looks(&mut self, jobs: &Jobs<'_>, before: Device, now: Ns, told: bool) -> Device {
        let mut about = before;
        about.foreign = self.doubts(jobs, &before, now);
        let on = |gang: &&Gang| gang.device == before.id;
        let members = jobs.gangs.values().filter(on).flat_map(|gang| gang.members.values());
        let since = members
            .map(|member| member.admitted_at.since())
            .filter(|since| *since > 0)
            .min();
        if !about.measured && since.is_some_and(|since| since.saturating_add(MEASURES) <= now) {
            about.context = (about.memory / CAUTIOUS_PART).min(CAUTIOUS);
            about.measured = true;
        }
        let seen = self.samples.get(&before.id).map_or(0, |sample| sample.at);
        if !told && about.foreign > 0 && since.is_none() && seen.saturating_add(FORGOTTEN) <= now {
            about.foreign = 0;
        }
        about
    }

    /// What all clients on a device held at `at`; `None`: not known.
    fn held(&self, jobs: &Jobs<'_>, device: DeviceId, at: Ns, own: Option<&Own>) -> Option<Held> {
        let left = |one: &Exited| one.device == device && one.settled > at;
        if self.exited.iter().any(left) {
            return None;
        }
        let now = clock::now();
        let mut all = Held::default();
        for (job, gang) in jobs.gangs {
            let Some((_, share)) = jobs.machine.share(*job).filter(|(on, _)| *on == device) else {
                continue;
            };
            // What an unreattached process holds is not known.
            if !gang.absent.is_empty() {
                return None;
            }
            let mut sum = 0u64;
            for (other, member) in &gang.members {
                // The driver may have its memory before the broker hears of its end.
                if member.process.leaves() {
                    return None;
                }
                let lane = &member.entry.lane;
                // Read before the check for stillness, which then covers this value.
                let says = lane.counters.memory.load(Ordering::Acquire);
                let by_itself = match own {
                    Some(own) if own.client == *other => own.look.own,
                    _ => lane.counters.managed_own.load(Ordering::Acquire),
                };
                let held = match own {
                    Some(own) if own.client == *other => Some(own.look.held),
                    _ => match member.blur.sees(&lane.moves, at, now) {
                        Seen::Still => Some(says),
                        // Without a context only a counter above 0 counts.
                        Seen::Nothing => Some(says).filter(|held| *held > 0),
                        Seen::Changes => return None,
                        Seen::ChangesOn => {
                            all.unclear = true;
                            Some(says)
                        }
                        Seen::Stands => {
                            all.unclear = true;
                            Some(jobs.part(*job).unwrap_or(says).max(1))
                        }
                    },
                };
                sum = sum.saturating_add(held.unwrap_or(0));
                all.contexts += u64::from(held.is_some());
                all.unclear |= by_itself > 0 || (gang.managed && held.is_some_and(|held| held > 0));
                // This is no stranger's memory.
                all.bytes = all.bytes.saturating_add(by_itself);
            }
            // A report above the quota must not hide strangers' memory.
            let most = if gang.managed { u64::MAX } else { share };
            all.bytes = all.bytes.saturating_add(sum.min(most));
        }
        Some(all)
    }
}

impl Controller {
    /// Takes in a client's probe of its device. `told`: NVML tells of devices.
    pub fn context(&mut self, client: u64, look: MemoryProbe, told: bool) {
        let Some(job) = self.clients.get(&client).copied() else {
            return;
        };
        let Some((device, _)) = self.machine.share(job) else {
            return;
        };
        let named = self.devices.get(device.0 as usize);
        if self.shared && told && named.is_some_and(|uuid| self.listed.contains_key(uuid)) {
            self.observer.to_ask.insert(device, TRIES);
            return;
        }
        let uid = self.gangs.get(&job).map(|gang| gang.uid);
        let own = Own {
            client,
            look,
            uid: uid.filter(|uid| !self.is_owner(*uid)),
        };
        if !self.observes(device, look.free, look.at, Some(&own)) {
            let member = self.gangs.get(&job).and_then(|gang| gang.members.get(&client));
            if let Some(member) = member {
                member
                    .entry
                    .lane
                    .admission_slot
                    .probe_requests
                    .fetch_add(1, Ordering::Release);
            }
        }
    }

    /// Takes in NVML's answer: `free` bytes at time `at`.
    pub fn sees(&mut self, uuid: &str, free: u64, at: Ns) {
        if let Some(device) = self.devices.iter().position(|known| known == uuid) {
            let device = DeviceId(device as u32);
            self.observer.last_free.insert(device, free);
            self.observes(device, free, at, None);
        }
    }

    /// Enters free bytes. False if no sample can be made.
    fn observes(&mut self, device: DeviceId, free: u64, at: Ns, own: Option<&Own>) -> bool {
        let jobs = Jobs {
            machine: &self.machine,
            gangs: &self.gangs,
        };
        let Some((before, about)) = self.observer.observe(&jobs, device, free, at, own) else {
            return false;
        };
        self.change(before, about);
        true
    }

    /// Enters the estimate of foreign memory.
    pub fn guess(&mut self, device: DeviceId) {
        let jobs = Jobs {
            machine: &self.machine,
            gangs: &self.gangs,
        };
        if let Some((before, about)) = self.observer.guess(&jobs, device) {
            self.change(before, about);
        }
    }

    fn change(&mut self, before: Device, about: Device) {
        if before == about {
            return;
        }
        if (before.context, before.measured) != (about.context, about.measured)
            && let Some(uuid) = self.devices.get(about.id.0 as usize)
        {
            log::info!("a context on {uuid} takes {} bytes", about.context);
            self.known.context(uuid, about.context, &self.devices);
        }
        self.tell(Event::Device(about));
        self.carry_out();
    }

    /// Enters assumptions for devices without recent samples.
    pub fn look_at_the_unseen(&mut self, told: bool) {
        self.look_at_the_unseen_at(clock::now(), told);
    }

    /// [`Controller::look_at_the_unseen`] at `now`.
    pub fn look_at_the_unseen_at(&mut self, now: Ns, told: bool) {
        let devices: Vec<Device> = self.machine.devices().copied().collect();
        for member in self.gangs.values().flat_map(|gang| gang.members.values()) {
            member.blur.watches(&member.entry.lane.moves, now);
        }
        for before in devices {
            let jobs = Jobs {
                machine: &self.machine,
                gangs: &self.gangs,
            };
            let about = self.observer.without_looks(&jobs, before, now, told);
            self.change(before, about);
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Held {
    /// Without contexts.
    bytes: u64,
    contexts: u64,
    /// Partly managed or uncertain: the sample says nothing of contexts.
    unclear: bool,
}

/// Context size by this sample, if new; `last`: the sample before.
fn context_of(about: &Device, now: MemorySample, last: Option<MemorySample>) -> Option<u64> {
    if now.contexts == 0 || now.unknown == 0 {
        return None;
    }
    let largest = (about.memory / LARGEST_CONTEXT).min(LARGEST);
    let part = now.unknown / now.contexts;
    let came = last
        .filter(|last| now.contexts > last.contexts && now.at.saturating_sub(last.at) <= TOGETHER)
        .map(|last| now.unknown.saturating_sub(last.unknown) / (now.contexts - last.contexts))
        .filter(|each| (1..=largest).contains(each));
    // A context of 0 bytes was not measured.
    match (came, about.measured && about.context > 0) {
        // A larger context counts at once, a smaller one by a quarter: contexts differ by what jobs
        // load.
        (Some(each), true) if each < about.context => Some((about.context - (about.context - each) / 4).min(part)),
        (Some(each), _) => Some(each),
        (None, true) => (part < about.context).then_some(part),
        (None, false) if part <= largest => Some(part),
        (None, false) => Some((about.memory / CAUTIOUS_PART).min(CAUTIOUS)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    fn sample(unknown: u64, contexts: u64, at: Ns) -> MemorySample {
        MemorySample { unknown, contexts, at }
    }

    #[test]
    fn a_context_is_what_came_with_it_and_never_more_than_its_part() {
        let cold = Device {
            measured: false,
            ..Device::new(DeviceId(0), 80 << 30)
        };
        let warm = |context| Device {
            context,
            measured: true,
            ..cold
        };
        // A stranger of 1 GiB was there before the first job, seen or not.
        let before = Some(sample(1024 * MB, 0, 5));
        assert_eq!(context_of(&cold, sample(1424 * MB, 1, 9), before), Some(400 * MB));
        assert_eq!(context_of(&cold, sample(1424 * MB, 1, 9), None), Some(1424 * MB));
        // An unseen stranger counts as context until a second context comes.
        assert_eq!(
            context_of(&warm(1424 * MB), sample(1824 * MB, 2, TOGETHER * 9), before),
            Some(912 * MB)
        );
        let last = Some(sample(1424 * MB, 1, 9));
        assert_eq!(
            context_of(&warm(1424 * MB), sample(1824 * MB, 2, 10), last),
            Some(912 * MB),
            "by a quarter of the way, and its part at most"
        );
        assert_eq!(
            context_of(&warm(300 * MB), sample(1824 * MB, 2, 10), last),
            Some(400 * MB)
        );
        // Too large for a context; and an old sample says nothing of newcomers.
        assert_eq!(context_of(&cold, sample(9 << 30, 1, 9), None), Some(CAUTIOUS));
        assert_eq!(
            context_of(&warm(300 * MB), sample(1824 * MB, 2, 9 + 2 * TOGETHER), last),
            None
        );
        assert_eq!(context_of(&cold, sample(1824 * MB, 0, 9), last), None);
    }
}
