// SPDX-License-Identifier: MIT OR Apache-2.0
//! An estimate of the granules that are on the device, and of faults.
//!
//! The driver does not report the pages that it moves, so this module mirrors it. A launch moves
//! the granules that its forecast touches to the device, page operations move their ranges, and a
//! full device evicts the earliest arrivals. The driver has the same order: it does not notice
//! reuse.
//!
//! Rules:
//! * The first touch of a granule is a fault, although nothing is copied.
//! * A granule that a page operation moves causes no fault, even if a launch waits for it.
//! * A fault moves a whole granule; the driver may move less.
//! * Memory that no forecast names is not counted.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};

use weft_paging::{GRANULE, GranuleRange};

/// Place of a granule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whereabouts {
    Host,
    /// A page operation moves it to the device.
    Coming,
    /// On the device, with the number of its arrival.
    Device(u64),
}

#[derive(Debug, Default)]
struct ClientGranules {
    places: HashMap<u64, Whereabouts>,
    there: u64,
    faulted: u64,
}

/// The estimate. See the module.
#[derive(Debug, Default)]
pub(super) struct Residency {
    /// Granules that fit on the device.
    capacity: u64,
    there: u64,
    arrivals: u64,
    /// Arrivals in order: number, client, granule. Some are outdated.
    order: VecDeque<(u64, u64, u64)>,
    clients: HashMap<u64, ClientGranules>,
}

impl Residency {
    /// Sets the capacity, granules.
    pub fn room(&mut self, granules: u64) {
        self.capacity = granules;
        self.make_room();
    }

    /// Records a launch's touch of a granule.
    pub fn touched(&mut self, client: u64, granule: u64) {
        let own = self.clients.entry(client).or_default();
        match own.places.get(&granule) {
            Some(Whereabouts::Device(_) | Whereabouts::Coming) => return,
            Some(Whereabouts::Host) | None => own.faulted += 1,
        }
        self.arrives(client, granule);
        self.make_room();
    }

    /// Marks granules that a page operation will move to the device.
    pub fn ordered(&mut self, client: u64, range: GranuleRange) {
        let Some(own) = self.clients.get_mut(&client) else {
            return;
        };
        for granule in range.granules() {
            if let Some(place @ Whereabouts::Host) = own.places.get_mut(&granule) {
                *place = Whereabouts::Coming;
            }
        }
    }

    /// Marks granules that a page operation moved to the device.
    pub fn came(&mut self, client: u64, range: GranuleRange) {
        for granule in range.granules() {
            let own = self.clients.entry(client).or_default();
            if !matches!(own.places.get(&granule), Some(Whereabouts::Device(_))) {
                self.arrives(client, granule);
            }
        }
        self.make_room();
    }

    /// Records the refusal of a page operation: its granules remain on the host.
    pub fn stays(&mut self, client: u64, range: GranuleRange) {
        if let Some(own) = self.clients.get_mut(&client) {
            for granule in range.granules() {
                if let Some(place @ Whereabouts::Coming) = own.places.get_mut(&granule) {
                    *place = Whereabouts::Host;
                }
            }
        }
    }

    /// Marks granules as evicted.
    pub fn went(&mut self, client: u64, range: GranuleRange) {
        let Some(own) = self.clients.get_mut(&client) else {
            return;
        };
        for granule in range.granules() {
            if let Some(place) = own.places.get_mut(&granule) {
                let gone = u64::from(matches!(place, Whereabouts::Device(_)));
                *place = Whereabouts::Host;
                own.there -= gone;
                self.there -= gone;
            }
        }
    }

    /// Forgets granules that are discarded or unmapped.
    pub fn gone(&mut self, client: u64, granules: std::ops::Range<u64>) {
        let Some(own) = self.clients.get_mut(&client) else {
            return;
        };
        for granule in granules {
            if let Some(Whereabouts::Device(_)) = own.places.remove(&granule) {
                own.there -= 1;
                self.there -= 1;
            }
        }
    }

    /// Forgets a client.
    pub fn left(&mut self, client: u64) {
        if let Some(own) = self.clients.remove(&client) {
            self.there -= own.there;
        }
    }

    /// Counts page operations under way as done: their ends will not be read.
    pub fn forget_page_ops(&mut self) {
        let coming = |(client, own): (&u64, &ClientGranules)| {
            let client = *client;
            let out = own.places.iter().filter(|(_, place)| **place == Whereabouts::Coming);
            out.map(move |(granule, _)| (client, *granule)).collect::<Vec<_>>()
        };
        let all: Vec<(u64, u64)> = self.clients.iter().flat_map(coming).collect();
        for (client, granule) in all {
            self.arrives(client, granule);
        }
        self.make_room();
    }

    /// Bytes moved by faults so far, and bytes on the device.
    pub fn of(&self, client: u64) -> (u64, u64) {
        let own = self.clients.get(&client);
        own.map_or((0, 0), |own| (own.faulted * GRANULE, own.there * GRANULE))
    }

    /// Bytes on the host, of all clients.
    pub fn on_host(&self) -> u64 {
        let all = self.clients.values().map(|own| own.places.len() as u64 - own.there);
        all.sum::<u64>() * GRANULE
    }

    fn arrives(&mut self, client: u64, granule: u64) {
        let Some(own) = self.clients.get_mut(&client) else {
            return;
        };
        self.arrivals += 1;
        own.places.insert(granule, Whereabouts::Device(self.arrivals));
        own.there += 1;
        self.there += 1;
        self.order.push_back((self.arrivals, client, granule));
        // Drops outdated arrivals: page operations do not remove their entries.
        if self.order.len() as u64 > 2 * self.there + 4096 {
            let clients = &self.clients;
            self.order
                .retain(|(number, client, granule)| is_there(clients, *client, *granule, *number));
        }
    }

    /// Evicts the earliest arrivals beyond the capacity.
    fn make_room(&mut self) {
        while self.there > self.capacity
            && let Some((number, client, granule)) = self.order.pop_front()
        {
            if is_there(&self.clients, client, granule, number)
                && let Some(own) = self.clients.get_mut(&client)
            {
                own.places.insert(granule, Whereabouts::Host);
                own.there -= 1;
                self.there -= 1;
            }
        }
    }
}

/// Whether a granule has been on the device since that arrival.
fn is_there(clients: &HashMap<u64, ClientGranules>, client: u64, granule: u64, number: u64) -> bool {
    let place = clients.get(&client).and_then(|own| own.places.get(&granule));
    place == Some(&Whereabouts::Device(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, count: u32) -> GranuleRange {
        GranuleRange { first, count }
    }

    fn touch(residency: &mut Residency, client: u64, granules: std::ops::Range<u64>) {
        granules.for_each(|granule| residency.touched(client, granule));
    }

    fn of(residency: &Residency, client: u64) -> (u64, u64) {
        let (faulted, there) = residency.of(client);
        (faulted / GRANULE, there / GRANULE)
    }

    #[test]
    fn who_finds_no_room_faults_each_time_round() {
        let mut residency = Residency::default();
        residency.room(10);
        touch(&mut residency, 1, 0..8);
        assert_eq!(of(&residency, 1), (8, 8));
        touch(&mut residency, 1, 0..8);
        assert_eq!(of(&residency, 1), (8, 8), "what is there does not fault");
        touch(&mut residency, 2, 0..8);
        assert_eq!((of(&residency, 1), of(&residency, 2)), ((8, 2), (8, 8)));
        for turn in 2..5 {
            touch(&mut residency, 1, 0..8);
            // The two granules on the device arrived first and were evicted: nothing is reused.
            let (faulted, there) = of(&residency, 1);
            assert!(
                (6 * turn + 2..=8 * turn).contains(&faulted) && there == 8,
                "{turn}: {faulted} {there}"
            );
            touch(&mut residency, 2, 0..8);
        }
    }

    #[test]
    fn what_page_ops_bring_is_no_fault() {
        let mut residency = Residency::default();
        residency.room(100);
        residency.came(1, range(0, 8));
        touch(&mut residency, 1, 0..8);
        residency.went(1, range(0, 8));
        residency.ordered(1, range(0, 6));
        touch(&mut residency, 1, 0..4);
        assert_eq!(of(&residency, 1), (0, 0), "they wait for it");
        residency.came(1, range(0, 4));
        residency.stays(1, range(4, 2));
        touch(&mut residency, 1, 0..8);
        assert_eq!(residency.on_host(), 0);
        assert_eq!(of(&residency, 1), (4, 8), "two were refused and two never asked for");
        residency.went(1, range(0, 2));
        assert_eq!(residency.on_host(), 2 * GRANULE);
        residency.ordered(1, range(0, 1));
        residency.forget_page_ops();
        assert_eq!(of(&residency, 1), (4, 7));
    }

    #[test]
    fn what_is_freed_or_dead_takes_no_room_and_nothing_grows_for_ever() {
        let mut residency = Residency::default();
        residency.room(4);
        for round in 0..20_000 {
            touch(&mut residency, 1, round..round + 2);
            residency.gone(1, round..round + 2);
        }
        assert!(residency.order.len() < 5_000, "{}", residency.order.len());
        touch(&mut residency, 1, 0..2);
        touch(&mut residency, 2, 0..4);
        assert_eq!((of(&residency, 1).1, of(&residency, 2).1), (0, 4));
        residency.left(2);
        touch(&mut residency, 1, 0..2);
        let (faulted, _) = of(&residency, 1);
        assert_eq!(faulted, 40_000 + 4, "two of them had made room for others");
        residency.room(1);
        assert_eq!(of(&residency, 1), (faulted, 1));
    }
}
