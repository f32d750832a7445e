// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client's end of the device: see [`Link`].
//!
//! * [`connect`]: finding or starting the device.
//! * [`submit`]: contexts, streams, names and operations, towards the device.
//! * [`news`]: the way back, and waiting for it.
//! * [`guard`]: telling a forked child from its parent. [`error`]: reasons for a refusal.

mod connect;
mod error;
mod guard;
mod news;
mod submit;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

pub use connect::{Options, default_socket};
pub(crate) use connect::{beside, connect as connect_to};
pub use error::LinkError;

use crate::lock::lock;
use crate::op::{Advice, Effects, Ns};
use crate::shared::board::{Board, Clock, wall_now};
use crate::shared::lane::{BLOCKS, Lane, SLOTS};
use crate::shared::mapping::Mapping;
use crate::shared::record::Record;
use crate::wire::Welcome;
use guard::ForkGuard;
use news::{Hearing, OpSlot};
use submit::Outbox;

/// Operations that a link may have outstanding over all its streams.
pub const WINDOW: u64 = SLOTS as u64;

/// Operations that a stream may have outstanding before [`Link::submit`] waits: about the size of a
/// real channel's ring.
pub const STREAM_DEPTH: u64 = 1_024;

/// A client's connection to the device. All methods may be called from any thread.
///
/// * [`Link::submit`] costs a fraction of a microsecond and does not wake the device. Work carries
///   its time of submission, so it is timed exactly whenever the device looks.
/// * [`Link::poll`], [`Link::status`], [`Link::wait`], [`Link::wait_for_news`] (and a
///   [`Link::submit`] that waits) take news of ended operations. They perform [`Effects`] one at a
///   time, in the order of the ends. An operation is done once its effect has been performed.
/// * When the device dies, waiting threads get [`LinkError::Lost`] within a tenth of a second, and
///   so does every later call.
/// * A child of fork gets [`LinkError::Forked`] from all that can fail; the rest does nothing
///   ([`Link::usable`]). It may drop the link.
/// * Dropping the link returns all that it had (memory, contexts, running kernels), as the
///   process's death does.
pub struct Link {
    guard: ForkGuard,
    lane: Mapping<Lane>,
    board: Mapping<Board>,
    clock: Clock,
    bell: OwnedFd,
    socket: OwnedFd,
    welcome: Welcome,
    /// [`Options::client_priority`].
    client_priority: i32,
    lost: AtomicBool,
    outbox: Mutex<Outbox>,
    /// Held while asking for blocks: one thread at a time.
    asking: Mutex<()>,
    slots: Box<[OpSlot]>,
    hearing: Hearing,
    effects: Arc<dyn Effects>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("welcome", &self.welcome)
            .finish_non_exhaustive()
    }
}

impl Link {
    /// Connects to the device, starting it if there is none (some 10 ms). Takes at most half a
    /// minute.
    pub fn open(options: &Options, effects: Arc<dyn Effects>) -> Result<Link, LinkError> {
        let broken = |error: std::io::Error| LinkError::Unusable(format!("the device's shared memory: {error}"));
        let guard = ForkGuard::new().map_err(broken)?;
        let (socket, welcome, fds) = connect::attach(options)?;
        let Ok([lane, board, bell]) = <[OwnedFd; 3]>::try_from(fds) else {
            return Err(LinkError::Unusable("the device sent no shared memory".to_owned()));
        };
        let lane = Mapping::<Lane>::of(&lane).map_err(broken)?;
        let board = Mapping::<Board>::of(&board).map_err(broken)?;
        if !lane.is_lane() {
            return Err(LinkError::Unusable("the device is of another version".to_owned()));
        }
        Ok(Link {
            guard,
            clock: board.clock(),
            lane,
            board,
            bell,
            socket,
            welcome,
            client_priority: options.client_priority,
            lost: AtomicBool::new(false),
            outbox: Mutex::default(),
            asking: Mutex::default(),
            slots: (0..SLOTS).map(|_| OpSlot::default()).collect(),
            hearing: Hearing::default(),
            effects,
        })
    }

    /// Whether this process may use the link: false in a child of fork.
    pub fn usable(&self) -> bool {
        self.guard.same_process()
    }

    fn check(&self) -> Result<(), LinkError> {
        if !self.usable() {
            return Err(LinkError::Forked);
        }
        if self.lost.load(Ordering::Relaxed) {
            return Err(LinkError::Lost);
        }
        Ok(())
    }

    /// Whether a call that waited or asked found the device gone. Nothing on it will end then.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Wall seconds a device second.
    pub fn dilation(&self) -> f64 {
        self.clock.dilation()
    }

    /// The device's time. It runs while the device is idle.
    pub fn now(&self) -> Ns {
        self.clock.device(wall_now())
    }

    /// The device's process.
    pub fn device_pid(&self) -> u32 {
        self.welcome.pid
    }

    /// A warning for people, such as of a log that cannot be written.
    pub fn warning(&self) -> Option<&str> {
        self.welcome.warning.as_deref()
    }

    /// Takes device memory, which all processes share.
    pub fn reserve(&self, bytes: u64) -> Result<(), LinkError> {
        self.check()?;
        if self.board.reserve(self.welcome.client, bytes) {
            Ok(())
        } else {
            Err(LinkError::OutOfMemory)
        }
    }

    /// Returns device memory; at most the amount that this link holds.
    pub fn release(&self, bytes: u64) {
        if self.usable() {
            self.board.release(self.welcome.client, bytes);
        }
    }

    /// Makes addresses of this process managed memory, if the host can hold the managed memory of
    /// all processes.
    pub fn manage(&self, start: u64, bytes: u64) -> Result<(), LinkError> {
        self.check()?;
        if !self.board.manage(self.welcome.client, bytes) {
            return Err(LinkError::OutOfMemory);
        }
        self.tell(&Record::Manage {
            start,
            bytes,
            ends: false,
        })
    }

    /// Takes back a range of [`Link::manage`].
    pub fn unmanage(&self, start: u64, bytes: u64) -> Result<(), LinkError> {
        self.check()?;
        self.tell(&Record::Manage {
            start,
            bytes,
            ends: true,
        })?;
        self.board.unmanage(self.welcome.client, bytes);
        Ok(())
    }

    /// Gives advice about managed memory, or takes it back.
    pub fn advise(&self, start: u64, bytes: u64, advice: Advice, on: bool) -> Result<(), LinkError> {
        self.check()?;
        self.tell(&Record::Advise {
            start,
            bytes,
            advice,
            on,
        })
    }

    /// Which pages (64 KiB) of this link's managed memory lie only on the device: for each of
    /// `count` blocks (2 MiB) from `first` on one bit a page, the lowest first. Costs a round trip.
    pub fn on_device(&self, first: u64, count: usize) -> Result<Vec<u32>, LinkError> {
        self.check()?;
        if self.hearing.is_mine() {
            return Err(LinkError::Reentrant);
        }
        let _one = lock(&self.asking);
        let mut found = Vec::with_capacity(count);
        while found.len() < count {
            let some = (count - found.len()).min(BLOCKS);
            self.lane.ask_blocks(first + found.len() as u64, some);
            self.refresh()?;
            found.extend(self.lane.answered_blocks().take(some));
        }
        self.lane.ask_blocks(0, 0);
        Ok(found)
    }

    /// Free and total device memory over all processes. Used are contexts' own memory,
    /// reservations, and managed memory on the device.
    pub fn memory(&self) -> (u64, u64) {
        let total = self.board.total();
        if self.usable() && self.board.managed() > 0 {
            // Residency is as of the device's last look; a device that is gone cannot look.
            let _ = self.refresh();
        }
        let used = u64::try_from(self.board.used() + self.board.resident()).unwrap_or(u64::MAX);
        (total.saturating_sub(used), total)
    }

    /// Device memory that this link holds, its contexts' own included.
    pub fn held(&self) -> u64 {
        self.board.held(self.welcome.client)
    }

    /// Asks the device to look, waking it if it sleeps.
    fn ask(&self) {
        if self.board.ask() {
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Whether the device still lives. Costs a system call, so it is used when a wait has lasted.
    fn alive(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        if self.lane.is_cut_off() {
            self.lost.store(true, Ordering::Relaxed);
            return false;
        }
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let gone = poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0);
        if gone {
            self.lost.store(true, Ordering::Relaxed);
        }
        !gone
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // A forked child's copy of the socket must not keep this client alive for the device, and a
        // child's drop must not end the parent's link.
        if self.usable() {
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
    }
}

/// Access for tests of lying clients.
#[cfg(test)]
pub(crate) mod test_access {
    use super::{Lane, Link, OwnedFd};

    pub(crate) fn lane(link: &Link) -> &Lane {
        &link.lane
    }

    pub(crate) fn socket(link: &Link) -> &OwnedFd {
        &link.socket
    }

    pub(crate) fn ask(link: &Link) {
        link.ask();
    }
}
