//! What contexts and strangers take of a device: what is not free there and nobody is known to
//! hold.
//!
//! Clients look at what is free when they have made a context, when they have their first memory,
//! and when they are asked to; NVML tells without a context ([`super::watch`]), before anybody is
//! let in and while somebody waits. The broker knows what its clients hold. The two make one
//! picture only if nobody took or gave back anything between the look and the broker's; else the
//! memory that somebody was just given would be taken for a context's or a stranger's, and whoever
//! wants it later is told there is none. So a look counts only where all others were still
//! ([`weft_protocol::admission_slot::Moves`]; making a context is a change too), and where the
//! memory of those who left is the driver's again. A client whose look does not count looks once
//! more with its next memory.
//!
//! In a shared broker a look is one user's word, by which others are kept out: where NVML tells of
//! the device only NVML is believed, and a client's look is but the reason to ask it. Where it does
//! not, a look that finds more of strangers than was known counts as far as another user's (or the
//! owner's) says the same within [`CONFIRMS`]; where no other user has a job that could look it
//! counts until one of his has waited for so long, who then finds out for himself. Nor does it help
//! to keep a change under way: one that has been for [`LONG`] counts as all that its job may have,
//! and one that changes at each look for that long as what it says that it holds.
//!
//! Of what nobody is known to hold a context takes what came with it, where there is a picture of a
//! moment before; no more than an equal part in any case. The rest is strangers'. What contexts
//! take is kept over brokers ([`super::known`]).
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

use super::book::{Book, Gang};
use super::process::Process;
use super::shares;
use crate::clock;
use weft_admission::{Admission, Device, DeviceId, Event, Job};
use weft_protocol::Ns;
use weft_protocol::admission_slot::Moves;

/// No context is taken for larger than this part of a device: then others than weft's jobs hold
/// memory.
const LARGEST_CONTEXT: u64 = 8;

/// Nor for larger than this: contexts of today's devices take some hundred megabytes.
const LARGEST: u64 = 2 << 30;

/// What a context is taken for where nothing tells: this part of the device, and no more than
/// [`CAUTIOUS`].
const CAUTIOUS_PART: u64 = 16;
const CAUTIOUS: u64 = 512 << 20;

/// Two pictures that lie no further apart differ by what the clients that came between them took:
/// strangers come and go less often.
const TOGETHER: Ns = 30_000_000_000;

/// A job that was let in first on a device has made its context after this; who waits for what that
/// takes waits no longer.
const MEASURES: Ns = 10_000_000_000;

/// Where nothing tells what is free without a context, and nobody of ours has one, strangers are
/// believed to be there for so long. Then whoever waits first finds out.
const FORGOTTEN: Ns = 30_000_000_000;

/// What one that left held is the driver's again after this (clients
/// allow as much: [`SETTLES`] in `interposer/src/admission/mod.rs`).
const SETTLES: Ns = 2_000_000_000;

/// The driver has the memory of a process again that ended so long ago: it is given back while the
/// process ends, and told of a moment later at most.
const GRACE: Ns = 200_000_000;

/// A change of a client's memory takes microseconds, in a full driver some milliseconds. One that
/// is under way for so long stands still with its client (Ctrl-Z, a debugger), or is none.
const LONG: Ns = 1_000_000_000;

/// Within this another user's look has to say what one says.
const CONFIRMS: Ns = 5_000_000_000;

/// Looks at a device that are kept, each another user's.
const BELIEVED: usize = 32;

/// NVML is asked so often for a client that has looked, until nobody takes or gives back memory at
/// that moment.
const TRIES: u32 = 40;

/// What a client saw.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// Bytes that were free.
    pub free: u64,
    /// Bytes that it held itself.
    pub held: u64,
    /// Bytes of managed memory that it had taken by itself: they lie on the device as far as the
    /// driver likes, and leave it where others want the room.
    pub own: u64,
    /// When it began to look.
    pub at: Ns,
}

/// A process that left a device, and whose memory may not be the driver's again.
#[derive(Debug)]
struct Exited {
    device: DeviceId,
    process: Process,
    /// When its memory is the driver's again at the latest.
    settled: Ns,
}

/// When a client was let in; 0: it was not yet.
#[derive(Debug, Default)]
pub struct AdmittedAt(AtomicU64);

impl AdmittedAt {
    /// Now, if not before.
    pub fn now(&self) {
        let _ = self
            .0
            .compare_exchange(0, clock::now(), Ordering::Relaxed, Ordering::Relaxed);
    }

    fn since(&self) -> Ns {
        self.0.load(Ordering::Relaxed)
    }
}

/// Since when a client's memory is seen to change.
#[derive(Debug, Default)]
pub struct Blur {
    /// At each look since then; 0: it was still.
    since: AtomicU64,
    /// Since when this change is under way, and which; 0: none is.
    stuck: AtomicU64,
    which: AtomicU64,
}

/// How a client's memory is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// It is what it says, and was for long enough.
    Still,
    /// It has no context.
    Nothing,
    /// It changes.
    Changes,
    /// It has changed at each look for [`LONG`].
    ChangesOn,
    /// The same change is under way for [`LONG`].
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

    /// Looks whether a change is under way, so that it is known since when.
    fn watches(&self, moves: &Moves, now: Ns) {
        self.sees(moves, now, now);
    }
}

/// What several users' jobs saw of a device.
#[derive(Debug, Default)]
struct Believed {
    /// What strangers held by the last look of a user's jobs, the latest last.
    looks: Vec<Seeing>,
    /// What one user alone says, and what was known before.
    alone: Option<Alone>,
    /// Users whose word alone others found no reason to believe.
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
    /// Since when somebody of another user waits.
    waited_for: Option<Ns>,
}

/// What was free of a device at one moment, against what was known of it.
#[derive(Debug, Clone, Copy)]
struct MemorySample {
    /// Bytes that nobody was known to hold.
    unknown: u64,
    /// Clients that had a context.
    contexts: u64,
    /// When.
    at: Ns,
}

/// A client that looked, and what it saw.
#[derive(Debug)]
struct Own {
    client: u64,
    look: Look,
    /// Its user, if that user's word alone is not to keep others out.
    uid: Option<u32>,
}

/// The jobs whose memory is on the devices, as far as an observer looks at them.
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

    /// Has other users' jobs on a device look at it. False where there are none.
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

/// What is known of each device's memory by looks at what is free of it.
#[derive(Debug, Default)]
pub struct DeviceObserver {
    /// The last sample of each device.
    samples: HashMap<DeviceId, MemorySample>,
    /// When all of a device was last seen.
    observed: HashMap<DeviceId, Ns>,
    /// What was free at the last look, whether that made a sample or not.
    last_free: HashMap<DeviceId, u64>,
    /// What jobs of several users saw of a device, where NVML does not tell.
    believed: HashMap<DeviceId, Believed>,
    /// Devices that NVML is to be asked of since something changed there, and how often still.
    to_ask: BTreeMap<DeviceId, u32>,
    /// Processes that left a little while ago.
    exited: Vec<Exited>,
}

impl DeviceObserver {
    /// A number is another device's from now on.
    pub fn forget(&mut self, device: DeviceId) {
        self.samples.remove(&device);
        self.observed.remove(&device);
        self.last_free.remove(&device);
        self.believed.remove(&device);
    }

    /// Whether all of a device was seen since then.
    pub fn saw(&self, device: DeviceId, since: Ns) -> bool {
        self.observed.get(&device).is_some_and(|at| *at >= since)
    }

    /// Whether NVML is to be asked of any device.
    pub fn asks(&self) -> bool {
        !self.to_ask.is_empty()
    }

    /// NVML is asked once more.
    pub fn asked(&mut self) {
        self.to_ask.retain(|_, tries| {
            *tries = tries.saturating_sub(1);
            *tries > 0
        });
    }

    /// A client with memory on this device is gone.
    pub fn exits(&mut self, device: DeviceId, process: Process) {
        let settled = clock::now().saturating_add(SETTLES);
        self.exited.push(Exited {
            device,
            process,
            settled,
        });
    }

    /// Looks which of the processes that left have ended.
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
        // A look that is under way is from a moment ago at most.
        self.exited.retain(|one| now < one.settled.saturating_add(SETTLES));
    }

    /// When a device was last seen.
    #[cfg(test)]
    pub fn observed_at(&self, device: DeviceId) -> Option<Ns> {
        self.observed.get(&device).copied()
    }

    /// As if no device had been seen yet.
    #[cfg(test)]
    pub fn forget_when(&mut self) {
        self.observed.clear();
    }

    /// What strangers may hold of a device that nobody could see for long: no less than was known,
    /// and as much as the last look leaves room for, those who left and what is on its way counted
    /// among them.
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

    /// Takes in what was free; `own`: the client that looked, and what it saw.
    ///
    /// The device as it was, and as it is taken to be now; `None`: that makes no sample.
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
        // What of managed memory lies on the device is not known here.
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

    /// What strangers hold, where a client saw so much of theirs.
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

    /// Whoever says alone that strangers hold a device is believed for so long while others wait
    /// for it.
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

    /// What is taken for so of a device of which nothing better is known at this time: what its
    /// first job's context takes, and that strangers whom nobody has seen for long are gone.
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

    /// What all clients on a device held when somebody looked; `None` where that is not known.
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
            // Who has not come back holds nobody knows how much.
            if !gang.absent.is_empty() {
                return None;
            }
            let mut sum = 0u64;
            for (other, member) in &gang.members {
                // The driver may have its memory again though nobody was told that it is gone.
                if member.process.leaves() {
                    return None;
                }
                let lane = &member.entry.lane;
                // Before the last word on whether it was still.
                let says = lane.counters.memory.load(Ordering::Acquire);
                let by_itself = match own {
                    Some(own) if own.client == *other => own.look.own,
                    _ => lane.counters.managed_own.load(Ordering::Acquire),
                };
                let held = match own {
                    Some(own) if own.client == *other => Some(own.look.held),
                    _ => match member.blur.sees(&lane.moves, at, now) {
                        Seen::Still => Some(says),
                        // Not even a context, unless it says so.
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
                // No stranger has what it took as managed memory by itself.
                all.bytes = all.bytes.saturating_add(by_itself);
            }
            // Beyond what it may have a job's word is nothing that keeps strangers from being seen.
            let most = if gang.managed { u64::MAX } else { share };
            all.bytes = all.bytes.saturating_add(sum.min(most));
        }
        Some(all)
    }
}

impl Book {
    /// A client has looked at the device that it runs on. `told`: NVML tells of devices.
    pub fn context(&mut self, client: u64, look: Look, told: bool) {
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

    /// So much was free of a device then.
    pub fn sees(&mut self, uuid: &str, free: u64, at: Ns) {
        if let Some(device) = self.devices.iter().position(|known| known == uuid) {
            let device = DeviceId(device as u32);
            self.observer.last_free.insert(device, free);
            self.observes(device, free, at, None);
        }
    }

    /// Enters what was free. False if that makes no sample.
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

    /// Enters what strangers may hold of a device that nobody could see for long.
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

    /// Enters what is taken for so of devices of which nothing better is known.
    pub fn look_at_the_unseen(&mut self, told: bool) {
        self.look_at_the_unseen_at(clock::now(), told);
    }

    /// [`Book::look_at_the_unseen`] at this time.
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

/// What all clients on a device held.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    /// Bytes, contexts left out.
    bytes: u64,
    /// How many contexts they had.
    contexts: u64,
    /// Some of it is managed memory, or is not known for sure: it tells nothing of what a context
    /// takes.
    unclear: bool,
}

/// What a context takes, if this picture tells anything new of that; `last`: the one before it.
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
    // A context of no bytes is none that was measured.
    match (came, about.measured && about.context > 0) {
        // Contexts differ by what a job loads: the larger ones count, and smaller ones bit by bit.
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
        // A stranger of 1 GiB was there before the first job, and was seen or not.
        let before = Some(sample(1024 * MB, 0, 5));
        assert_eq!(context_of(&cold, sample(1424 * MB, 1, 9), before), Some(400 * MB));
        assert_eq!(context_of(&cold, sample(1424 * MB, 1, 9), None), Some(1424 * MB));
        // Unseen it counts as context until a second one comes, beside which it cannot have been
        // one.
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
        // What is far too large is no context's, and an old picture tells nothing of who came
        // since.
        assert_eq!(context_of(&cold, sample(9 << 30, 1, 9), None), Some(CAUTIOUS));
        assert_eq!(
            context_of(&warm(300 * MB), sample(1824 * MB, 2, 9 + 2 * TOGETHER), last),
            None
        );
        assert_eq!(context_of(&cold, sample(1824 * MB, 0, 9), last), None);
    }
}
