//! Which waiter goes next under each policy.
#![forbid(unsafe_code)]

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::config::Policy;
use super::contest::Waiters;
use super::event::Decision;
use super::load::{Lack, Load};
use super::model::{Spot, Waiter, WaiterView};
use super::need::{Device, DeviceId, Job, Need};
use super::state::Admission;
use weft_protocol::Ns;

/// Expected runs within a factor of four count as equal. Estimates are no better, and the order
/// among users should not depend on them.
const STEP: u32 = 4;

/// Room kept for a due job that does not fit: the device and the time.
#[derive(Debug, Clone, Copy)]
struct Reservation {
    job: Job,
    device: DeviceId,
    promise: Ns,
    /// Need of the job, and below it the priority.
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
            Policy::Weft => self.by_turn(),
            Policy::Fifo => self.head(),
            Policy::Given(contender) => {
                let fit = (contender.next)(&Waiters::new(self))?;
                Some((fit.at, (fit.device, fit.backing)))
            }
        }
    }

    /// The first waiter, if it fits.
    fn head(&self) -> Option<(usize, Spot)> {
        let (at, waiter) = self.there().next()?;
        let spot = self.place(waiter, |_, _, _| true)?;
        Some((at, spot))
    }

    /// Waiters that are not suspended, with their indices.
    pub(super) fn there(&self) -> impl Iterator<Item = (usize, &Waiter)> {
        self.waiting.iter().enumerate().filter(|(_, waiter)| !waiter.away)
    }

    /// The next waiter under policy `weft`.
    fn by_turn(&mut self) -> Option<(usize, Spot)> {
        let mut reserved: Option<Reservation> = None;
        let put_off = self.put_off();
        for at in self.sequence() {
            let waiter = self.waiting.get(at)?;
            if waiter.away {
                continue;
            }
            let allowed = |device: &Device, _: &Load, need: &Need| {
                let spares = |reservation: &Reservation| {
                    reservation.device != device.id || self.spares(reservation, waiter, device, need)
                };
                let passes = |(reservation, longest): &(Reservation, Ns)| {
                    waiter.ask.need.expected <= *longest || spares(reservation)
                };
                reserved.as_ref().is_none_or(spares) && put_off.as_ref().is_none_or(passes)
            };
            if let Some(spot) = self.place(waiter, allowed) {
                return Some((at, spot));
            }
            if reserved.is_none() && self.due(waiter) <= self.now {
                let promise = waiter.promise.or_else(|| self.foresee(waiter));
                reserved = promise.map(|(device, promise)| self.reservation(waiter, device, promise));
                if let Some(waiter) = self.waiting.get_mut(at) {
                    waiter.promise = promise;
                }
            }
        }
        None
    }

    /// The first waiter whose turn came by plain order but is put off ([`Admission::due`]), as a
    /// reservation, and the longest expected run of running jobs, ns. The bound has room for a job
    /// that runs no longer than that.
    fn put_off(&self) -> Option<(Reservation, Ns)> {
        let longest = self.reckoned().longest?;
        let off = |waiter: &&Waiter| self.plainly_due(waiter) <= self.now && self.now < self.due(waiter);
        let waiting = self.there().map(|(_, waiter)| waiter).filter(off);
        let waiter = waiting.min_by_key(|waiter| (waiter.ask.priority, waiter.turn, waiter.number))?;
        let (device, soonest) = self.foresee(waiter)?;
        let promise = soonest.max(self.due(waiter));
        Some((self.reservation(waiter, device, promise), longest))
    }

    fn reservation(&self, waiter: &Waiter, device: DeviceId, promise: Ns) -> Reservation {
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
    pub(super) fn sequence(&self) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.waiting.len()).collect();
        if self.config.policy != Policy::Weft {
            return all;
        }
        let first = self.first_due();
        all.sort_by(|a, b| self.compare(*a, *b, &first));
        all
    }

    /// For each priority the due waiter with the smallest turn.
    fn first_due(&self) -> Vec<usize> {
        let mut first: BTreeMap<u8, (Ns, u64, usize)> = BTreeMap::new();
        for (at, waiter) in self.there() {
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
            let had = |waiter: &Waiter| self.people.had(waiter.ask.user);
            step(first).cmp(&step(second)).then(had(first).total_cmp(&had(second)))
        });
        priority.then(rest).then(first.number.cmp(&second.number))
    }

    /// Of the allowed devices where the waiter fits with this need, the one with least free memory
    /// beside it.
    pub(super) fn place_as(
        &self,
        waiter: &Waiter,
        need: Need,
        allowed: impl Fn(&Device, &Load, &Need) -> bool,
    ) -> Option<Spot> {
        let fits = |device: &&Device| {
            let carried = self.carried(device.id)?;
            let load = carried.load.with(&need, need.fixed(device));
            let fits = load.fits(device, carried.elsewhere, &self.config).is_ok();
            let open = fits && self.open_to(waiter, device, &need);
            (open && allowed(device, &load, &need)).then_some((load.free(device), device.id))
        };
        let best = self.allowed(&waiter.ask).filter_map(|device| fits(&device)).min();
        best.map(|(_, device)| (device, need.backing))
    }

    /// Whether a job with this need on the reserved device keeps the reservation possible.
    fn spares(&self, reservation: &Reservation, candidate: &Waiter, device: &Device, need: &Need) -> bool {
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
        let elsewhere = self.carried(device.id).map_or(0, |carried| carried.elsewhere);
        both.fits(device, elsewhere, &self.config).is_ok()
    }

    /// Device and time at which a waiter fits soonest if jobs end as expected and none begins.
    pub(super) fn foresee(&self, waiter: &Waiter) -> Option<(DeviceId, Ns)> {
        let when = |device: &Device| {
            let carried = self.carried(device.id)?;
            let need = &waiter.ask.need;
            let fits = |left: &Load| {
                let load = left.with(need, need.fixed(device));
                load.fits(device, carried.elsewhere, &self.config).is_ok()
            };
            // Fitting is monotonic: fewer jobs never fit worse.
            let at = carried.ends.partition_point(|(_, left)| !fits(left));
            carried.ends.get(at).map(|(end, _)| (*end, device.id))
        };
        let soonest = self.allowed(&waiter.ask).filter_map(when).min();
        soonest.map(|(end, device)| (device, end))
    }

    pub(super) fn view_of_waiters(&self) -> Vec<WaiterView> {
        let sequence = self.sequence();
        let mut views = Vec::with_capacity(sequence.len());
        let mut reserved: Option<Job> = None;
        let put_off = self.put_off().map(|(reservation, _)| reservation.job);
        for (place, at) in sequence.into_iter().enumerate() {
            let Some(waiter) = self.waiting.get(at) else { continue };
            let mut nearest: Option<(u64, u64, Option<Lack>)> = None;
            for device in self.allowed(&waiter.ask) {
                let Some(carried) = self.carried(device.id) else {
                    continue;
                };
                let before = carried.load;
                let load = before.with(&waiter.ask.need, waiter.ask.need.fixed(device));
                let lack = load.fits(device, carried.elsewhere, &self.config).err();
                let free = before.free(device);
                if nearest.is_none_or(|(most, _, had)| (lack.is_none(), free) > (had.is_none(), most)) {
                    nearest = Some((free, waiter.ask.need.fixed(device), lack));
                }
            }
            let (free, needs, lack) = nearest.unwrap_or((0, waiter.ask.need.peak, None));
            let due = !waiter.away && self.due(waiter) <= self.now;
            views.push(WaiterView {
                ask: waiter.ask.clone(),
                came: waiter.came,
                position: place + 1,
                lack,
                free,
                needs,
                away: waiter.away,
                due,
                promise: waiter.promise,
                behind: reserved
                    .or(put_off)
                    .filter(|job| lack.is_none() && *job != waiter.ask.job),
            });
            if due && reserved.is_none() {
                reserved = Some(waiter.ask.job);
            }
        }
        views
    }
}

/// `floor(log4(expected))`: equal within a factor of about [`STEP`].
fn step(waiter: &Waiter) -> u32 {
    waiter.ask.need.expected.max(1).ilog2() / STEP.ilog2()
}
