// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device process: one thread that sleeps most of the time.
//!
//! A turn:
//!
//! * handle sockets: clients come, leave or send a message ([`door`]);
//! * take all submissions by their time stamps and bring the engine to now ([`intake`]);
//! * report ended operations to the clients, wake those that wait, find the next wake-up
//!   ([`outlet`]);
//! * sleep.
//!
//! Submissions carry their time, so computed times do not depend on when the device looks. It wakes
//! when a client asks (a thread begins to wait, a ring is half full, something prompt was
//! submitted), when something awaited can have ended, and when a socket has news.
//!
//! Clients are not trusted: one that sends an impossible message is cut off; the others do not
//! notice.

mod client;
mod door;
mod in_flight;
mod intake;
mod log;
mod names;
mod outlet;
mod start;
mod status;
#[cfg(test)]
mod tests;

use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::PidfdFlags;
use weft_engine::Engine;

use crate::config::Config;
use crate::durations::Durations;
use crate::shared::board::{Board, Clock, MAX_CLIENTS, wall_now};
use crate::shared::futex;
use crate::shared::lane::Lane;
use crate::shared::mapping::Mapping;
use crate::wire::{self, Answer, Request, Welcome};
use client::{Client, MAX_NAMES};
use door::{Caller, Door};
use in_flight::Metas;
use log::Log;
use names::Names;
pub use start::{Started, prepare};

/// How long a device to which no client ever attached stays: its starter may be slow.
const FIRST_CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// The device.
pub struct DeviceProcess {
    config: Config,
    socket_path: PathBuf,
    clock: Clock,
    board: Mapping<Board>,
    board_fd: OwnedFd,
    door: Door,
    engine: Engine,
    durations: Durations,
    names: Names,
    clients: Vec<Option<Client>>,
    metas: Metas,
    log: Option<Log>,
    counters: Counters,
}

/// Counts of the device's own work.
#[derive(Debug, Default)]
struct Counters {
    /// Times it woke up.
    turns: u64,
    /// Clients that ever attached.
    attached: u64,
    /// Clients cut off, and the reason of the last.
    cut: u64,
    last_cut: Option<String>,
    /// Records taken.
    records: u64,
}

impl DeviceProcess {
    /// A device that serves a listening socket.
    pub fn new(config: Config, started: Started) -> io::Result<DeviceProcess> {
        let (board, board_fd) = Mapping::<Board>::create("simgpu-board")?;
        let device = &config.device;
        board.initialise(wall_now(), device.dilation, device.memory, device.host_memory);
        let log = Log::from_environment(&config);
        let engine = Engine::with_memory(config.engine(log.is_some()), config.paging());
        Ok(DeviceProcess {
            clock: board.clock(),
            board,
            board_fd,
            door: Door::new(started.listener)?,
            socket_path: started.socket,
            engine,
            durations: Durations::new(&config),
            names: Names::default(),
            clients: Vec::new(),
            metas: Metas::default(),
            log,
            counters: Counters::default(),
            config,
        })
    }

    /// Serves until the last client has left.
    pub fn run(mut self) -> io::Result<()> {
        let linger = Duration::from_millis(self.config.device.linger_ms);
        let mut leave_at = wall_now() + FIRST_CLIENT_TIMEOUT.as_nanos() as u64;
        loop {
            self.counters.turns += 1;
            let asked = self.board.asked();
            let mut gone = self.look_at_the_door();
            self.take_in();
            // Losing one client can show that another does not take its news.
            gone.extend(self.take_cut());
            while !gone.is_empty() {
                for client in gone {
                    self.lose(client);
                }
                gone = self.take_cut();
            }
            let wake = self.give_out();
            if let Some(log) = &mut self.log {
                log.flush();
            }
            self.answer_questions();
            let now = wall_now();
            if self.nobody_here() {
                if now >= leave_at {
                    // A client that connects from now on finds the socket closed and starts another
                    // device.
                    let _ = std::fs::remove_file(&self.socket_path);
                    return Ok(());
                }
            } else {
                leave_at = now + linger.as_nanos() as u64;
            }
            let mut until = wake.map(|device| self.clock.wall(device));
            let idle_until = if self.nobody_here() {
                Some(leave_at)
            } else {
                self.door.next_check(now)
            };
            if let Some(idle_until) = idle_until {
                until = Some(until.map_or(idle_until, |until| until.min(idle_until)));
            }
            self.board.set_sleeping(true);
            if self.board.asked() == asked {
                self.sleep(until.map(|until| until.saturating_sub(wall_now())))?;
            }
            self.board.set_sleeping(false);
        }
    }

    fn nobody_here(&self) -> bool {
        self.clients.iter().all(Option::is_none) && self.door.is_empty()
    }

    /// Sleeps until the door has news, or for `ns` wall nanoseconds.
    fn sleep(&self, ns: Option<u64>) -> io::Result<()> {
        let timeout = ns.map(|ns| Timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        });
        let mut fds = [PollFd::new(self.door.epoll(), PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Handles sockets and processes. Answers the clients that are gone.
    fn look_at_the_door(&mut self) -> Vec<usize> {
        let mut gone = Vec::new();
        for caller in self.door.callers() {
            match caller {
                Caller::Listener => self.door.accept(),
                Caller::Visitor(number) => self.hear_visitor(number),
                Caller::Client(number) if self.hear_client(number) => {}
                Caller::Client(number) | Caller::Ended(number) => gone.push(number),
            }
        }
        gone.sort_unstable();
        gone.dedup();
        gone
    }

    fn hear_visitor(&mut self, number: u32) {
        let Some(socket) = self.door.take_visitor(number) else {
            return;
        };
        let request = match wire::receive::<Request>(&socket) {
            Ok(Some((request, _))) => request,
            // Gone, or nonsense: closing is the answer.
            _ => return,
        };
        match request {
            Request::Status => self.door.push_question(socket),
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
        if peer.uid != user && !peer.uid.is_root() && !start::for_all_users() {
            return Err(format!("the device belongs to user {}", user.as_raw()));
        }
        let number = match self.clients.iter().position(Option::is_none) {
            Some(free) => free,
            None if self.clients.len() < MAX_CLIENTS => {
                self.clients.push(None);
                self.clients.len() - 1
            }
            None => return Err(format!("{MAX_CLIENTS} clients are attached, there is no room for more")),
        };
        let error = |error: io::Error| error.to_string();
        let (lane, lane_fd) = Mapping::<Lane>::create("simgpu-lane").map_err(error)?;
        lane.initialise();
        let socket = socket.try_clone().map_err(error)?;
        let pidfd = rustix::process::pidfd_open(peer.pid, PidfdFlags::empty()).ok();
        self.door.watch(number, &socket, pidfd.as_ref()).map_err(error)?;
        let welcome = Answer::Welcome(Welcome {
            client: number,
            context_memory: self.config.device.context_memory,
            wait_return: self.config.device.wait_return_ns,
            pid: std::process::id(),
            warning: self.log.as_ref().and_then(|log| log.trouble().map(str::to_owned)),
        });
        // Before the client knows its place, as it may reserve memory at once.
        self.board.release_all(number);
        let fds = [lane_fd.as_fd(), self.board_fd.as_fd(), self.door.bell().as_fd()];
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
                    if client.names.len() >= MAX_NAMES {
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
    fn lose(&mut self, number: usize) {
        let Some(client) = self.clients.get_mut(number).and_then(Option::as_mut) else {
            return;
        };
        // A condemned client that still lives learns of it at once.
        client.lane.cut_off();
        futex::ring(&client.lane.bell);
        futex::ring(&client.lane.prompt_bell);
        let _ = rustix::net::shutdown(&client.socket, rustix::net::Shutdown::Both);
        let contexts: Vec<_> = client.contexts.drain().map(|(_, context)| context).collect();
        for context in contexts {
            let _ = self.engine.remove_context(context);
        }
        let now = self.engine.now();
        if let Some(pager) = self.engine.memory_mut() {
            pager.remove(now, number as u32);
        }
        // The engine aborts its operations; they must find it still there.
        self.collect();
        self.board.release_all(number);
        if let Some(client) = self.clients.get_mut(number).and_then(Option::take) {
            self.door.forget(&client.socket, client.pidfd.as_ref());
        }
    }

    /// Answers requests for the status, with a file: with many clients the text exceeds a message.
    fn answer_questions(&mut self) {
        for socket in self.door.take_questions() {
            // A visitor that cannot be answered finds the connection closed.
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
