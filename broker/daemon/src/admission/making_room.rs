// SPDX-License-Identifier: MIT OR Apache-2.0
//! Room for a job that waits for memory: movable memory of less important jobs moves to the host,
//! and returns when there is room again.
//!
//! * Only for a job whose need is known, and only if all of it can begin then; for a job whose own
//!   memory is about to return; or for a running job that waits for more.
//! * Memory that a job has above its request ([`Admission::lent`]) also moves for a job of its own
//!   priority or below that waits to begin, or returns with no more than its request.
//! * A job whose memory made room for as long as it allows (`--longest-evicted`) also moves equal
//!   jobs that began some time ago ([`Admission::yields`]).
//! * The fewest jobs, and of those the fewest bytes. Among equals a movable one goes before a plain
//!   one, then the one that has been idle for longest. No job twice within [`APART_NS`].
//! * Plain jobs that the driver's checkpoint moves leave once NVML's answer made a sample
//!   ([`SAMPLE_NS`]).
//! * A job returns by the broker's order only if it left for that, and with its declared need.
//!   `weft pause --evict` stays.
//! * It also returns to memory that another job may have and does not hold (an engine that sleeps),
//!   but only when it may move again: the other job gets that memory back.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::Ordering;

use super::growth::Growth;
use super::job_table::{Gang, JobTable};
use super::member::Member;
use weft_admission::{Admission, AdmissionView, Ask, DeviceId, Job, RoomNeed, RunningView};
use weft_protocol::Ns;
use weft_protocol::eviction::{EvictionCause, MoveBy, Obstacle, Residence, evicts};

/// Time between two moves of a job, ns: it keeps most of its speed.
const APART_NS: Ns = 600_000_000_000;

/// Time after which a job that refused is asked again, ns.
const AGAIN_NS: Ns = 10_000_000_000;

/// Time for which nothing returns after a more important job took more, ns: a job mostly grows in
/// steps.
const GROWN_NS: Ns = 30_000_000_000;

/// Wait before a newcomer gets room, ns: one that does not wait (`--no-wait`) has left by then.
const NEWCOMER_NS: Ns = 500_000_000;

/// Longest move that others wait for, also inside an allocation, ns. 60 GiB take as long at
/// 1.1 GB/s, the rate of a slow host. A stopped job never answers.
pub const LONGEST_MOVE_NS: Ns = 60_000_000_000;

/// Age up to which a sample of a device's memory serves to measure a context that leaves it, ns.
const SAMPLE_NS: Ns = 1_000_000_000;

/// Time after a broker's start in which no memory returns, ns. Jobs that waited for more attach
/// again and ask again within it: they look for a broker once a second.
pub const REATTACH_NS: Ns = 5_000_000_000;

/// Interval of checks, ns.
const CHECK_NS: Ns = 250_000_000;

/// The moves so far.
#[derive(Debug, Default)]
pub struct RoomMaking {
    /// When jobs were ordered to leave.
    ordered: HashMap<Job, Ns>,
    /// When running jobs last waited for more.
    grown: HashMap<Job, Ns>,
    /// Since when the memory of jobs leaves.
    leaving: HashMap<Job, Ns>,
    /// The launches of jobs, and since when there are no more.
    launches: HashMap<Job, (u64, Ns)>,
    checked_at: Ns,
    /// The first check.
    begun: Option<Ns>,
    /// Whether NVML reports devices. Without it the driver's checkpoint moves nothing.
    pub has_nvml: bool,
}

/// A job that leaves, its bytes, and why the other one gets them, for its user.
pub type Leaving = (Job, u64, &'static str);

/// A job that needs room: its request, the bytes, and why.
type Seeking<'a> = (&'a Ask, u64, RoomNeed);

/// Orders of a check.
#[derive(Debug, Default)]
pub struct RoomOrders {
    /// The job that gets room, and those that leave for it.
    pub leave: Option<(Job, Vec<Leaving>)>,
    /// Jobs that return.
    pub back: Vec<Job>,
    /// A device of which a sample is needed before a job leaves it.
    pub sample: Option<DeviceId>,
}

/// Whether a device's memory was sampled at this time or later.
pub type IsSampled<'a> = &'a dyn Fn(DeviceId, Ns) -> bool;

impl RoomMaking {
    /// Checks all jobs, if it is time.
    pub fn check(
        &mut self,
        now: Ns,
        machine: &Admission,
        jobs: &JobTable,
        growth: &Growth,
        is_sampled: IsSampled<'_>,
    ) -> RoomOrders {
        let mut orders = RoomOrders::default();
        let begun = *self.begun.get_or_insert(now);
        if now.saturating_sub(self.checked_at) < CHECK_NS {
            return orders;
        }
        let leaving = jobs.iter().filter(|(_, gang)| gang.members.values().any(leaves));
        let leaving = leaving.map(|(job, _)| (job, self.leaving.get(&job).copied().unwrap_or(now)));
        self.leaving = leaving.collect();
        self.launches.retain(|job, _| jobs.gang(*job).is_some());
        for (job, gang) in jobs.iter() {
            let launches = gang.members.values().map(Member::launches).sum();
            let known = self.launches.entry(job).or_insert((launches, now));
            if known.0 != launches {
                *known = (launches, now);
            }
        }
        let away: Vec<Job> = jobs
            .iter()
            .filter(|(_, gang)| gang.members.values().any(left_for_room))
            .map(|(job, _)| job)
            .collect();
        let returns = jobs.members().any(|member| member.returning() > 0);
        if machine.count().0 == 0 && away.is_empty() && !returns && growth.is_empty() {
            return orders;
        }
        self.checked_at = now;
        self.ordered.retain(|job, _| jobs.gang(*job).is_some());
        self.grown.extend(growth.iter().map(|grower| (grower.job(), now)));
        self.grown
            .retain(|job, at| jobs.gang(*job).is_some() && now.saturating_sub(*at) < GROWN_NS);
        // One move at a time: its result changes what is free.
        if self.leaving.keys().any(|job| self.is_awaited(*job, now)) {
            return orders;
        }
        let view = machine.view();
        if let Some((device, job, chosen)) = self.leaving(now, (machine, &view), jobs, growth) {
            let by_driver = |job: Job| {
                let mut members = jobs.gang(job).into_iter().flat_map(|gang| gang.members.values());
                members.any(Member::moves_by_driver)
            };
            let needs_sample = chosen.iter().any(|(job, ..)| by_driver(*job));
            if needs_sample && !is_sampled(device, now.saturating_sub(SAMPLE_NS)) {
                orders.sample = Some(device);
            } else {
                self.ordered.extend(chosen.iter().map(|(job, ..)| (*job, now)));
                orders.leave = Some((job, chosen));
            }
        }
        if orders.leave.is_none() && now.saturating_sub(begun) >= REATTACH_NS {
            orders.back = self.fitting(now, &away, (machine, &view), jobs);
        }
        orders
    }

    /// Whether there can be room for `lacks` more bytes of a running job, with the memory that is
    /// leaving, and with others that wait for more.
    pub fn can_grow(
        &mut self,
        now: Ns,
        machine: &Admission,
        jobs: &JobTable,
        growth: &Growth,
        (job, lacks): (Job, u64),
    ) -> bool {
        let view = machine.view();
        let Some(own) = view.running.iter().find(|running| running.ask.job == job) else {
            return false;
        };
        let others = growers(&view, growth).filter(|(ask, _, device)| ask.job != job && *device == own.device);
        let all = others.map(|(_, lacks, _)| lacks).sum::<u64>().saturating_add(lacks);
        let awaited = jobs.on(own.device).filter(|(job, _)| self.is_awaited(*job, now));
        let leaving: u64 = awaited.map(|(_, gang)| leaving(gang)).sum();
        let rest = all.saturating_sub(leaving);
        let is_enough = leaving > 0 && rest <= machine.obtainable(job);
        let can = is_enough
            || self
                .room(
                    now,
                    (machine, &view),
                    jobs,
                    ((&own.ask, rest, RoomNeed::Growth), own.device),
                )
                .is_some();
        if can {
            self.grown.insert(job, now);
        }
        can
    }

    /// Whether a job's memory, if it leaves, has not done so for too long.
    fn is_awaited(&self, job: Job, now: Ns) -> bool {
        let since = self.leaving.get(&job);
        since.is_none_or(|since| now.saturating_sub(*since) < LONGEST_MOVE_NS)
    }

    /// Room for the first job for which there can be enough: those that return, then those that
    /// wait for more, then those that wait to begin.
    fn leaving(
        &self,
        now: Ns,
        (machine, view): (&Admission, &AdmissionView),
        jobs: &JobTable,
        growth: &Growth,
    ) -> Option<(DeviceId, Job, Vec<Leaving>)> {
        let returning = view.running.iter().flat_map(|running| {
            let job = running.ask.job;
            let (returns, all) = jobs
                .gang(job)
                .map_or((0, 0), |gang| (returning(gang), to_return(machine, job, gang)));
            let needs = [all, returns].into_iter().filter(move |_| returns > 0);
            let overdue = |gang: &Gang| gang.members.values().any(|member| member.eviction().is_overdue());
            let overdue = jobs.gang(job).is_some_and(overdue);
            let why = move |needs| match needs <= running.ask.need.peak {
                _ if overdue => RoomNeed::Overdue,
                true => RoomNeed::Request,
                false => RoomNeed::Growth,
            };
            needs.map(move |needs| ((&running.ask, needs, why(needs)), vec![running.device]))
        });
        let mut growing: Vec<_> = growers(view, growth).collect();
        growing.sort_by_key(|(ask, ..)| ask.priority);
        let growing = growing
            .into_iter()
            .map(|(ask, lacks, device)| ((ask, lacks, RoomNeed::Growth), vec![device]));
        let known = view.waiting.iter();
        let known = known.filter(|waiter| now.saturating_sub(waiter.arrived) >= NEWCOMER_NS);
        let known = known.filter(|waiter| waiter.lack.is_some() && waiter.capped.is_none() && !waiter.suspended);
        let waiting = known.map(|waiter| {
            (
                (&waiter.ask, waiter.needs, RoomNeed::Request),
                waiter.ask.devices.clone(),
            )
        });
        for (seeking, on) in returning.chain(growing).chain(waiting) {
            let may = |device: DeviceId| on.is_empty() || on.contains(&device);
            for (device, ..) in view.devices.iter().filter(|(device, ..)| may(device.id)) {
                if let Some(chosen) = self.room(now, (machine, view), jobs, (seeking, device.id)) {
                    return Some((device.id, seeking.0.job, chosen));
                }
            }
        }
        None
    }

    /// Jobs whose memory is enough for these bytes there, with the free ones and those that jobs
    /// may have and do not hold. `None`: there are none, or the bytes are free.
    fn room(
        &self,
        now: Ns,
        (machine, view): (&Admission, &AdmissionView),
        jobs: &JobTable,
        ((ask, needs, why), on): (Seeking<'_>, DeviceId),
    ) -> Option<Vec<Leaving>> {
        let (.., free) = view.devices.iter().find(|(device, ..)| device.id == on)?;
        let unheld: HashMap<Job, u64> = machine.all_unheld(on, ask.job, ask.priority).collect();
        let free = unheld.values().fold(*free, |free, bytes| free.saturating_add(*bytes));
        let candidates: Vec<LeavingCandidate> = jobs
            .on(on)
            .filter(|(job, _)| *job != ask.job && self.may_leave(*job, now))
            .map(|(job, gang)| {
                let gains: u64 = gang.members.values().map(gain).sum();
                let gains = gains.min(machine.yields(job, (ask.priority, why, now)));
                LeavingCandidate {
                    bytes: gains.saturating_sub(unheld.get(&job).copied().unwrap_or(0)),
                    by_driver: gang.members.values().any(Member::moves_by_driver),
                    idle_since: self.launches.get(&job).map_or(now, |(_, since)| *since),
                    job,
                }
            })
            .filter(|candidate| candidate.bytes > 0 && (self.has_nvml || !candidate.by_driver))
            .collect();
        let chosen = enough(needs.saturating_sub(free), candidates)?;
        let told = |job| match machine.yields(job, (ask.priority, RoomNeed::Growth, now)) {
            0 if machine.limit(job).is_some() => "needs the part above its request",
            0 => "made room for as long as it may",
            _ => "is more important and needs it",
        };
        Some(chosen.into_iter().map(|it| (it.job, it.bytes, told(it.job))).collect())
    }

    /// Whether a more important job than this one waits, returns, or has just grown.
    pub fn is_outranked(&self, job: Job, view: &AdmissionView, jobs: &JobTable) -> bool {
        let Some(own) = view.running.iter().find(|running| running.ask.job == job) else {
            return false;
        };
        let more_important = |ask: &Ask| ask.priority < own.ask.priority;
        let grows = |other: &RunningView| other.device == own.device && self.grown.contains_key(&other.ask.job);
        let returns = |other: &Job| jobs.gang(*other).is_some_and(|gang| returning(gang) > 0);
        view.waiting.iter().any(|waiter| more_important(&waiter.ask))
            || view
                .running
                .iter()
                .filter(|other| more_important(&other.ask))
                .any(|other| returns(&other.ask.job) || grows(other))
    }

    /// Whether a job did not leave lately.
    fn may_leave(&self, job: Job, now: Ns) -> bool {
        self.ordered
            .get(&job)
            .is_none_or(|at| now.saturating_sub(*at) >= APART_NS)
    }

    /// Notes that a job refused: it may be asked again before [`APART_NS`].
    pub fn refused(&mut self, job: Job, now: Ns) {
        if let Some(at) = self.ordered.get_mut(&job) {
            *at = now.saturating_sub(APART_NS - AGAIN_NS);
        }
    }

    /// Jobs that left for room and fit again, while no more important job waits or has just grown.
    fn fitting(
        &self,
        now: Ns,
        away: &[Job],
        (machine, view): (&Admission, &AdmissionView),
        jobs: &JobTable,
    ) -> Vec<Job> {
        let mut back = Vec::new();
        for (device, _, free) in &view.devices {
            let mut promised = 0;
            let mut on_device: Vec<_> = view
                .running
                .iter()
                .filter(|running| running.device == device.id && away.contains(&running.ask.job))
                .collect();
            on_device.sort_by_key(|running| running.ask.priority);
            for running in on_device {
                let Some(gang) = jobs.gang(running.ask.job) else {
                    continue;
                };
                let needs = to_return(machine, running.ask.job, gang);
                let waits = self.is_outranked(running.ask.job, view, jobs);
                let room = match self.may_leave(running.ask.job, now) {
                    true => machine.obtainable(running.ask.job),
                    false => *free,
                };
                if !waits && needs <= room.saturating_sub(promised) {
                    promised += needs;
                    back.push(running.ask.job);
                }
            }
        }
        back
    }

    /// Puts all moves so far into the past, so that the jobs may move again.
    #[cfg(test)]
    pub fn age(&mut self) {
        self.ordered.clear();
        self.grown.clear();
    }

    /// Jobs that were ordered to leave.
    pub fn ordered(&self) -> Vec<Job> {
        self.ordered.keys().copied().collect()
    }
}

/// Running jobs that wait for more: request, missing bytes, device.
fn growers<'a>(view: &'a AdmissionView, growth: &'a Growth) -> impl Iterator<Item = (&'a Ask, u64, DeviceId)> {
    growth.iter().filter_map(|grower| {
        let own = view.running.iter().find(|running| running.ask.job == grower.job())?;
        Some((&own.ask, grower.lacks(), own.device))
    })
}

/// Whether an order to leave is being carried out: this broker's, or that of one that was killed.
fn leaves(member: &Member) -> bool {
    let slot = member.eviction();
    let order = slot.order.load(Ordering::Acquire);
    match slot.residence() {
        Residence::Fixed => false,
        Residence::Leaves => true,
        _ => evicts(order) && !slot.is_answered(),
    }
}

/// Whether its memory left to make room, and has no order to return.
fn left_for_room(member: &Member) -> bool {
    let slot = member.eviction();
    slot.residence() == Residence::Evicted && slot.cause() == EvictionCause::Room && slot.is_answered()
}

/// Bytes of a job that are about to leave or have just left: others do not have them yet.
fn leaving(gang: &Gang) -> u64 {
    let members = gang.members.values();
    let leaving = members.filter(|member| leaves(member) || left_for_room(member));
    leaving.map(given).sum()
}

/// Bytes of a job that are about to return.
fn returning(gang: &Gang) -> u64 {
    gang.members.values().map(Member::returning).sum()
}

/// Bytes that a job claims for its return: those on the host, or the rest of its declared need. A
/// job with a limit may have its request already.
fn to_return(machine: &Admission, job: Job, gang: &Gang) -> u64 {
    let on_host = |member: &Member| member.eviction().needed_back();
    let sum = |of: fn(&Member) -> u64| gang.members.values().map(of).sum::<u64>();
    let declared = if gang.declared { gang.asked } else { 0 };
    let kept = machine.limit(job).map_or(0, |_| sum(Member::spare).min(gang.asked));
    let on_host = sum(on_host).saturating_sub(kept);
    on_host.max(declared.saturating_sub(sum(Member::quota)))
}

/// Bytes that others get if this client's movable memory leaves.
fn gain(member: &Member) -> u64 {
    let slot = member.eviction();
    let may = match slot.by() {
        MoveBy::Blocks => true,
        // A bar lasts.
        MoveBy::Checkpoint => slot.allows_checkpoint() && !matches!(slot.obstacle(), Some(Obstacle::Barred(_))),
    };
    match slot.residence() {
        Residence::Device if may => given(member),
        _ => 0,
    }
}

/// Quota of a client beyond its memory that does not move.
fn given(member: &Member) -> u64 {
    let (held, evicted) = (member.held(), member.eviction().evicted.load(Ordering::Relaxed));
    let movable = member.eviction().movable.load(Ordering::Relaxed);
    match movable {
        0 => 0,
        _ => member
            .quota()
            .saturating_sub(held.saturating_sub(movable.saturating_sub(evicted))),
    }
}

/// A job that can leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LeavingCandidate {
    job: Job,
    /// Bytes that others get.
    bytes: u64,
    /// Whether the driver's checkpoint moves it.
    by_driver: bool,
    idle_since: Ns,
}

/// The fewest jobs that have `lack` bytes, and of these nearly the fewest bytes. `None`: all have
/// less, or nothing is lacking.
fn enough(lack: u64, mut left: Vec<LeavingCandidate>) -> Option<Vec<LeavingCandidate>> {
    // The largest last, and of equals first the one that may move first.
    left.sort_by_key(|it| (it.bytes, it.by_driver, it.idle_since, Reverse(it.job)));
    let (mut chosen, mut lacking) = (Vec::new(), lack);
    while lacking > 0 {
        // The smallest that is enough, else the largest.
        let largest = left.last()?.bytes;
        let at = left.iter().position(|it| it.bytes >= lacking.min(largest))?;
        let next = left.remove(at);
        lacking = lacking.saturating_sub(next.bytes);
        chosen.push(next);
    }
    (!chosen.is_empty()).then_some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_jobs_and_of_these_the_fewest_bytes_make_room() {
        let jobs = |bytes: &[u64]| -> Vec<LeavingCandidate> {
            let all = bytes.iter().enumerate();
            all.map(|(nth, bytes)| LeavingCandidate {
                job: Job(nth as u64),
                bytes: *bytes,
                by_driver: nth % 2 == 1,
                idle_since: 9 - nth as u64 / 2,
            })
            .collect()
        };
        let all = |lack, bytes: &[u64]| enough(lack, jobs(bytes)).unwrap_or_default();
        let chosen = |lack, bytes: &[u64]| {
            let chosen: Vec<u64> = all(lack, bytes).iter().map(|it| it.bytes).collect();
            (!chosen.is_empty()).then_some(chosen)
        };
        // A movable one before its equals.
        for lack in [4, 7] {
            assert!(!all(lack, &[3, 5, 5])[0].by_driver && !all(lack, &[5, 5, 3])[0].by_driver);
        }
        // The one that has been idle for longest.
        assert_eq!(all(4, &[5, 5, 5, 5, 3])[0].job, Job(2));
        assert_eq!(chosen(0, &[5]), None, "nothing is lacking");
        assert_eq!(chosen(6, &[5]), None);
        assert_eq!(chosen(4, &[9, 5, 2]), Some(vec![5]));
        assert_eq!(chosen(10, &[9, 5, 2]), Some(vec![9, 2]));
        assert_eq!(chosen(15, &[9, 5, 2]), Some(vec![9, 5, 2]));
        assert_eq!(chosen(17, &[9, 5, 2]), None);
        assert_eq!(chosen(1, &[]), None);
    }
}
