//! What clients share with a broker besides their lanes: boards and doorbells. No house is read or written here but its bell.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;

use crate::transport::map::SharedBoard;
use crate::transport::{Error, fds};

/// What clients share with a broker besides their lanes: all of them with a private one, those of a user with a shared one.
#[derive(Debug)]
pub struct House {
    /// The board.
    pub board: SharedBoard,
    /// The doorbell that clients ring: an eventfd, not blocking.
    pub bell: OwnedFd,
}

impl House {
    /// Makes a board and a doorbell.
    pub fn make() -> Result<House, Error> {
        let bell =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(Error::system("making the doorbell"))?;
        Ok(House {
            board: SharedBoard::board()?,
            bell,
        })
    }
}

/// What a broker shares with its clients. Of a shared broker this is its own house, where no client is, and the others are its guests'.
#[derive(Debug)]
pub struct Host {
    own: House,
    guests: Option<Guests>,
}

/// The houses of a shared broker's users.
#[derive(Debug)]
struct Guests {
    houses: Mutex<BTreeMap<u32, Weak<House>>>,
    /// All their bells. Edge-triggered: each ring is told once and no bell is ever read, since whoever else has it could have made a read of it wait.
    rings: OwnedFd,
}

impl std::ops::Deref for Host {
    type Target = House;

    fn deref(&self) -> &House {
        &self.own
    }
}

impl Host {
    /// Of a private broker.
    pub fn make() -> Result<Host, Error> {
        Ok(Host {
            own: House::make()?,
            guests: None,
        })
    }

    /// Of a shared broker.
    pub fn shared() -> Result<Host, Error> {
        let rings =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Error::system("making the list of doorbells"))?;
        Ok(Host {
            own: House::make()?,
            guests: Some(Guests {
                houses: Mutex::default(),
                rings,
            }),
        })
    }

    /// The house of a user. It stands as long as somebody holds it. `None` in a private broker, where all are in the one.
    pub fn house_of(&self, uid: u32) -> Result<Option<Arc<House>>, Error> {
        let Some(guests) = &self.guests else { return Ok(None) };
        let mut houses = guests.houses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(house) = houses.get(&uid).and_then(Weak::upgrade) {
            return Ok(Some(house));
        }
        houses.retain(|_, house| house.strong_count() > 0);
        let house = Arc::new(House::make()?);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(
            &guests.rings,
            &house.bell,
            epoll::EventData::new_u64(u64::from(uid)),
            flags,
        )
        .map_err(Error::system("listening to a doorbell"))?;
        houses.insert(uid, Arc::downgrade(&house));
        Ok(Some(house))
    }

    /// Waits until a client rings or the time is up, and takes all rings. True if somebody rang.
    pub fn wait(&self, within: Duration) -> Result<bool, Error> {
        let deadline = Instant::now() + within;
        let Some(guests) = &self.guests else {
            let rang = fds::ready(&self.bell, PollFlags::IN, deadline)?;
            self.take_rings(rang);
            return Ok(rang);
        };
        loop {
            let mut set = [
                PollFd::new(&self.bell, PollFlags::IN),
                PollFd::new(&guests.rings, PollFlags::IN),
            ];
            match poll(&mut set, Some(&fds::left(deadline))) {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(Error::system("waiting for a doorbell")(errno)),
            }
            let rang = |at: usize| set.get(at).is_some_and(|entry| !entry.revents().is_empty());
            self.take_rings(rang(0));
            if rang(1) {
                let mut heard = [epoll::Event {
                    flags: epoll::EventFlags::empty(),
                    data: epoll::EventData::new_u64(0),
                }; 64];
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                let _ = epoll::wait(&guests.rings, &mut heard[..], Some(&now));
            }
            return Ok(true);
        }
    }

    fn take_rings(&self, rang: bool) {
        if rang {
            let mut count = [0u8; 8];
            // Another thread may have been faster; there is nothing to do about any error here.
            let _ = rustix::io::read(&self.bell, &mut count);
        }
    }
}
