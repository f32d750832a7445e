// SPDX-License-Identifier: MIT OR Apache-2.0
//! Order of the waiters under each policy.
#![forbid(unsafe_code)]

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::config::AdmissionPolicy;
use super::custom_order::{WaiterFit, Waiters, WaitingList};
use super::event::{Ask, Decision};
use super::load::{Lack, Load};
use super::model::{Spot, WaiterView, WaitingJob};
use super::need::{Device, DeviceId, Job, Need};
use super::state::Admission;
use weft_protocol::Ns;

/// Expected runs within this factor count as equal: estimates are no better.
const DURATION_STEP: u32 = 4;

/// Room kept for a due job that does not fit: the device and the time.
#[derive(Debug, Clone, Copy)]
struct Reservation {
    job: Job,
    device: DeviceId,
    promise: Ns,
    need: Need,
    priority: u8,
    /// Load expected to be left on the device at the promise.
    left: Load,
}

impl Admission {
    /// Admits all waiters that may begin now.
    pub(super) fn dispatch(&mut self, out: &mut Vec<Decision>) {
        while let Some((at, spot)) = self.next() {
            self.admit(at, spot, out);
        }
    }

    fn next(&mut self) -> Option<(usize, Spot)> {
        match self.config.policy {
            AdmissionPolicy::Weft => self.next_by_turn(),
            AdmissionPolicy::Custom(order) => {
                let fit = (order.next)(&Waiters(self))?;
                Some((fit.at, (fit.device, fit.backing)))
            }
        }
    }

    /// Whether a waiter may begin once there is room: not while it is suspended, nor while its user
    /// is at a cap.
    pub(super) fn is_active(&self, waiter: &WaitingJob) -> bool {
        !waiter.suspended && self.capped(waiter).is_none()
    }

    /// Waiters that may begin once there is room, with their indices.
    fn active(&self) -> impl Iterator<Item = (usize, &WaitingJob)> {
        self.waiting
            .iter()
            .enumerate()
            .filter(|(_, waiter)| self.is_active(waiter))
    }

    /// The next waiter under policy `weft`.
    fn next_by_turn(&mut self) -> Option<(usize, Spot)> {
        let mut reserved: Option<Reservation> = None;
        let deferred = self.deferred();
        for at in self.in_order() {
            let waiter = self.waiting.get(at)?;
            if !self.is_active(waiter) {
                continue;
            }
            let allowed = |device: &Device, _: &Load, need: &Need| {
                let spares = |reservation: &Reservation| {
                    reservation.device != device.id || self.spares(reservation, waiter, device, need)
                };
                let passes = |(reservation, longest): &(Reservation, Ns)| {
                    waiter.ask.need.expected <= *longest || spares(reservation)
                };
                reserved.as_ref().is_none_or(spares) && deferred.as_ref().is_none_or(passes)
            };
            if let Some(spot) = self.place(waiter, allowed) {
                return Some((at, spot));
            }
            if reserved.is_none() && self.due(waiter) <= self.now {
                let promise = waiter.promise.or_else(|| self.earliest_fit(waiter));
                reserved = promise.map(|(device, promise)| self.reservation(waiter, device, promise));
                if let Some(waiter) = self.waiting.get_mut(at) {
                    waiter.promise = promise;
                }
            }
        }
        None
    }

    /// Reservation of the first waiter in its leeway ([`Admission::due`]), and the longest expected
    /// run of a running job, ns. The bound has room for a job that runs no longer.
    fn deferred(&self) -> Option<(Reservation, Ns)> {
        let longest = self.sums().longest?;
        let off = |waiter: &&WaitingJob| self.due_without_leeway(waiter) <= self.now && self.now < self.due(waiter);
        let waiting = self.active().map(|(_, waiter)| waiter).filter(off);
        let waiter = waiting.min_by_key(|waiter| (waiter.ask.priority, waiter.turn, waiter.number))?;
        let (device, soonest) = self.earliest_fit(waiter)?;
        let promise = soonest.max(self.due(waiter));
        Some((self.reservation(waiter, device, promise), longest))
    }

    fn reservation(&self, waiter: &WaitingJob, device: DeviceId, promise: Ns) -> Reservation {
        Reservation {
            job: waiter.ask.job,
            device,
            promise,
            need: waiter.ask.need,
            priority: waiter.ask.priority,
            left: self.load_of(device, |running| {
                running.since.saturating_add(running.ask.need.expected) > promise
            }),
        }
    }

    /// Indices of the waiters, next first.
    pub(super) fn in_order(&self) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.waiting.len()).collect();
        if self.config.policy != AdmissionPolicy::Weft {
            return all;
        }
        let first = self.first_due();
        all.sort_by(|a, b| self.compare(*a, *b, &first));
        all
    }

    /// For each priority the due waiter with the smallest turn.
    fn first_due(&self) -> Vec<usize> {
        let mut first: BTreeMap<u8, (Ns, u64, usize)> = BTreeMap::new();
        for (at, waiter) in self.active() {
            if self.due(waiter) <= self.now {
                let this = (waiter.turn, waiter.number, at);
                let best = first.entry(waiter.ask.priority).or_insert(this);
                *best = this.min(*best);
            }
        }
        first.into_values().map(|(_, _, at)| at).collect()
    }

    fn compare(&self, a: usize, b: usize, first_due: &[usize]) -> Ordering {
        let (Some(first), Some(second)) = (self.waiting.get(a), self.waiting.get(b)) else {
            return Ordering::Equal;
        };
        let priority = first.ask.priority.cmp(&second.ask.priority);
        // False sorts before true.
        let turn = !first_due.contains(&a);
        let rest = turn.cmp(&!first_due.contains(&b)).then_with(|| {
            let had = |waiter: &WaitingJob| self.fair_share.recent_usage(waiter.ask.user);
            step(first).cmp(&step(second)).then(had(first).total_cmp(&had(second)))
        });
        priority.then(rest).then(first.number.cmp(&second.number))
    }

    /// Device and backing for a waiter. With auto backing device memory comes first.
    fn place(&self, waiter: &WaitingJob, allowed: impl Fn(&Device, &Load, &Need) -> bool) -> Option<Spot> {
        let (first, second) = waiter.ask.need.forms();
        let spot = |need: Need| self.place_as(waiter, need, &allowed);
        spot(first).or_else(|| second.and_then(spot))
    }

    /// The allowed device with least memory left, of those on which the waiter fits with this need.
    fn place_as(
        &self,
        waiter: &WaitingJob,
        need: Need,
        allowed: impl Fn(&Device, &Load, &Need) -> bool,
    ) -> Option<Spot> {
        let fits = |device: &&Device| {
            let sums = self.device_sums(device.id)?;
            let load = sums.load.with(&need, need.fixed(device));
            let fits = load.fits(device, sums.elsewhere, &self.config).is_ok();
            let under_cap = self.cap_has_room(waiter, need.fixed(device));
            let open = fits && under_cap && self.may_begin_on(waiter, device, &need);
            (open && allowed(device, &load, &need)).then_some((load.free(device), device.id))
        };
        let best = self.allowed(&waiter.ask).filter_map(|device| fits(&device)).min();
        best.map(|(_, device)| (device, need.backing))
    }

    /// Whether a job with this need on the reserved device leaves the reservation possible.
    fn spares(&self, reservation: &Reservation, candidate: &WaitingJob, device: &Device, need: &Need) -> bool {
        let long = candidate.ask.need.expected as f64 * self.config.doubt;
        if self.now as f64 + long <= reservation.promise as f64 {
            return true;
        }
        // A reservation binds neither its own job nor a more important one.
        if reservation.job == candidate.ask.job || candidate.ask.priority < reservation.priority {
            return true;
        }
        let both = reservation
            .left
            .with(&reservation.need, reservation.need.fixed(device))
            .with(need, need.fixed(device));
        let elsewhere = self.device_sums(device.id).map_or(0, |sums| sums.elsewhere);
        both.fits(device, elsewhere, &self.config).is_ok()
    }

    /// Device and time at which a waiter fits first if jobs end as expected and none begins.
    pub(super) fn earliest_fit(&self, waiter: &WaitingJob) -> Option<(DeviceId, Ns)> {
        let when = |device: &Device| {
            let sums = self.device_sums(device.id)?;
            let need = &waiter.ask.need;
            let fits = |left: &Load| {
                let load = left.with(need, need.fixed(device));
                load.fits(device, sums.elsewhere, &self.config).is_ok()
            };
            // Fitting is monotonic: fewer jobs never fit worse.
            let at = sums.ends.partition_point(|(_, left)| !fits(left));
            sums.ends.get(at).map(|(end, _)| (*end, device.id))
        };
        let soonest = self.allowed(&waiter.ask).filter_map(when).min();
        soonest.map(|(end, device)| (device, end))
    }

    pub(super) fn waiter_views(&self) -> Vec<WaiterView> {
        let sequence = self.in_order();
        let mut views = Vec::with_capacity(sequence.len());
        let mut reserved: Option<Job> = None;
        let deferred = self.deferred().map(|(reservation, _)| reservation.job);
        for (place, at) in sequence.into_iter().enumerate() {
            let Some(waiter) = self.waiting.get(at) else { continue };
            let mut nearest: Option<(u64, u64, Option<Lack>)> = None;
            for device in self.allowed(&waiter.ask) {
                let Some(sums) = self.device_sums(device.id) else {
                    continue;
                };
                let before = sums.load;
                let load = before.with(&waiter.ask.need, waiter.ask.need.fixed(device));
                let lack = load.fits(device, sums.elsewhere, &self.config).err();
                let free = before.free(device);
                if nearest.is_none_or(|(most, _, had)| (lack.is_none(), free) > (had.is_none(), most)) {
                    nearest = Some((free, waiter.ask.need.fixed(device), lack));
                }
            }
            let (free, needs, lack) = nearest.unwrap_or((0, waiter.ask.need.peak, None));
            let capped = self.capped(waiter);
            let due = !waiter.suspended && capped.is_none() && self.due(waiter) <= self.now;
            views.push(WaiterView {
                ask: waiter.ask.clone(),
                arrived: waiter.arrived,
                position: place + 1,
                lack,
                free,
                needs,
                suspended: waiter.suspended,
                capped,
                due,
                promise: waiter.promise,
                blocked_by: reserved
                    .or(deferred)
                    .filter(|job| lack.is_none() && *job != waiter.ask.job),
            });
            if due && reserved.is_none() {
                reserved = Some(waiter.ask.job);
            }
        }
        views
    }
}

impl WaitingList for Admission {
    fn waiters(&self) -> Vec<(usize, &Ask)> {
        self.active().map(|(at, waiter)| (at, &waiter.ask)).collect()
    }

    fn fit(&self, at: usize, empty: bool) -> Option<WaiterFit> {
        let waiter = self.waiting.get(at)?;
        let suits = |device: &Device, _: &Load, _: &Need| !empty || self.load(device.id) == Load::default();
        let (device, backing) = self.place(waiter, suits)?;
        let about = self.devices.get(&device)?;
        let need = Need {
            backing,
            ..waiter.ask.need
        };
        let load = self.load(device).with(&need, need.fixed(about));
        Some(WaiterFit {
            left: load.free(about),
            at,
            device,
            backing,
        })
    }
}

/// `floor(log4(expected))`: equal within a factor of about [`DURATION_STEP`].
fn step(waiter: &WaitingJob) -> u32 {
    waiter.ask.need.expected.max(1).ilog2() / DURATION_STEP.ilog2()
}
