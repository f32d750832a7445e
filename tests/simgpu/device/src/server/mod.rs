//! The device process: one thread that sleeps most of the time.
//!
//! A turn: see who came, left or said something ([`door`]); take what all clients submitted, in the
//! order of its time stamps, and bring the engine to now ([`intake`]); tell the clients what ended,
//! wake those who wait, find out when to wake next ([`outlet`]); sleep.
//!
//! Submissions carry the time at which they were made, so it makes no difference to any computed
//! time when the device looks. It wakes when a client asks it to (somebody begins to wait, a ring
//! is half full, something prompt was submitted), when something that is waited for can have ended,
//! and when a socket has news.
//!
//! Clients are not trusted: one that says something impossible is cut off and lost, nobody else.

mod client;
mod door;
mod intake;
mod log;
mod outlet;
mod start;
mod status;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use simgpu_engine::Engine;

use crate::config::Config;
use crate::durations::Durations;
use crate::shared::board::{Board, Clock, wall_now};
use crate::shared::mapping::Mapping;
use client::Client;
use door::Door;
use intake::Names;
use log::Log;
use outlet::{Meta, Metas};
pub use start::{Started, prepare};

/// How long a device that nobody ever attached to stays: who started it may be slow.
const FIRST_CLIENT: Duration = Duration::from_secs(5);

/// The device.
pub struct Device {
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

/// What the device counts about itself.
#[derive(Debug, Default)]
struct Counters {
    /// Times it woke up.
    turns: u64,
    /// Clients that ever attached.
    attached: u64,
    /// Clients cut off, and why the last one was.
    cut: u64,
    last_cut: Option<String>,
    /// Records taken.
    records: u64,
}

impl Device {
    /// A device that serves a listening socket.
    pub fn new(config: Config, started: Started) -> io::Result<Device> {
        let (board, board_fd) = Mapping::<Board>::create("simgpu-board")?;
        let device = &config.device;
        board.initialise(wall_now(), device.dilation, device.memory, device.host_memory);
        let log = Log::from_environment(&config);
        let engine = Engine::with_memory(config.engine(log.is_some()), config.paging());
        Ok(Device {
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
        let mut leave_at = wall_now() + FIRST_CLIENT.as_nanos() as u64;
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
                    // Who connects between this and the end finds the socket closed and starts
                    // another device.
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

    /// Sleeps until the door has news, or for so many wall nanoseconds.
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
}

/// A table with free places, for numbers that go out and come back.
type ByNumber<T> = HashMap<u32, T>;
