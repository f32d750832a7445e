//! Observation of a device's memory: what contexts and strangers take there.
//!
//! `unknown = memory - free - held by clients`. Free bytes come from:
//! * clients' probes: after making a context, with the first memory, and when the broker asks;
//! * NVML, without a context ([`super::watch`]): before any admission and while a job waits.
//!
//! A probe counts only while all other clients' memory is still
//! ([`weft_protocol::admission_slot::Moves`]) and exited clients' memory is the driver's again.
//! Else memory just given would count as unknown; the client probes again with its next memory.
//!
//! In a shared broker a probe is one user's claim, which keeps other users out:
//! * Where NVML tells of the device, a probe is only a reason to ask NVML.
//! * Elsewhere, more foreign memory counts as far as another user or the owner confirms it within
//!   [`CONFIRMATION_NS`]. Without another user's job there, it counts until one has waited so long.
//! * A stuck change ([`super::member`]) counts as all that its job may have. Memory that changes at
//!   each probe for that long counts as reported.
//!
//! A context takes the increase of `unknown` since a recent sample, at most `unknown / contexts`.
//! The rest is strangers'. Context sizes outlive the broker ([`super::device_facts`]).
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};

use super::job_table::JobTable;
use super::member::{Member, Stillness};
use crate::base::clock;
use crate::base::process::Process;
use weft_admission::{Admission, Device, DeviceId};
use weft_protocol::Ns;

/// Largest context, as a part of the device; the rest is strangers' memory.
const LARGEST_CONTEXT_PART: u64 = 8;

/// Largest context. Today's take some hundred megabytes.
const LARGEST_CONTEXT_BYTES: u64 = 2 << 30;

/// Assumed context where nothing is measured: `min(memory / CAUTIOUS_PART, CAUTIOUS_BYTES)`.
const CAUTIOUS_PART: u64 = 16;
const CAUTIOUS_BYTES: u64 = 512 << 20;

/// Largest distance of two samples whose difference counts as contexts.
const TOGETHER_NS: Ns = 30_000_000_000;

/// Time in which a device's first job makes its context; then a size is assumed.
const FIRST_CONTEXT_NS: Ns = 10_000_000_000;

/// How long foreign memory is believed without NVML and clients.
const FORGOTTEN_NS: Ns = 30_000_000_000;

/// Time after which an exited client's memory is the driver's; `SETTLES` in
/// `interposer/src/admission/mod.rs` equals it.
const SETTLES_NS: Ns = 2_000_000_000;

/// Time from a process's end until the driver reports its memory as free.
const LATE_FREE_NS: Ns = 200_000_000;

/// Time in which another user's probe can confirm a claim.
const CONFIRMATION_NS: Ns = 5_000_000_000;

/// Bound on a device's kept probes, one per user.
const KEPT_CLAIMS: usize = 32;

/// Interval between two questions to NVML while a job waits.
const NVML_PERIOD_NS: Ns = 250_000_000;

/// How often NVML is asked for one client's probe, until memory is still at that moment.
const NVML_TRIES: u32 = 40;

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

/// Claims of several users about a device.
#[derive(Debug, Default)]
struct Claims {
    /// Foreign memory by the last probe of each user, the latest last.
    claims: Vec<ForeignClaim>,
    /// A claim that only one user makes, with the value before it.
    alone: Option<LoneClaim>,
    /// Users whose claims were not borne out.
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

    /// Asks other users' jobs on a device to probe. False where there are none.
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

/// State of all devices' memory, by probes and NVML.
#[derive(Debug, Default)]
pub struct DeviceObserver {
    samples: HashMap<DeviceId, MemorySample>,
    /// Time of the last full sample.
    observed: HashMap<DeviceId, Ns>,
    /// Free bytes by NVML's last answer, also without a sample.
    last_free: HashMap<DeviceId, u64>,
    /// Bytes by the last sample that processes that are no clients do not hold of their shares.
    unheld: HashMap<DeviceId, u64>,
    /// Claims by device, where NVML does not tell.
    believed: HashMap<DeviceId, Claims>,
    /// Devices that NVML is to be asked of, with the tries that are left.
    to_ask: BTreeMap<DeviceId, u32>,
    exited: Vec<Exited>,
    /// When NVML was last asked, and the number of its last answer read.
    asked_at: Ns,
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

    /// Takes up to `most` bytes of what processes that are no clients do not hold.
    pub fn take_unheld(&mut self, device: DeviceId, most: u64) -> u64 {
        let unheld = self.unheld.entry(device).or_default();
        let taken = most.min(*unheld);
        *unheld -= taken;
        taken
    }

    /// Whether NVML is to be asked of any device.
    pub fn asks(&self) -> bool {
        !self.to_ask.is_empty()
    }

    /// Wants NVML to be asked of a device.
    pub fn ask(&mut self, device: DeviceId) {
        self.to_ask.insert(device, NVML_TRIES);
    }

    /// Whether it is time to ask NVML, which then is asked: counts one try for each device.
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

    /// Whether NVML's answer of this number is a new one, which then is read.
    pub fn is_new(&mut self, answer: u64) -> bool {
        std::mem::replace(&mut self.answer, answer) != answer
    }

    /// Takes in NVML's free bytes, also where no sample can be made of them.
    pub fn note_free(&mut self, device: DeviceId, free: u64) {
        self.last_free.insert(device, free);
    }

    /// Notes that a client with memory on this device is gone.
    pub fn exits(&mut self, device: DeviceId, process: Process) {
        let settled = clock::now().saturating_add(SETTLES_NS);
        self.exited.push(Exited {
            device,
            process,
            settled,
        });
    }

    /// Forgets exited clients whose memory is the driver's.
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
    pub fn guess(&self, jobs: &Jobs<'_>, device: DeviceId) -> Option<(Device, Device)> {
        let free = self.last_free.get(&device)?;
        let before = jobs.about(device)?;
        let (mut held, mut contexts) = (0u64, 0u64);
        for (job, gang) in jobs.table.on(device) {
            let share = jobs.machine.share(job).map_or(0, |(_, share)| share);
            held = held.saturating_add(gang.absent_part(share));
        }
        for member in jobs.members(device) {
            held = held.saturating_add(member.held());
            held = held.saturating_add(member.managed_own());
            contexts += u64::from(member.admitted_at().is_some());
        }
        let known = held.saturating_add(before.context.saturating_mul(contexts));
        let unknown = before.memory.saturating_sub(*free).saturating_sub(known);
        let foreign = before.foreign.max(unknown);
        Some((before, Device { foreign, ..before }))
    }

    /// The device before, and with the memory of exited clients counted as foreign, as it may still
    /// be taken at time `at`. `None`: no sample could be made without them either.
    pub fn with_exited(&self, jobs: &Jobs<'_>, device: DeviceId, free: u64, at: Ns) -> Option<(Device, Device)> {
        let before = jobs.about(device)?;
        let held = self.held(jobs, device, at, None)?;
        let (_, foreign) = held.others(&before, free);
        Some((before, Device { foreign, ..before }))
    }

    /// Takes in free bytes at time `at`; `own`: the probing client's, `None`: NVML's.
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
        // The part of managed memory on the device is not known.
        if !held.unclear {
            let last = self.samples.insert(device, sample);
            if let Some(each) = context_of(&about, sample, last) {
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

    /// Foreign bytes to believe where a client of `uid` reports `says`.
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

    /// Foreign bytes to believe: a lone claim ends once another user has waited for
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

    /// The device with assumptions for missing samples: its first context after `FIRST_CONTEXT_NS`,
    /// no strangers after `FORGOTTEN_NS`.
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

    /// Memory that all clients on a device held at `at`, but for exited ones; `None`: not known.
    fn held(&self, jobs: &Jobs<'_>, device: DeviceId, at: Ns, own: Option<&ClientProbe>) -> Option<HeldMemory> {
        let now = clock::now();
        let mut all = HeldMemory::default();
        for (job, gang) in jobs.table.iter() {
            let Some((_, share)) = jobs.machine.share(job).filter(|(on, _)| *on == device) else {
                continue;
            };
            // Nobody knows the bytes that an unreattached process holds. It may hold its part. That
            // part is in the book already and no stranger's.
            all.absent = all.absent.saturating_add(gang.absent_part(share));
            all.unclear |= !gang.unreattached.is_empty();
            let mut sum = 0u64;
            for (other, member) in &gang.members {
                // The driver may have its memory before the broker hears of its end.
                if member.process().leaves() {
                    return None;
                }
                // Read before the check for stillness, which then covers this value.
                let says = member.held();
                let by_itself = match own {
                    Some(own) if own.client == *other => own.probe.own,
                    _ => member.managed_own(),
                };
                let held = match own {
                    Some(own) if own.client == *other => Some(own.probe.held),
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

#[derive(Debug, Clone, Copy, Default)]
struct HeldMemory {
    /// Without contexts.
    bytes: u64,
    contexts: u64,
    /// Partly managed or uncertain: the sample says nothing of contexts.
    unclear: bool,
    /// Shares of processes that are no clients.
    absent: u64,
}

impl HeldMemory {
    /// Of the bytes that no client holds: how much processes that are no clients lack of their
    /// shares, and what is strangers'.
    fn others(&self, about: &Device, free: u64) -> (u64, u64) {
        let contexts = about.context.saturating_mul(self.contexts);
        let known = self.bytes.saturating_add(contexts);
        let others = about.memory.saturating_sub(free).saturating_sub(known);
        (self.absent.saturating_sub(others), others.saturating_sub(self.absent))
    }
}

/// Context size by this sample, if new; `last`: the sample before.
fn context_of(about: &Device, now: MemorySample, last: Option<MemorySample>) -> Option<u64> {
    if now.contexts == 0 || now.unknown == 0 {
        return None;
    }
    let largest = (about.memory / LARGEST_CONTEXT_PART).min(LARGEST_CONTEXT_BYTES);
    let part = now.unknown / now.contexts;
    let came = last
        .filter(|last| now.contexts > last.contexts && now.at.saturating_sub(last.at) <= TOGETHER_NS)
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
        // A stranger of 1 GiB was there before the first job, seen or not.
        let before = Some(sample(1024 * MB, 0, 5));
        assert_eq!(context_of(&cold, sample(1424 * MB, 1, 9), before), Some(400 * MB));
        assert_eq!(context_of(&cold, sample(1424 * MB, 1, 9), None), Some(1424 * MB));
        // An unseen stranger counts as context until a second context comes.
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
        // Too large for a context; and an old sample says nothing of newcomers.
        assert_eq!(context_of(&cold, sample(9 << 30, 1, 9), None), Some(CAUTIOUS_BYTES));
        assert_eq!(
            context_of(&warm(300 * MB), sample(1824 * MB, 2, 9 + 2 * TOGETHER_NS), last),
            None
        );
        assert_eq!(context_of(&cold, sample(1824 * MB, 0, 9), last), None);
    }
}
