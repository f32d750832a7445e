// SPDX-License-Identifier: MIT OR Apache-2.0
//! Observation of a device's memory: sizes of contexts, and foreign memory (of programs without
//! weft).
//!
//! `unknown = memory - free - held by clients`. Free bytes come from:
//! * clients' probes: after making a context, with the first memory, and when the broker asks;
//! * NVML, without a context ([`super::watch`]): before any admission and while a job waits.
//!
//! A probe counts only while all other clients' memory is unchanged
//! ([`weft_protocol::admission_slot::ChangeCounts`]) and the driver has exited clients' memory
//! again. Otherwise memory just given would count as unknown. The client probes again with its next
//! memory.
//!
//! In a shared broker a probe is one user's claim, which can keep other users out:
//! * If NVML reports the device, a probe is only a reason to query NVML.
//! * Otherwise, an increase of foreign memory counts as far as another user or the owner confirms
//!   it within [`CONFIRMATION_NS`]. If no other user has a job there, it counts until another
//!   user's job has waited for that time.
//! * A stuck change ([`super::member`]) counts as all the memory that its job may have. Memory that
//!   changes at each probe for that long counts as reported.
//!
//! A context takes the increase of `unknown` since a recent sample, at most `unknown / contexts`.
//! The rest is foreign memory. Context sizes outlive the broker ([`super::device_facts`]).
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};

use super::job_table::JobTable;
use super::member::{Member, Stillness};
use crate::base::clock;
use crate::base::process::Process;
use weft_admission::{Admission, Device, DeviceId};
use weft_protocol::Ns;

/// Divisor of the device's memory that gives its largest context; the rest is foreign memory.
const LARGEST_CONTEXT_PART: u64 = 8;

/// Largest context. Today's take some hundred megabytes.
const LARGEST_CONTEXT_BYTES: u64 = 2 << 30;

/// Assumed context if none was measured: `min(memory / CAUTIOUS_PART, CAUTIOUS_BYTES)`.
const CAUTIOUS_PART: u64 = 16;
const CAUTIOUS_BYTES: u64 = 512 << 20;

/// Largest distance of two samples whose difference counts as contexts.
const TOGETHER_NS: Ns = 30_000_000_000;

/// Time in which a device's first job makes its context; then a size is assumed.
const FIRST_CONTEXT_NS: Ns = 10_000_000_000;

/// Time for which foreign memory still counts without NVML and clients.
const FORGOTTEN_NS: Ns = 30_000_000_000;

/// Time after which the driver has an exited client's memory again; equal to `RELEASE_NS` in
/// `interposer/src/admission/mod.rs`.
const SETTLES_NS: Ns = 2_000_000_000;

/// Time from a process's end until the driver reports its memory as free.
const LATE_FREE_NS: Ns = 200_000_000;

/// Time in which another user's probe can confirm a claim.
const CONFIRMATION_NS: Ns = 5_000_000_000;

/// Bound on a device's kept probes, one per user.
const KEPT_CLAIMS: usize = 32;

/// Interval between two queries to NVML while a job waits.
const NVML_PERIOD_NS: Ns = 250_000_000;

/// Most queries to NVML for one client's probe, until one finds memory unchanged.
const NVML_TRIES: u32 = 40;

/// Result of a client's probe.
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
    /// Latest time at which the driver has its memory again.
    settled: Ns,
}

/// Claims of several users about a device.
#[derive(Debug, Default)]
struct Claims {
    /// Foreign memory by the last probe of each user, the latest last.
    claims: Vec<ForeignClaim>,
    /// A claim that only one user makes, with the value before it.
    alone: Option<LoneClaim>,
    /// Users whose claims were not confirmed.
    doubted: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct ForeignClaim {
    uid: u32,
    foreign: u64,
    at: Ns,
}

#[derive(Debug, Clone, Copy)]
struct LoneClaim {
    uid: u32,
    before: u64,
    /// Time since which another user's job waits.
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
pub struct ClientProbe {
    pub client: u64,
    pub probe: MemoryProbe,
    /// Its user; `None`: the owner, whose claim needs no confirmation.
    pub uid: Option<u32>,
}

/// The jobs on the devices, for the observer.
#[derive(Debug, Clone, Copy)]
pub struct Jobs<'a> {
    pub machine: &'a Admission,
    pub table: &'a JobTable,
}

impl<'a> Jobs<'a> {
    fn about(&self, device: DeviceId) -> Option<Device> {
        self.machine.devices().find(|about| about.id == device).copied()
    }

    /// The processes on a device.
    fn members(&self, device: DeviceId) -> impl Iterator<Item = &'a Member> + use<'a> {
        self.table.on(device).flat_map(|(_, gang)| gang.members.values())
    }

    /// Asks other users' jobs on a device to probe. False if there are none.
    fn ask_others(&self, device: DeviceId, uid: u32) -> bool {
        let others = self.table.on(device).filter(|(_, gang)| gang.uid != uid);
        let admitted = others
            .flat_map(|(_, gang)| gang.members.values())
            .filter(|member| member.admitted_at().is_some());
        admitted.map(Member::ask_to_probe).count() > 0
    }

    /// Whether a job of another user waits for this device.
    fn any_waits(&self, device: DeviceId, uid: u32) -> bool {
        let mut others = self.table.on(device).filter(|(_, gang)| gang.uid != uid);
        others.any(|(job, _)| self.machine.waits(job))
    }
}

/// State of all devices' memory, from probes and NVML.
#[derive(Debug, Default)]
pub struct DeviceObserver {
    samples: HashMap<DeviceId, MemorySample>,
    /// Time of the last full sample.
    observed: HashMap<DeviceId, Ns>,
    /// Free bytes in NVML's last answer, also if it made no sample.
    last_free: HashMap<DeviceId, u64>,
    /// Bytes of their shares that unreattached processes do not hold, by the last sample.
    unheld: HashMap<DeviceId, u64>,
    /// Claims about devices that NVML does not report.
    believed: HashMap<DeviceId, Claims>,
    /// Devices about which to query NVML, with the remaining tries.
    to_ask: BTreeMap<DeviceId, u32>,
    exited: Vec<Exited>,
    /// Time of the last query to NVML.
    asked_at: Ns,
    /// Number of NVML's last answer read.
    answer: u64,
}

impl DeviceObserver {
    /// Forgets a device whose number goes to another one.
    pub fn forget(&mut self, device: DeviceId) {
        self.samples.remove(&device);
        self.observed.remove(&device);
        self.last_free.remove(&device);
        self.unheld.remove(&device);
        self.believed.remove(&device);
    }

    /// Whether a full sample was made at or after `since`.
    pub fn saw(&self, device: DeviceId, since: Ns) -> bool {
        self.observed.get(&device).is_some_and(|at| *at >= since)
    }

    /// Takes up to `most` of the bytes that unreattached processes do not hold.
    pub fn take_unheld(&mut self, device: DeviceId, most: u64) -> u64 {
        let unheld = self.unheld.entry(device).or_default();
        let taken = most.min(*unheld);
        *unheld -= taken;
        taken
    }

    /// Whether a query to NVML is due for any device.
    pub fn asks(&self) -> bool {
        !self.to_ask.is_empty()
    }

    /// Requests queries to NVML about a device.
    pub fn ask(&mut self, device: DeviceId) {
        self.to_ask.insert(device, NVML_TRIES);
    }

    /// Whether it is time to query NVML; if so, counts one try for each device.
    pub fn is_due(&mut self, now: Ns) -> bool {
        let due = now.saturating_sub(self.asked_at) >= NVML_PERIOD_NS;
        if due {
            self.asked_at = now;
            self.to_ask.retain(|_, tries| {
                *tries = tries.saturating_sub(1);
                *tries > 0
            });
        }
        due
    }

    #[cfg(test)]
    pub fn forget_question(&mut self) {
        self.asked_at = 0;
    }

    /// Number of NVML's last answer read.
    pub fn last_answer(&self) -> u64 {
        self.answer
    }

    /// Whether NVML's answer of this number is new; if so, it counts as read.
    pub fn is_new(&mut self, answer: u64) -> bool {
        std::mem::replace(&mut self.answer, answer) != answer
    }

    /// Records NVML's free bytes, also if no sample can be made of them.
    pub fn note_free(&mut self, device: DeviceId, free: u64) {
        self.last_free.insert(device, free);
    }

    /// Records that a client with memory on this device ended.
    pub fn exits(&mut self, device: DeviceId, process: Process) {
        let settled = clock::now().saturating_add(SETTLES_NS);
        self.exited.push(Exited {
            device,
            process,
            settled,
        });
    }

    /// Forgets exited clients whose memory the driver has again.
    pub fn check_exited(&mut self) {
        if self.exited.is_empty() {
            return;
        }
        let now = clock::now();
        for one in &mut self.exited {
            if now.saturating_add(LATE_FREE_NS) < one.settled && one.process.runs() == Some(false) {
                one.settled = now.saturating_add(LATE_FREE_NS);
            }
        }
        // A probe that is under way began at most `SETTLES_NS` ago.
        self.exited.retain(|one| now < one.settled.saturating_add(SETTLES_NS));
    }

    /// Time of a device's last full sample.
    #[cfg(test)]
    pub fn observed_at(&self, device: DeviceId) -> Option<Ns> {
        self.observed.get(&device).copied()
    }

    #[cfg(test)]
    pub fn forget_when(&mut self) {
        self.observed.clear();
    }

    /// The device before, and with an estimate of foreign memory for when samples fail for long:
    /// `foreign = max(foreign, memory - free - held - contexts)`. Exited clients count as foreign.
    pub fn guess(&self, jobs: &Jobs<'_>, device: DeviceId) -> Option<(Device, Device)> {
        let free = self.last_free.get(&device)?;
        let before = jobs.about(device)?;
        let (mut held, mut contexts) = (0u64, 0u64);
        for (job, gang) in jobs.table.on(device) {
            let share = jobs.machine.share(job).map_or(0, |(_, share)| share);
            held = held.saturating_add(gang.absent_part(share));
        }
        for member in jobs.members(device) {
            held = held.saturating_add(member.managed_own());
            if !member.returns_by_driver() {
                held = held.saturating_add(member.held());
            }
            contexts += u64::from(member.admitted_at().is_some() && !member.is_checkpointed());
        }
        let known = held.saturating_add(before.context.saturating_mul(contexts));
        let unknown = before.memory.saturating_sub(*free).saturating_sub(known);
        let foreign = before.foreign.max(unknown);
        Some((before, Device { foreign, ..before }))
    }

    /// The device before, and with the memory of exited clients counted as foreign, because it may
    /// still be taken at time `at`. `None`: even so no sample can be made.
    pub fn with_exited(&self, jobs: &Jobs<'_>, device: DeviceId, free: u64, at: Ns) -> Option<(Device, Device)> {
        let before = jobs.about(device)?;
        let held = self.held(jobs, device, at, None)?;
        let (_, foreign) = held.others(&before, free);
        Some((before, Device { foreign, ..before }))
    }

    /// Makes a sample of free bytes at time `at`. `own`: the probe of a client; `None`: NVML's
    /// answer.
    ///
    /// Returns the device before and after; `None`: no sample can be made.
    pub fn observe(
        &mut self,
        jobs: &Jobs<'_>,
        device: DeviceId,
        free: u64,
        at: Ns,
        own: Option<&ClientProbe>,
    ) -> Option<(Device, Device)> {
        let left = |one: &Exited| one.device == device && one.settled > at;
        if self.exited.iter().any(left) {
            return None;
        }
        let held = self.held(jobs, device, at, own)?;
        let before = jobs.about(device)?;
        let sample = MemorySample {
            unknown: before.memory.saturating_sub(free).saturating_sub(held.bytes),
            contexts: held.contexts,
            at,
        };
        let mut about = before;
        self.measure_contexts(jobs, &before, &sample, held.unclear);
        // A sample with managed memory shows no context size: its part on the device is unknown.
        if !held.unclear {
            let last = self.samples.insert(device, sample);
            // The room for a context that comes back does not shrink.
            let is_away = jobs.members(device).any(Member::is_checkpointed);
            let each = context_of(&about, sample, last).filter(|each| !is_away || *each > about.context);
            if let Some(each) = each {
                about.context = each;
                about.measured = true;
            }
        }
        let (unheld, foreign) = held.others(&about, free);
        about.foreign = foreign;
        self.unheld.insert(device, unheld);
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

    /// Measures contexts that the driver's checkpoint took off the device since the last sample.
    /// The broker's figure may be lower, and the driver loses a job that it restores without room.
    /// The figure of a sample that does not show them, such as an `unclear` one, may be too low.
    fn measure_contexts(&self, jobs: &Jobs<'_>, about: &Device, now: &MemorySample, unclear: bool) {
        let away = jobs.members(about.id).filter(|member| member.is_checkpointed());
        let left = away.map(Member::eviction).filter(|slot| slot.excess().is_none());
        let left: Vec<_> = left.collect();
        let last = self.samples.get(&about.id);
        let is_recent = |last: &MemorySample| now.at.saturating_sub(last.at) <= TOGETHER_NS;
        let shows = |last: &MemorySample| is_recent(last) && last.contexts == now.contexts + left.len() as u64;
        let least = match last.is_some_and(shows) && !unclear {
            true => 0,
            false => largest_context(about),
        };
        let took = last
            .map_or(0, |last| last.unknown.saturating_sub(now.unknown))
            .max(least);
        for slot in left {
            slot.set_excess(Some(took.saturating_sub(about.context)));
        }
    }

    /// Foreign bytes to assume if a client of `uid` claims this number of them.
    fn believes(&mut self, jobs: &Jobs<'_>, uid: u32, before: Device, says: u64, at: Ns) -> u64 {
        let mut believed = self.believed.remove(&before.id).unwrap_or_default();
        believed.claims.retain(|claim| claim.uid != uid);
        let recent = believed
            .claims
            .iter()
            .filter(|claim| at.saturating_sub(claim.at) <= CONFIRMATION_NS);
        let confirmed = recent.map(|claim| claim.foreign).max().unwrap_or(0);
        if believed.claims.len() >= KEPT_CLAIMS {
            believed.claims.remove(0);
        }
        believed.claims.push(ForeignClaim { uid, foreign: says, at });
        let mut foreign = says;
        if says <= before.foreign.max(confirmed) {
            if says > before.foreign {
                believed.doubted.retain(|doubted| *doubted != uid);
            }
            believed.alone = believed.alone.filter(|alone| says > alone.before);
        } else if jobs.ask_others(before.id, uid) || believed.doubted.contains(&uid) && jobs.any_waits(before.id, uid) {
            foreign = before.foreign.max(confirmed);
        } else {
            believed.alone.get_or_insert(LoneClaim {
                uid,
                before: before.foreign,
                waited_for: None,
            });
        }
        self.believed.insert(before.id, believed);
        foreign
    }

    /// Foreign bytes to assume: an unconfirmed claim ends once another user has waited for
    /// [`CONFIRMATION_NS`].
    fn doubts(&mut self, jobs: &Jobs<'_>, before: &Device, now: Ns) -> u64 {
        let Some(alone) = self.believed.get(&before.id).and_then(|it| it.alone) else {
            return before.foreign;
        };
        let waited_for = jobs.any_waits(before.id, alone.uid);
        let Some(believed) = self.believed.get_mut(&before.id) else {
            return before.foreign;
        };
        let since = alone.waited_for.filter(|_| waited_for).or(waited_for.then_some(now));
        if since.is_none_or(|since| now.saturating_sub(since) < CONFIRMATION_NS) {
            believed.alone = Some(LoneClaim {
                waited_for: since,
                ..alone
            });
            return before.foreign;
        }
        believed.alone = None;
        if !believed.doubted.contains(&alone.uid) && believed.doubted.len() < KEPT_CLAIMS {
            believed.doubted.push(alone.uid);
        }
        log::info!(
            "no other user confirmed the memory of other processes that user {} reports for a device",
            alone.uid
        );
        before.foreign.min(alone.before)
    }

    /// The device with assumptions for missing samples: a context size after `FIRST_CONTEXT_NS`, no
    /// foreign memory after `FORGOTTEN_NS`.
    pub fn without_samples(&mut self, jobs: &Jobs<'_>, before: Device, now: Ns, told: bool) -> Device {
        let mut about = before;
        about.foreign = self.doubts(jobs, &before, now);
        let since = jobs.members(before.id).filter_map(Member::admitted_at).min();
        if !about.measured && since.is_some_and(|since| since.saturating_add(FIRST_CONTEXT_NS) <= now) {
            about.context = (about.memory / CAUTIOUS_PART).min(CAUTIOUS_BYTES);
            about.measured = true;
        }
        let seen = self.samples.get(&before.id).map_or(0, |sample| sample.at);
        if !told && about.foreign > 0 && since.is_none() && seen.saturating_add(FORGOTTEN_NS) <= now {
            about.foreign = 0;
        }
        about
    }

    /// Memory that all clients on a device held at `at`, except exited ones; `None`: not known.
    fn held(&self, jobs: &Jobs<'_>, device: DeviceId, at: Ns, own: Option<&ClientProbe>) -> Option<HeldMemory> {
        let now = clock::now();
        let mut all = HeldMemory::default();
        for (job, gang) in jobs.table.iter() {
            let Some((_, share)) = jobs.machine.share(job).filter(|(on, _)| *on == device) else {
                continue;
            };
            // The bytes that an unreattached process holds are unknown. It may hold its part, which
            // is in its job's share already and is not foreign.
            all.absent = all.absent.saturating_add(gang.absent_part(share));
            all.unclear |= !gang.unreattached.is_empty();
            let mut sum = 0u64;
            for (other, member) in &gang.members {
                // The driver may have its memory again before the broker knows of its end.
                if member.process().leaves() {
                    return None;
                }
                // Read before the check for changes, so that the check covers this value.
                let says = member.held();
                let returns = member.returns_by_driver();
                let by_itself = match own {
                    Some(own) if own.client == *other => own.probe.own,
                    _ => member.managed_own(),
                };
                let held = match own {
                    Some(own) if own.client == *other => Some(own.probe.held),
                    // A part that is there already counts as foreign until all is.
                    _ if returns => Some(0),
                    _ => match member.stillness(at, now) {
                        Stillness::Still => Some(says),
                        // Without a context only a counter above 0 counts.
                        Stillness::NoContext => Some(says).filter(|held| *held > 0),
                        Stillness::Changing => return None,
                        Stillness::ChangingOn => {
                            all.unclear = true;
                            Some(says)
                        }
                        Stillness::Stuck => {
                            all.unclear = true;
                            Some(jobs.table.quota(jobs.machine, job).unwrap_or(says).max(1))
                        }
                    },
                };
                sum = sum.saturating_add(held.unwrap_or(0));
                // Its place in the job's share stays: the context comes back.
                all.contexts += u64::from(held.is_some() && !member.is_checkpointed());
                all.unclear |= returns || by_itself > 0 || (gang.managed && held.is_some_and(|held| held > 0));
                // This is not foreign memory.
                all.bytes = all.bytes.saturating_add(by_itself);
            }
            // A report above the share must not hide foreign memory.
            let most = if gang.managed { u64::MAX } else { share };
            all.bytes = all.bytes.saturating_add(sum.min(most));
        }
        Some(all)
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct HeldMemory {
    /// Without contexts.
    bytes: u64,
    contexts: u64,
    /// Partly managed or uncertain: the sample shows no context size.
    unclear: bool,
    /// Shares of unreattached processes.
    absent: u64,
}

impl HeldMemory {
    /// Splits the bytes that no client holds. Returns the bytes that unreattached processes lack of
    /// their shares, and the foreign bytes.
    fn others(&self, about: &Device, free: u64) -> (u64, u64) {
        let contexts = about.context.saturating_mul(self.contexts);
        let known = self.bytes.saturating_add(contexts);
        let others = about.memory.saturating_sub(free).saturating_sub(known);
        (self.absent.saturating_sub(others), others.saturating_sub(self.absent))
    }
}

/// The largest context of a device, bytes.
fn largest_context(about: &Device) -> u64 {
    (about.memory / LARGEST_CONTEXT_PART).min(LARGEST_CONTEXT_BYTES)
}

/// Context size from this sample, if it changes; `last`: the previous sample.
fn context_of(about: &Device, now: MemorySample, last: Option<MemorySample>) -> Option<u64> {
    if now.contexts == 0 || now.unknown == 0 {
        return None;
    }
    let largest = largest_context(about);
    let part = now.unknown / now.contexts;
    let came = last
        .filter(|last| now.contexts > last.contexts && now.at.saturating_sub(last.at) <= TOGETHER_NS)
        .map(|last| now.unknown.saturating_sub(last.unknown) / (now.contexts - last.contexts))
        .filter(|each| (1..=largest).contains(each));
    // A context of 0 bytes was not measured.
    match (came, about.measured && about.context > 0) {
        // A larger context counts at once, a smaller one by a quarter: contexts differ with the
        // code that jobs load.
        (Some(each), true) if each < about.context => Some((about.context - (about.context - each) / 4).min(part)),
        (Some(each), _) => Some(each),
        (None, true) => (part < about.context).then_some(part),
        (None, false) if part <= largest => Some(part),
        (None, false) => Some((about.memory / CAUTIOUS_PART).min(CAUTIOUS_BYTES)),
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
        // Foreign memory of 1 GiB was there before the first job, sampled or not.
        let before = Some(sample(1024 * MB, 0, 5));
        assert_eq!(context_of(&cold, sample(1424 * MB, 1, 9), before), Some(400 * MB));
        assert_eq!(context_of(&cold, sample(1424 * MB, 1, 9), None), Some(1424 * MB));
        // Foreign memory without a sample counts as context until there is a second context.
        assert_eq!(
            context_of(&warm(1424 * MB), sample(1824 * MB, 2, TOGETHER_NS * 9), before),
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
        // Too large for a context; and an old sample does not show the size of new contexts.
        assert_eq!(context_of(&cold, sample(9 << 30, 1, 9), None), Some(CAUTIOUS_BYTES));
        assert_eq!(
            context_of(&warm(300 * MB), sample(1824 * MB, 2, 9 + 2 * TOGETHER_NS), last),
            None
        );
        assert_eq!(context_of(&cold, sample(1824 * MB, 0, 9), last), None);
    }
}
