// SPDX-License-Identifier: MIT OR Apache-2.0
//! The epoch pages as the scheduler reads them: one, or one per user of a shared broker. So no
//! client can write a page that another user's clients read.
//!
//! A foreground launch voids the credit of its user's background jobs at once, through the epoch on
//! their common page. On other users' pages the broker bumps that epoch when it reads the launch's
//! record. Until then their jobs have at most their credit, which bounds the foreground job's
//! delay.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::server::{Host, UserPage};
use weft_protocol::PRIORITIES;
use weft_protocol::epoch_page::{self, EpochPage};

/// The sums above each priority, for each row of an epoch page.
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
    pub fn comes(&mut self, user_page: Option<&Arc<UserPage>>, rows: usize) {
        let Some(user_page) = user_page else { return };
        if !self.guests.iter().any(|(known, _)| Arc::ptr_eq(known, user_page)) {
            let mut read = Rows::new();
            look(&user_page.epoch_page, rows, &mut read);
            self.guests.push((Arc::clone(user_page), read));
        }
    }

    /// Keeps only pages for which `lives` is true.
    pub fn stay(&mut self, lives: impl Fn(&Arc<UserPage>) -> bool) {
        self.guests.retain(|(user_page, _)| lives(user_page));
    }

    /// Whether there are several pages, so that some clients do not see a launch's epoch.
    pub fn many(&self) -> bool {
        self.guests.len() > 1
    }

    /// Starts an iteration: bumps the heartbeats and reads all launch epochs.
    pub fn read(&mut self, rows: usize) {
        self.host.epoch_page.heartbeat.fetch_add(1, Ordering::Relaxed);
        look(&self.host.epoch_page, rows, &mut self.own);
        for (user_page, read) in &mut self.guests {
            user_page.epoch_page.heartbeat.fetch_add(1, Ordering::Relaxed);
            look(&user_page.epoch_page, rows, read);
        }
    }

    /// The sum above a priority at the iteration's start.
    pub fn sum_above(&self, user_page: Option<&Arc<UserPage>>, row: usize, priority: usize) -> u64 {
        let rows = match user_page {
            None => Some(&self.own),
            Some(user_page) => {
                let mut guests = self.guests.iter();
                guests
                    .find(|(known, _)| Arc::ptr_eq(known, user_page))
                    .map(|(_, rows)| rows)
            }
        };
        let row = rows.and_then(|rows| rows.get(row));
        row.and_then(|row| row.get(priority)).copied().unwrap_or(0)
    }

    /// Bumps a foreground launch's epoch on other users' pages.
    ///
    /// The decisions of this iteration include the launch, so the last reading is bumped too:
    /// credit bound to older sums would be void at once.
    pub fn relay(&mut self, user_page: Option<&Arc<UserPage>>, epoch: usize) {
        let Some(user_page) = user_page else { return };
        for (other, read) in &mut self.guests {
            if Arc::ptr_eq(other, user_page) {
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
        let user_page = |uid| host.user_page_of(uid).expect("made").expect("a shared broker");
        let (ann, bea) = (user_page(1), user_page(2));
        assert!(Arc::ptr_eq(&ann, &user_page(1)), "one page a user");
        let mut user_pages = UserPages::new(Arc::clone(&host));
        user_pages.comes(Some(&ann), 1);
        user_pages.comes(Some(&bea), 1);
        assert!(user_pages.many());
        let epoch = epoch_page::epoch(0, 2);
        ann.epoch_page.bump(epoch);
        user_pages.read(1);
        assert_eq!(user_pages.sum_above(Some(&ann), 0, 5), 1);
        assert_eq!(user_pages.sum_above(Some(&bea), 0, 5), 0);
        user_pages.relay(Some(&ann), epoch);
        let told = user_pages.sum_above(Some(&bea), 0, 5);
        assert_eq!(told, 1, "what is decided now knows of it");
        user_pages.read(1);
        assert_eq!(
            user_pages.sum_above(Some(&bea), 0, 5),
            told,
            "so credit given for it holds"
        );
        assert_eq!(user_pages.sum_above(Some(&ann), 0, 5), 1, "not twice");
        assert_eq!(user_pages.sum_above(Some(&bea), 0, 5), 1);
        assert_eq!(
            user_pages.sum_above(Some(&bea), 0, 2),
            0,
            "its own priority is not above it"
        );
        user_pages.stay(|user_page| Arc::ptr_eq(user_page, &bea));
        assert!(!user_pages.many());
    }
}
