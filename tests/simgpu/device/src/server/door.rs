// SPDX-License-Identifier: MIT OR Apache-2.0
//! The listening socket, the sockets of visitors and clients, the clients' processes, the bell: one
//! epoll set. Nothing here blocks, and nothing is read here.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, epoll};
use rustix::net::SocketFlags;

use crate::shared::board::wall_now;

/// Visitors (connected, not attached) at once; more wait in the socket's queue.
const MAX_VISITORS: usize = 512;

/// Longest silence of a visitor, wall ns. One that hangs must not keep the device alive.
const SILENCE_NS: u64 = 10_000_000_000;

const LISTENER: u64 = 0;
const BELL: u64 = 1;
const VISITOR: u64 = 1 << 32;
const CLIENT: u64 = 2 << 32;
const PROCESS: u64 = 3 << 32;

/// Something with news at the door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caller {
    /// The listening socket: a client connects.
    Listener,
    /// A visitor's socket.
    Visitor(u32),
    /// A client's socket.
    Client(usize),
    /// A client's process has ended.
    Ended(usize),
}

/// The epoll set and its sockets, see the module.
pub(super) struct Door {
    epoll: OwnedFd,
    listener: OwnedFd,
    bell: OwnedFd,
    /// Each with its wall time of arrival.
    visitors: HashMap<u32, (OwnedFd, u64)>,
    next_visitor: u32,
    /// Visitors that asked for the status.
    questions: Vec<OwnedFd>,
}

impl Door {
    pub(super) fn new(listener: OwnedFd) -> io::Result<Door> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let new = epoll::EventData::new_u64;
        epoll::add(&epoll, &listener, new(LISTENER), epoll::EventFlags::IN)?;
        // Edge-triggered: each ring wakes once, and the bell needs no reading.
        epoll::add(&epoll, &bell, new(BELL), epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        Ok(Door {
            epoll,
            listener,
            bell,
            visitors: HashMap::new(),
            next_visitor: 0,
            questions: Vec::new(),
        })
    }

    pub(super) fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    pub(super) fn is_empty(&self) -> bool {
        self.visitors.is_empty()
    }

    /// Drops silent visitors. Answers when to check again (wall time), if any are left.
    pub(super) fn next_check(&mut self, now: u64) -> Option<u64> {
        // Closing a socket takes it out of the epoll set.
        self.visitors
            .retain(|_, (_, came)| came.saturating_add(SILENCE_NS) > now);
        let oldest = self.visitors.values().map(|(_, came)| *came).min()?;
        Some(oldest.saturating_add(SILENCE_NS))
    }

    /// Accepts all that wait in the socket's queue.
    pub(super) fn accept(&mut self) {
        while self.visitors.len() < MAX_VISITORS {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(socket) = rustix::net::accept_with(&self.listener, flags) else {
                return;
            };
            let number = self.next_visitor;
            self.next_visitor = self.next_visitor.wrapping_add(1);
            let data = epoll::EventData::new_u64(VISITOR | u64::from(number));
            if epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN).is_ok() {
                self.visitors.insert(number, (socket, wall_now()));
            }
        }
    }

    /// The bell, which clients ring to wake the device.
    pub(super) fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// One batch of news of sockets and processes. The rest is still there the next time, which
    /// then comes at once. (Another batch now would repeat events: clients that are gone stay
    /// readable until they are forgotten.)
    pub(super) fn callers(&self) -> Vec<Caller> {
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); 256];
        let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut space, Some(&at_once)) else {
            return Vec::new();
        };
        let caller = |event: &epoll::Event| {
            let data = event.data.u64();
            let number = data as u32;
            match data & !u64::from(u32::MAX) {
                VISITOR => Some(Caller::Visitor(number)),
                CLIENT => Some(Caller::Client(number as usize)),
                PROCESS => Some(Caller::Ended(number as usize)),
                _ if data == LISTENER => Some(Caller::Listener),
                _ => None,
            }
        };
        events.iter().filter_map(caller).collect()
    }

    /// Takes the socket of a visitor that has a message.
    pub(super) fn take_visitor(&mut self, number: u32) -> Option<OwnedFd> {
        let (socket, _) = self.visitors.remove(&number)?;
        let _ = epoll::delete(&self.epoll, &socket);
        Some(socket)
    }

    /// Keeps the socket of a visitor that asked for the status.
    pub(super) fn push_question(&mut self, socket: OwnedFd) {
        self.questions.push(socket);
    }

    /// The sockets of all visitors that asked for the status.
    pub(super) fn take_questions(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.questions)
    }

    /// Watches the socket of a client, and its process if possible.
    pub(super) fn watch(&self, number: usize, socket: &OwnedFd, pidfd: Option<&OwnedFd>) -> io::Result<()> {
        let data = epoll::EventData::new_u64;
        epoll::add(
            &self.epoll,
            socket,
            data(CLIENT | number as u64),
            epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
        )?;
        if let Some(pidfd) = pidfd {
            let _ = epoll::add(&self.epoll, pidfd, data(PROCESS | number as u64), epoll::EventFlags::IN);
        }
        Ok(())
    }

    /// Ends [`Door::watch`].
    pub(super) fn forget(&self, socket: &OwnedFd, pidfd: Option<&OwnedFd>) {
        let _ = epoll::delete(&self.epoll, socket);
        if let Some(pidfd) = pidfd {
            let _ = epoll::delete(&self.epoll, pidfd);
        }
    }
}
