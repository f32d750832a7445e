//! Who comes and goes: the listening socket, the clients' sockets and processes, the bell.
//!
//! Nothing here blocks: sockets are read only when they have something, and a client that does not
//! take its answer is dropped.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, epoll};
use rustix::net::SocketFlags;
use rustix::process::PidfdFlags;

use super::Device;
use super::client::{Client, NAMES};
use crate::shared::board::{CLIENTS, wall_now};
use crate::shared::lane::Lane;
use crate::shared::mapping::Mapping;
use crate::wire::{self, Answer, Request, Welcome};

/// Visitors (connected, not attached) at once; more wait in the socket's queue.
const VISITORS: usize = 512;

/// How long a visitor may say nothing, wall nanoseconds. One that hangs must not keep the device
/// alive.
const SILENCE: u64 = 10_000_000_000;

const LISTENER: u64 = 0;
const BELL: u64 = 1;
const VISITOR: u64 = 1 << 32;
const CLIENT: u64 = 2 << 32;
const PROCESS: u64 = 3 << 32;

/// See the module.
pub(super) struct Door {
    epoll: OwnedFd,
    listener: OwnedFd,
    bell: OwnedFd,
    /// Each with the wall time at which it came.
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
        // Edge-triggered: each ring wakes once, and nobody has to read the bell.
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

    /// Sends silent visitors away; says when to look again (wall time), if there are any left.
    pub(super) fn next_check(&mut self, now: u64) -> Option<u64> {
        // Closing a socket takes it out of the epoll set.
        self.visitors.retain(|_, (_, came)| came.saturating_add(SILENCE) > now);
        let oldest = self.visitors.values().map(|(_, came)| *came).min()?;
        Some(oldest.saturating_add(SILENCE))
    }

    /// Lets all in who stand outside.
    fn accept(&mut self) {
        while self.visitors.len() < VISITORS {
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
}

impl Device {
    /// Handles what sockets and processes have to say. Gives back the clients that are gone.
    ///
    /// One batch: what there is beyond it is still there in the next turn, which then comes at
    /// once. (Asking for more here would bring the same events again: those who are gone stay
    /// readable until they are lost.)
    pub(super) fn look_at_the_door(&mut self) -> Vec<usize> {
        let mut gone = Vec::new();
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); 256];
        let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let events: Vec<epoll::Event> = match epoll::wait(&self.door.epoll, &mut space, Some(&at_once)) {
            Ok((events, _)) => events.to_vec(),
            Err(_) => return gone,
        };
        for event in events {
            let data = event.data.u64();
            let number = data as u32;
            match data & !u64::from(u32::MAX) {
                VISITOR => self.hear_visitor(number),
                CLIENT if self.hear_client(number as usize) => {}
                CLIENT | PROCESS => gone.push(number as usize),
                _ if data == LISTENER => self.door.accept(),
                _ => {}
            }
        }
        gone.sort_unstable();
        gone.dedup();
        gone
    }

    fn hear_visitor(&mut self, number: u32) {
        let Some((socket, _)) = self.door.visitors.remove(&number) else {
            return;
        };
        let _ = epoll::delete(&self.door.epoll, &socket);
        let request = match wire::receive::<Request>(&socket) {
            Ok(Some((request, _))) => request,
            // Left, or talks nonsense: closing is the answer.
            _ => return,
        };
        match request {
            Request::Status => self.door.questions.push(socket),
            Request::Attach { version, name } => {
                if let Err(why) = self.attach(&socket, version, name) {
                    let _ = wire::send(&socket, &Answer::Refused(why), &[]);
                }
            }
            Request::Name { .. } => {}
        }
    }

    fn attach(&mut self, socket: &OwnedFd, version: u32, name: String) -> Result<(), String> {
        if version != wire::VERSION {
            return Err(format!(
                "client of version {version}, device of version {}",
                wire::VERSION
            ));
        }
        let peer = rustix::net::sockopt::socket_peercred(socket).map_err(|error| error.to_string())?;
        let user = rustix::process::getuid();
        if peer.uid != user && !peer.uid.is_root() && !super::start::for_all_users() {
            return Err(format!("the device belongs to user {}", user.as_raw()));
        }
        let number = match self.clients.iter().position(Option::is_none) {
            Some(free) => free,
            None if self.clients.len() < CLIENTS => {
                self.clients.push(None);
                self.clients.len() - 1
            }
            None => return Err(format!("{CLIENTS} clients are attached, there is no room for more")),
        };
        let error = |error: io::Error| error.to_string();
        let (lane, lane_fd) = Mapping::<Lane>::create("simgpu-lane").map_err(error)?;
        lane.initialise();
        let socket = socket.try_clone().map_err(error)?;
        let pidfd = rustix::process::pidfd_open(peer.pid, PidfdFlags::empty()).ok();
        let data = epoll::EventData::new_u64;
        epoll::add(
            &self.door.epoll,
            &socket,
            data(CLIENT | number as u64),
            epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
        )
        .map_err(|error| error.to_string())?;
        if let Some(pidfd) = &pidfd {
            let _ = epoll::add(
                &self.door.epoll,
                pidfd,
                data(PROCESS | number as u64),
                epoll::EventFlags::IN,
            );
        }
        let welcome = Answer::Welcome(Welcome {
            client: number,
            context_memory: self.config.device.context_memory,
            pid: std::process::id(),
            warning: self.log.as_ref().and_then(|log| log.trouble().map(str::to_owned)),
        });
        // Before the client knows its place: it may reserve memory before this goes on.
        self.board.release_all(number);
        let fds = [lane_fd.as_fd(), self.board_fd.as_fd(), self.door.bell.as_fd()];
        wire::send(&socket, &welcome, &fds).map_err(error)?;
        let pid = peer.pid.as_raw_nonzero().get() as u32;
        if let Some(place) = self.clients.get_mut(number) {
            *place = Some(Client::new(lane, socket, pidfd, pid, name));
        }
        self.counters.attached += 1;
        Ok(())
    }

    /// Reads all that a client has sent. False: it is gone.
    pub(super) fn hear_client(&mut self, number: usize) -> bool {
        loop {
            let Some(client) = self.clients.get_mut(number).and_then(Option::as_mut) else {
                return true;
            };
            match wire::receive::<Request>(&client.socket) {
                Ok(Some((Request::Name { id, name }, _))) => {
                    if client.names.len() >= NAMES {
                        client.condemn("too many names");
                        return true;
                    }
                    let known = self.names.intern(wire::cut_name(&name));
                    client.names.insert(id, known);
                }
                Ok(Some(_)) => {
                    client.condemn("a request out of place");
                    return true;
                }
                Ok(None) => return false,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return false,
                Err(error) => {
                    client.condemn(&format!("a message that is none: {error}"));
                    return true;
                }
            }
        }
    }

    /// Forgets a client and all that it had.
    pub(super) fn lose(&mut self, number: usize) {
        let Some(client) = self.clients.get_mut(number).and_then(Option::as_mut) else {
            return;
        };
        // A condemned client that still lives hears of it at once.
        client.lane.cut_off();
        crate::shared::futex::ring(&client.lane.bell);
        crate::shared::futex::ring(&client.lane.prompt_bell);
        let _ = rustix::net::shutdown(&client.socket, rustix::net::Shutdown::Both);
        let contexts: Vec<_> = client.contexts.drain().map(|(_, context)| context).collect();
        for context in contexts {
            let _ = self.engine.remove_context(context);
        }
        let now = self.engine.now();
        if let Some(pager) = self.engine.memory_mut() {
            pager.remove(now, number as u32);
        }
        // Its operations come out of the engine as aborted; they must find it still there.
        self.collect();
        self.board.release_all(number);
        if let Some(client) = self.clients.get_mut(number).and_then(Option::take) {
            let _ = epoll::delete(&self.door.epoll, &client.socket);
            if let Some(pidfd) = &client.pidfd {
                let _ = epoll::delete(&self.door.epoll, pidfd);
            }
        }
    }

    /// Answers those who asked for the status. The text goes in a file of its own: with many
    /// clients it is longer than a message.
    pub(super) fn answer_questions(&mut self) {
        for socket in std::mem::take(&mut self.door.questions) {
            // Who asked and cannot be answered finds the connection closed.
            let _ = self.answer(&socket);
        }
    }

    fn answer(&self, socket: &OwnedFd) -> io::Result<()> {
        let file = rustix::fs::memfd_create("simgpu-status", rustix::fs::MemfdFlags::CLOEXEC)?;
        let mut file = std::fs::File::from(file);
        file.write_all(self.status().to_string().as_bytes())?;
        wire::send_bytes(socket, b"status", &[file.as_fd()])
    }
}
