//! The epoch pages as the scheduler reads them: one, or one per user of a shared broker. So no
//! client can write what another user's reads.
//!
//! A foreground launch voids the credit of its user's background jobs at once, by the epoch that
//! both see. On other users' pages the broker bumps that epoch when it reads of the launch. Until
//! then their jobs have no more than their credit, which bounds the foreground job's delay.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::server::{Host, UserPage};
use weft_protocol::PRIORITIES;
use weft_protocol::epoch_page::{self, EpochPage};

/// For each row of an epoch page, the sums above each priority.
type Rows = Vec<[u64; PRIORITIES]>;

/// All epoch pages with their last reading.
#[derive(Debug)]
pub struct UserPages {
    host: Arc<Host>,
    own: Rows,
    guests: Vec<(Arc<UserPage>, Rows)>,
}

impl UserPages {
    /// Starts without guests.
    pub fn new(host: Arc<Host>) -> UserPages {
        UserPages {
            host,
            own: Rows::new(),
            guests: Vec::new(),
        }
    }

    /// Adds and reads the page of an attached client.
    pub fn comes(&mut self, house: Option<&Arc<UserPage>>, rows: usize) {
        let Some(house) = house else { return };
        if !self.guests.iter().any(|(known, _)| Arc::ptr_eq(known, house)) {
            let mut read = Rows::new();
            look(&house.epoch_page, rows, &mut read);
            self.guests.push((Arc::clone(house), read));
        }
    }

    /// Keeps only pages for which `lives` holds.
    pub fn stay(&mut self, lives: impl Fn(&Arc<UserPage>) -> bool) {
        self.guests.retain(|(house, _)| lives(house));
    }

    /// Whether some clients may not see a launch's epoch.
    pub fn many(&self) -> bool {
        self.guests.len() > 1
    }

    /// Starts an iteration: bumps the heartbeats and reads all launch epochs.
    pub fn read(&mut self, rows: usize) {
        self.host.epoch_page.heartbeat.fetch_add(1, Ordering::Relaxed);
        look(&self.host.epoch_page, rows, &mut self.own);
        for (house, read) in &mut self.guests {
            house.epoch_page.heartbeat.fetch_add(1, Ordering::Relaxed);
            look(&house.epoch_page, rows, read);
        }
    }

    /// The sum above a priority at the iteration's start.
    pub fn sum_above(&self, house: Option<&Arc<UserPage>>, row: usize, priority: usize) -> u64 {
        let rows = match house {
            None => Some(&self.own),
            Some(house) => {
                let mut guests = self.guests.iter();
                guests
                    .find(|(known, _)| Arc::ptr_eq(known, house))
                    .map(|(_, rows)| rows)
            }
        };
        let row = rows.and_then(|rows| rows.get(row));
        row.and_then(|row| row.get(priority)).copied().unwrap_or(0)
    }

    /// Bumps a foreground launch's epoch on other users' pages.
    ///
    /// Decisions of this iteration know of it, so the reading is bumped too: credit bound to older
    /// sums would be void at once.
    pub fn relay(&mut self, house: Option<&Arc<UserPage>>, epoch: usize) {
        let Some(house) = house else { return };
        for (other, read) in &mut self.guests {
            if Arc::ptr_eq(other, house) {
                continue;
            }
            other.epoch_page.bump(epoch);
            for (row, epochs) in read.iter_mut().enumerate() {
                for (priority, epochs) in epochs.iter_mut().enumerate() {
                    if (epoch_page::epoch(row, 0)..epoch_page::epoch(row, priority)).contains(&epoch) {
                        *epochs = epochs.wrapping_add(1);
                    }
                }
            }
        }
    }
}

fn look(epoch_page: &EpochPage, rows: usize, read: &mut Rows) {
    read.resize(rows, [0; PRIORITIES]);
    for (row, epochs) in read.iter_mut().enumerate() {
        for (priority, epochs) in epochs.iter_mut().enumerate() {
            *epochs = epoch_page.sum_above(epoch_page::epoch(row, priority));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_is_seen_at_home_at_once_and_elsewhere_when_it_is_told() {
        let host = Arc::new(Host::shared().expect("a host"));
        let house = |uid| host.house_of(uid).expect("made").expect("a shared broker");
        let (ann, bea) = (house(1), house(2));
        assert!(Arc::ptr_eq(&ann, &house(1)), "one house a user");
        let mut houses = UserPages::new(Arc::clone(&host));
        houses.comes(Some(&ann), 1);
        houses.comes(Some(&bea), 1);
        assert!(houses.many());
        let epoch = epoch_page::epoch(0, 2);
        ann.epoch_page.bump(epoch);
        houses.read(1);
        assert_eq!(houses.sum_above(Some(&ann), 0, 5), 1);
        assert_eq!(houses.sum_above(Some(&bea), 0, 5), 0);
        houses.relay(Some(&ann), epoch);
        let told = houses.sum_above(Some(&bea), 0, 5);
        assert_eq!(told, 1, "what is decided now knows of it");
        houses.read(1);
        assert_eq!(houses.sum_above(Some(&bea), 0, 5), told, "so credit given for it holds");
        assert_eq!(houses.sum_above(Some(&ann), 0, 5), 1, "not twice");
        assert_eq!(houses.sum_above(Some(&bea), 0, 5), 1);
        assert_eq!(
            houses.sum_above(Some(&bea), 0, 2),
            0,
            "its own priority is not above it"
        );
        houses.stay(|house| Arc::ptr_eq(house, &bea));
        assert!(!houses.many());
    }
}
