// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections to the broker: counted by user, and closed on threads for which no other user waits.
//!
//! The last close of a descriptor may take as long as its sender likes: a lingering TCP socket, a
//! file on a dead server. The close of a socket also closes unread descriptors. From Linux 6.16 the
//! kernel refuses packets with descriptors on the broker's socket, so a close is harmless.
//!
//! On older kernels threads close connections, one per user at a time: a user delays at most one
//! thread. A connection counts for its user until it is closed.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Accounts;
use weft_protocol::transport::peer;

/// Most closing threads: the closes of this number of users may hang without a delay for others.
const CLOSERS: usize = 64;

/// All connections.
#[derive(Debug)]
pub(super) struct Callers {
    /// Whether packets may bring descriptors.
    passes: bool,
    /// CPU time accounts.
    accounts: Accounts,
    state: Mutex<CallerState>,
}

#[derive(Debug, Default)]
struct CallerState {
    /// Open connections by user.
    open: BTreeMap<u32, usize>,
    /// Connections to close, by user; an entry that is empty and idle is removed.
    closing: BTreeMap<u32, Closing>,
    closers: usize,
}

#[derive(Debug, Default)]
struct Closing {
    sockets: VecDeque<OwnedFd>,
    busy: bool,
}

impl Callers {
    /// Starts without connections. With `passes`, packets may bring descriptors.
    pub(super) fn new(passes: bool) -> Arc<Callers> {
        Arc::new(Callers {
            passes,
            accounts: Accounts::default(),
            state: Mutex::default(),
        })
    }

    /// CPU time accounts.
    pub(super) fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// Counts a connection of this user.
    pub(super) fn comes(self: &Arc<Self>, uid: u32, socket: OwnedFd) -> Connection {
        *self.state().open.entry(uid).or_default() += 1;
        Connection {
            socket: Some(socket),
            uid,
            callers: Arc::clone(self),
        }
    }

    /// A user's open connections.
    pub(super) fn count_of(&self, uid: u32) -> usize {
        self.state().open.get(&uid).copied().unwrap_or(0)
    }

    fn state(&self) -> MutexGuard<'_, CallerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(self: &Arc<Self>, uid: u32, socket: OwnedFd) {
        if !self.passes {
            drop(socket);
            self.state().closed(uid);
            return;
        }
        let mut state = self.state();
        state.closing.entry(uid).or_default().sockets.push_back(socket);
        if state.closers >= CLOSERS {
            return;
        }
        state.closers += 1;
        drop(state);
        let callers = Arc::clone(self);
        let started = std::thread::Builder::new()
            .name("weft-close".into())
            .spawn(move || callers.close_all());
        if let Err(error) = started {
            // The connections remain open until the next close.
            log::warn!("no thread to close a connection: {error}");
            self.state().closers -= 1;
        }
    }

    /// Closes all connections except those of users with a close under way.
    fn close_all(&self) {
        loop {
            let mut state = self.state();
            let next = state
                .closing
                .iter_mut()
                .find(|(_, closing)| !closing.busy)
                .map(|(uid, closing)| {
                    closing.busy = true;
                    (*uid, closing.sockets.pop_front())
                });
            let Some((uid, socket)) = next else {
                state.closers -= 1;
                return;
            };
            drop(state);
            // This may take arbitrarily long.
            drop(socket);
            let mut state = self.state();
            state.closed(uid);
            if let Some(closing) = state.closing.get_mut(&uid) {
                closing.busy = false;
                if closing.sockets.is_empty() {
                    state.closing.remove(&uid);
                }
            }
        }
    }
}

impl CallerState {
    fn closed(&mut self, uid: u32) {
        if let Some(open) = self.open.get_mut(&uid) {
            *open -= 1;
            if *open == 0 {
                self.open.remove(&uid);
            }
        }
    }
}

/// A counted connection. Its drop never waits.
#[derive(Debug)]
pub struct Connection {
    /// `None` only during the drop.
    socket: Option<OwnedFd>,
    uid: u32,
    callers: Arc<Callers>,
}

impl Connection {
    /// User id from the kernel, or [`super::contained::NOBODY`].
    pub(super) fn uid(&self) -> u32 {
        self.uid
    }

    /// Whether packets may bring descriptors here.
    pub(super) fn passes(&self) -> bool {
        self.callers.passes
    }

    /// CPU time accounts.
    pub(super) fn accounts(&self) -> &Accounts {
        &self.callers.accounts
    }

    /// Whether the user is root or the broker's own, to whom the limits of guests do not apply.
    pub(super) fn is_owners(&self) -> bool {
        is_owner(self.uid)
    }
}

/// Whether this is root or the broker's own user.
pub(super) fn is_owner(uid: u32) -> bool {
    const ROOT: u32 = 0;
    uid == ROOT || uid == peer::own_uid()
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket
            .as_ref()
            .expect("it is taken out where it is dropped")
            .as_fd()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            self.callers.close(self.uid, socket);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn until(what: impl Fn() -> bool) {
        let begin = Instant::now();
        while !what() {
            assert!(begin.elapsed() < PATIENCE, "not in time");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair")
    }

    /// A descriptor whose last close waits for the second stream's drop.
    pub(in super::super) fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut sender = TcpStream::connect(listener.local_addr().expect("its own")).expect("connected");
        let (silent, _) = listener.accept().expect("accepted");
        rustix::net::sockopt::set_socket_linger(&sender, Some(Duration::from_secs(600))).expect("it lingers");
        sender.set_nonblocking(true).expect("set");
        while sender.write(&[0; 65_536]).is_ok() {}
        (sender, silent)
    }

    /// A socket with such a descriptor in it.
    fn hanging() -> (OwnedFd, OwnedFd, TcpStream) {
        let (sender, silent) = lingering();
        let (ours, theirs) = pair();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let sent = [sender.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&sent)));
        let bytes = [std::io::IoSlice::new(b"x")];
        rustix::net::sendmsg(&theirs, &bytes, &mut control, SendFlags::empty()).expect("sent");
        (ours, theirs, silent)
    }

    #[test]
    fn a_close_that_hangs_holds_up_its_own_user_alone_and_counts_until_it_is_done() {
        let callers = Callers::new(true);
        let (ours, theirs, silent) = hanging();
        let bad = callers.comes(7, ours);
        let next = callers.comes(7, pair().0);
        drop(bad);
        drop(next);
        until(|| callers.state().closing.get(&7).is_some_and(|closing| closing.busy));
        let (other, end) = pair();
        drop(callers.comes(8, other));
        until(|| callers.count_of(8) == 0);
        assert!(weft_protocol::transport::fds::hung_up(
            &end,
            rustix::event::PollFlags::RDHUP
        ));
        assert_eq!(callers.count_of(7), 2, "none of them is closed yet");
        // Once the data is read or reset, the close completes.
        drop(silent);
        until(|| callers.count_of(7) == 0);
        until(|| callers.state().closers == 0);
        assert!(callers.state().closing.is_empty());
        drop(theirs);
    }

    #[test]
    fn where_nothing_can_be_passed_closing_is_at_once() {
        let callers = Callers::new(false);
        let (ours, theirs) = pair();
        let one = callers.comes(7, ours);
        assert_eq!((callers.count_of(7), callers.count_of(8)), (1, 0));
        drop(one);
        assert_eq!((callers.count_of(7), callers.state().closers), (0, 0));
        drop(theirs);
    }
}
