// SPDX-License-Identifier: MIT OR Apache-2.0
//! Epoch pages and doorbells, which clients share with the broker. This module reads only
//! doorbells, never pages.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;

use weft_protocol::transport::map::SharedEpochPage;
use weft_protocol::transport::{TransportError, fds};

/// Epoch page and doorbell of all clients of a private broker, or of one user of a shared one.
#[derive(Debug)]
pub struct UserPage {
    /// The epoch page.
    pub epoch_page: SharedEpochPage,
    /// The doorbell that clients ring: a non-blocking eventfd.
    pub bell: OwnedFd,
}

impl UserPage {
    /// Makes an epoch page and a doorbell.
    pub(crate) fn make() -> Result<UserPage, TransportError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(TransportError::system("making the doorbell"))?;
        Ok(UserPage {
            epoch_page: SharedEpochPage::epoch_page()?,
            bell,
        })
    }
}

/// A broker's own page (without clients in a shared broker), and its users' pages.
#[derive(Debug)]
pub struct Host {
    own: UserPage,
    guests: Option<Guests>,
}

/// The per-user pages of a shared broker.
#[derive(Debug)]
struct Guests {
    user_pages: Mutex<BTreeMap<u32, Weak<UserPage>>>,
    /// Recent rings, by user.
    rang: Mutex<BTreeMap<u32, Rang>>,
    /// An edge-triggered epoll of all doorbells, which reports each ring once. No doorbell is read,
    /// because other holders of it could make the read wait.
    rings: OwnedFd,
}

/// Rings per [`SPELL`] after which a doorbell is ignored.
///
/// A client can ring a million times/s, and each ring costs an iteration. While background jobs
/// wait, the scheduler naps, so it notices that user's other jobs only a little later.
const RINGS: u32 = 50;

/// Period for [`RINGS`], and the longest wait while a doorbell is ignored.
const SPELL: Duration = Duration::from_millis(10);

/// A user's rings since a time.
#[derive(Debug, Clone, Copy)]
struct Rang {
    since: Instant,
    count: u32,
}

impl Guests {
    fn listen(&self, uid: u32, bell: &OwnedFd, heard: bool) -> rustix::io::Result<()> {
        let flags = match heard {
            true => epoll::EventFlags::IN | epoll::EventFlags::ET,
            false => epoll::EventFlags::empty(),
        };
        epoll::modify(&self.rings, bell, epoll::EventData::new_u64(u64::from(uid)), flags)
    }

    fn user_page(&self, uid: u32) -> Option<Arc<UserPage>> {
        let user_pages = self.user_pages.lock().unwrap_or_else(PoisonError::into_inner);
        user_pages.get(&uid).and_then(Weak::upgrade)
    }

    /// Listens again to doorbells whose period is over; returns the time to the next such doorbell.
    fn hear_again(&self, now: Instant) -> Option<Duration> {
        let mut rang = self.rang.lock().unwrap_or_else(PoisonError::into_inner);
        rang.retain(|uid, rang| {
            let over = now.saturating_duration_since(rang.since) >= SPELL;
            if over
                && rang.count > RINGS
                && let Some(user_page) = self.user_page(*uid)
            {
                // A user without a page has no doorbell either.
                let _ = self.listen(*uid, &user_page.bell, true);
            }
            !over
        });
        let muted = rang.values().filter(|rang| rang.count > RINGS);
        muted
            .map(|rang| (rang.since + SPELL).saturating_duration_since(now))
            .min()
    }

    /// Takes the pending rings.
    fn take(&self, now: Instant) {
        let mut heard = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 64];
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.rings, &mut heard[..], Some(&zero)).unwrap_or(0);
        let mut rang = self.rang.lock().unwrap_or_else(PoisonError::into_inner);
        for event in heard.iter().take(count) {
            let data = event.data;
            let Ok(uid) = u32::try_from(data.u64()) else { continue };
            let his = rang.entry(uid).or_insert(Rang { since: now, count: 0 });
            his.count += 1;
            if his.count == RINGS + 1
                && let Some(user_page) = self.user_page(uid)
            {
                let _ = self.listen(uid, &user_page.bell, false);
            }
        }
    }
}

impl std::ops::Deref for Host {
    type Target = UserPage;

    fn deref(&self) -> &UserPage {
        &self.own
    }
}

impl Host {
    /// Makes a private broker's page.
    pub fn make() -> Result<Host, TransportError> {
        Ok(Host {
            own: UserPage::make()?,
            guests: None,
        })
    }

    /// Makes a shared broker's page and an empty set of users.
    pub(crate) fn shared() -> Result<Host, TransportError> {
        let rings = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(TransportError::system("making the list of doorbells"))?;
        Ok(Host {
            own: UserPage::make()?,
            guests: Some(Guests {
                user_pages: Mutex::default(),
                rang: Mutex::default(),
                rings,
            }),
        })
    }

    /// A user's page, which exists while it is held. `None` in a private broker, which has one page
    /// for all clients.
    pub(crate) fn user_page_of(&self, uid: u32) -> Result<Option<Arc<UserPage>>, TransportError> {
        let Some(guests) = &self.guests else { return Ok(None) };
        let mut user_pages = guests.user_pages.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(user_page) = user_pages.get(&uid).and_then(Weak::upgrade) {
            return Ok(Some(user_page));
        }
        user_pages.retain(|_, user_page| user_page.strong_count() > 0);
        let user_page = Arc::new(UserPage::make()?);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(
            &guests.rings,
            &user_page.bell,
            epoll::EventData::new_u64(u64::from(uid)),
            flags,
        )
        .map_err(TransportError::system("listening to a doorbell"))?;
        user_pages.insert(uid, Arc::downgrade(&user_page));
        Ok(Some(user_page))
    }

    /// Waits at most `within` for a ring, and takes all rings. Returns whether one came.
    pub fn wait(&self, within: Duration) -> Result<bool, TransportError> {
        let deadline = Instant::now() + within;
        let Some(guests) = &self.guests else {
            let rang = fds::ready(&self.bell, PollFlags::IN, deadline)?;
            self.take_rings(rang);
            return Ok(rang);
        };
        loop {
            let now = Instant::now();
            let until = match guests.hear_again(now) {
                Some(muted) => deadline.min(now + muted),
                None => deadline,
            };
            let mut set = [
                PollFd::new(&self.bell, PollFlags::IN),
                PollFd::new(&guests.rings, PollFlags::IN),
            ];
            match poll(&mut set, Some(&fds::left(until))) {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(TransportError::system("waiting for a doorbell")(errno)),
            }
            let rang = |at: usize| set.get(at).is_some_and(|entry| !entry.revents().is_empty());
            self.take_rings(rang(0));
            if rang(1) {
                guests.take(now);
            }
            return Ok(true);
        }
    }

    fn take_rings(&self, rang: bool) {
        if rang {
            let mut count = [0u8; 8];
            // Another thread may have taken the ring; errors need no handling.
            let _ = rustix::io::read(&self.bell, &mut count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: u32 = 61_001;
    const BEA: u32 = 61_002;
    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn a_bell_that_never_stops_is_not_heard_for_a_while_and_others_are() {
        let host = Host::shared().expect("a host");
        let user_page = |uid| host.user_page_of(uid).expect("made").expect("a shared broker");
        let (ann, bea) = (user_page(ANN), user_page(BEA));
        let ring = |user_page: &UserPage| rustix::io::write(&user_page.bell, &1u64.to_ne_bytes()).expect("rung");
        let guests = host.guests.as_ref().expect("a shared broker");
        let now = Instant::now();
        for _ in 0..=RINGS {
            ring(&ann);
            guests.take(now);
        }
        assert_eq!(guests.rang.lock().expect("whole")[&ANN].count, RINGS + 1);
        ring(&ann);
        guests.take(now);
        assert_eq!(guests.rang.lock().expect("whole")[&ANN].count, RINGS + 1, "not heard");
        ring(&bea);
        guests.take(now);
        assert_eq!(guests.rang.lock().expect("whole")[&BEA].count, 1, "another's is");
        assert!(guests.hear_again(now).is_some_and(|left| left <= SPELL));
        assert_eq!(guests.hear_again(now + SPELL), None);
        // The ring from the ignored period is reported now.
        assert!(host.wait(LONG).expect("waited"), "heard again");
        assert_eq!(guests.rang.lock().expect("whole")[&ANN].count, 1);
    }
}
