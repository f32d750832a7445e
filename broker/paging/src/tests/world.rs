// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulated machine: a link with its rate, clients that run in turns, waits for promised granules,
//! and faults for the others.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::super::*;
use super::STEP;
use weft_protocol::{Client, Ns};

/// Bound on repeated looks, above any test's granules and orders.
const MOST_LOOKS: usize = 100_000;

/// The machine.
pub struct World {
    pub planner: Planner,
    pub now: Ns,
    /// Orders out with their ends, by direction. A one-way link uses the first.
    pub queues: [VecDeque<(PagingOrder, Ns)>; 2],
    pub sets: BTreeMap<Client, WorkingSet>,
    pub position: BTreeMap<Client, Ns>,
    pub pinned: BTreeSet<Client>,
    pub faults: u64,
    pub stalled: Ns,
    pub prefetched: u64,
    pub copied_out: u64,
    /// Granules in the order asked for.
    pub asked: Vec<(Client, u64)>,
}

/// Start of the use in progress at this position, if any.
pub fn begun(set: &WorkingSet, position: Ns) -> Option<Ns> {
    set.uses.iter().map(|one| one.at).filter(|at| *at <= position).max()
}

impl World {
    pub fn new(config: PagingConfig, sets: Vec<WorkingSet>) -> World {
        let mut planner = Planner::new(config);
        let mut by_client = BTreeMap::new();
        let mut position = BTreeMap::new();
        for (number, set) in (0..).zip(sets) {
            let client = Client(number);
            planner.join(client);
            for one in &set.uses {
                planner.placed(client, one.range, GranulePlace::Host);
            }
            planner.set_working_set(client, set.clone(), 0);
            by_client.insert(client, set);
            position.insert(client, 0);
        }
        World {
            planner,
            now: 0,
            queues: Default::default(),
            sets: by_client,
            position,
            pinned: BTreeSet::new(),
            faults: 0,
            stalled: 0,
            prefetched: 0,
            copied_out: 0,
            asked: Vec::new(),
        }
    }

    pub fn clients(&self) -> Vec<Client> {
        self.sets.keys().copied().collect()
    }

    /// Takes the planner's orders and checks everything.
    pub fn pump(&mut self) {
        let mut orders = Vec::new();
        self.planner.orders(&mut orders);
        let config = *self.planner.config();
        for order in orders {
            assert!(order.range.count >= 1, "{order:?}");
            let (queue, cost) = match order.kind {
                OrderKind::Advise(_) => continue,
                OrderKind::Prefetch => (0, STEP),
                OrderKind::Evict => (usize::from(config.link.duplex), STEP),
                OrderKind::Populate => (0, 0),
                OrderKind::Release | OrderKind::Discard => (usize::from(config.link.duplex), 0),
            };
            assert!(order.range.count <= config.per_order);
            match order.kind {
                OrderKind::Prefetch | OrderKind::Populate => {
                    self.asked
                        .extend(order.range.granules().map(|granule| (order.client, granule)));
                    self.prefetched += u64::from(order.range.count);
                }
                OrderKind::Evict | OrderKind::Release | OrderKind::Discard => {
                    assert!(!self.pinned.contains(&order.client), "a pinned client lost {order:?}");
                    if order.kind == OrderKind::Evict {
                        self.copied_out += u64::from(order.range.count);
                    }
                }
                OrderKind::Advise(_) => {}
            }
            let begin = self.queues[queue]
                .back()
                .map_or(self.now, |(_, end)| *end)
                .max(self.now);
            self.queues[queue].push_back((order, begin + cost * u64::from(order.range.count)));
        }
        assert_eq!(self.planner.totals(), self.planner.recounted());
        assert!(self.planner.taken() <= config.capacity, "beyond the capacity");
        assert!(self.planner.on_host() <= config.host_limit, "beyond the host's limit");
        let totals = self.planner.totals();
        let busy = if config.link.duplex {
            totals.arriving.max(totals.copying_out)
        } else {
            totals.arriving + totals.copying_out
        };
        assert!(busy <= u64::from(config.in_flight), "{busy} in flight");
    }

    /// Runs the link until one order ends. False if none ends by `until`.
    pub fn link_until(&mut self, until: Ns) -> bool {
        let first = self
            .queues
            .iter()
            .enumerate()
            .filter_map(|(queue, orders)| Some((orders.front()?.1, queue)))
            .min();
        match first {
            Some((end, queue)) if end <= until => {
                self.now = self.now.max(end);
                let (order, _) = self.queues[queue].pop_front().unwrap();
                self.planner.done(order.id, OrderStatus::Done);
                self.pump();
                true
            }
            _ => false,
        }
    }

    pub fn run_until(&mut self, until: Ns) {
        while self.link_until(until) {}
        self.now = self.now.max(until);
    }

    pub fn fault(&mut self, client: Client, granule: u64) {
        self.faults += 1;
        let range = GranuleRange {
            first: granule,
            count: 1,
        };
        // The driver makes room by itself and knows no pins.
        let mut looks = 0;
        while self.planner.taken() >= self.planner.config().capacity {
            looks += 1;
            assert!(looks < MOST_LOOKS, "no room for granule {granule} of {client:?}");
            let there = |(other, there): &(Client, u64)| {
                (*other, *there) != (client, granule) && self.planner.is_there(*other, *there)
            };
            let all = || {
                let sets = self.sets.iter();
                sets.flat_map(|(other, set)| {
                    set.uses
                        .iter()
                        .flat_map(|one| one.range.granules())
                        .map(|g| (*other, g))
                })
            };
            let victim = all()
                .filter(|(other, _)| !self.pinned.contains(other))
                .find(there)
                .or_else(|| all().find(there));
            if let Some((other, there)) = victim {
                let lost = GranuleRange { first: there, count: 1 };
                self.planner.placed(other, lost, GranulePlace::Host);
            } else {
                assert!(self.link_until(Ns::MAX), "the device is full of nothing");
            }
        }
        self.planner.faulted(client, range);
        // A fault costs fifty times the link's time.
        self.now += 50 * STEP;
        self.pump();
    }

    /// One turn of the timeline's first client.
    pub fn turn(&mut self, timeline: &[ResidencySlot]) {
        self.planner.switch(timeline);
        self.pump();
        let ResidencySlot { client, length } = timeline[0];
        let mut looks = 0;
        while !self.planner.may_start(client) {
            let before = self.now;
            looks += 1;
            assert!(looks < MOST_LOOKS, "{client:?} never starts");
            assert!(self.link_until(Ns::MAX), "{client:?} never starts");
            self.stalled += self.now - before;
        }
        let set = self.sets[&client].clone();
        let mut left = length;
        // The kernel of its last turn continues and needs its granules to its end.
        let mut begun = begun(&set, self.position[&client]);
        while left > 0 {
            let position = self.position[&client];
            let now = begun.take().unwrap_or(position);
            for one in set.uses.iter().filter(|one| one.at == now) {
                for granule in one.range.granules() {
                    let begin = self.now;
                    let mut looks = 0;
                    while !self.planner.is_there(client, granule) {
                        looks += 1;
                        assert!(looks < MOST_LOOKS, "granule {granule} of {client:?} never comes");
                        if !(self.planner.promised(client, granule) && self.link_until(Ns::MAX)) {
                            self.fault(client, granule);
                        }
                    }
                    self.stalled += self.now - begin;
                }
            }
            let next = set.uses.iter().map(|one| one.at).find(|at| *at > position);
            let step = (next.unwrap_or(set.period) - position).min(left);
            self.run_until(self.now + step);
            left -= step;
            self.position.insert(client, (position + step) % set.period);
            self.planner.ran(client, step);
            self.pump();
        }
    }

    /// Rounds of equal turns.
    pub fn rounds(&mut self, rounds: usize, length: Ns) {
        let mut clients: VecDeque<Client> = self.clients().into();
        for _ in 0..rounds * clients.len() {
            let timeline: Vec<ResidencySlot> = clients
                .iter()
                .map(|client| ResidencySlot {
                    client: *client,
                    length,
                })
                .collect();
            self.turn(&timeline);
            clients.rotate_left(1);
        }
    }
}
