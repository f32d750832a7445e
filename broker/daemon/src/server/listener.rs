// SPDX-License-Identifier: MIT OR Apache-2.0
//! The well-known socket: one broker at a time. Connections are read concurrently, each for at most
//! `HANDSHAKE`.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use log::Level;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::callers::{Callers, Connection};
use super::inherited;
use super::process;
use super::receive::take_plain;
use super::{Accounts, Asker, PendingClient, Question, thread_time, user_of};
use crate::base::options::Door;
use crate::base::user_log;
use weft_protocol::control::Refusal;
use weft_protocol::transport::wire::Packet;
use weft_protocol::transport::{HANDSHAKE, TimeLimit, TransportError, client, fds, path, peer};

/// Most connections without a first packet. Beyond it, the oldest one of the user with the most is
/// dropped.
const HALF_OPEN: usize = 1024;

/// Most such connections per guest. Beyond it, the guest's oldest is dropped. Clients send at once,
/// so even hundreds of clients rarely count here.
const HALF_OPEN_OF_A_GUEST: usize = 256;

/// Most connections per guest: of clients, open questions, half-open, and not closed yet
/// ([`super::callers`]).
pub const CONNECTIONS_OF_A_GUEST: usize = 1536;

/// Connections accepted before older ones are read.
const AT_ONCE: usize = 64;

/// The kernel's queue. The aim is 300 jobs started at once; the kernel's default cap is 4096.
const BACKLOG: i32 = 4096;

/// Interval between checks of connections of users beyond their CPU share.
const LOOKED_AT_AGAIN: Duration = Duration::from_millis(20);

/// Most connections of a user that may wait for the user's CPU share.
const LATER_OF_A_GUEST: usize = 64;

/// Pause after an accept without descriptors or memory.
const SHORTAGE: Duration = Duration::from_millis(10);

/// The well-known socket.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    inode: (u64, u64),
    /// Whether the socket remains in place, because the service manager owns it.
    keeps_place: bool,
    /// Connections without a first packet, oldest first.
    half_open: Vec<HalfOpen>,
    /// Connections of users beyond their CPU share, oldest first; unread meanwhile.
    later: VecDeque<HalfOpen>,
    /// Time of the last check of `later`.
    looked: Instant,
    /// Connections that sent their first packet.
    said: VecDeque<Incoming>,
    callers: Arc<Callers>,
    door: Door,
    _lock: File,
}

#[derive(Debug)]
struct HalfOpen {
    socket: Connection,
    deadline: Instant,
}

/// A connection with its first packet.
#[derive(Debug)]
pub enum Incoming {
    /// A process that wants a lane.
    Client(PendingClient),
    /// A question from the command line.
    Question(Question),
}

impl Listener {
    /// Takes the socket at `path` for a private broker. Replaces a stale socket, but not that of a
    /// live broker ([`TransportError::Taken`]).
    pub fn bind(path: &Path) -> Result<Listener, TransportError> {
        Listener::open(path, Door::Private)
    }

    /// Takes the socket at `path`, as [`Listener::bind`] does.
    pub(crate) fn open(path: &Path, door: Door) -> Result<Listener, TransportError> {
        let deadline = Instant::now() + KILLED_WITHIN;
        let lock = loop {
            match Listener::free_place(path, door) {
                Err(TransportError::Taken(_)) if Instant::now() < deadline => std::thread::sleep(KILLED_AGAIN),
                place => break place?,
            }
        };
        raise_descriptor_limit();
        // Bound under another name, then renamed: no client finds a socket that does not listen.
        let fresh = with_suffix(path, ".new");
        let _ = fs::remove_file(&fresh);
        let address = SocketAddrUnix::new(&fresh).map_err(TransportError::system("naming the broker's socket"))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(TransportError::system("making a socket"))?;
        // Set before any client connects: accepted sockets inherit it.
        let passes = !process::pass_descriptors(&socket, false);
        bind(&socket, &address).map_err(TransportError::system("binding the broker's socket"))?;
        let mode = match door {
            Door::Private => 0o600,
            Door::Shared { group: Some(group) } => {
                std::os::unix::fs::chown(&fresh, None, Some(group))
                    .map_err(TransportError::io("giving the broker's socket to the group"))?;
                0o660
            }
            Door::Shared { group: None } => 0o666,
        };
        fs::set_permissions(&fresh, fs::Permissions::from_mode(mode))
            .map_err(TransportError::io("setting the permissions of the broker's socket"))?;
        listen(&socket, BACKLOG).map_err(TransportError::system("listening"))?;
        let facts = fs::symlink_metadata(&fresh).map_err(TransportError::io("examining the broker's socket"))?;
        fs::rename(&fresh, path).map_err(TransportError::io("putting the broker's socket in place"))?;
        Ok(Listener::of(socket, path, &facts, door, passes, lock))
    }

    /// Takes a socket that the service manager bound to `path`, with the checks of
    /// [`Listener::open`]. The socket remains when the broker ends.
    pub(crate) fn given(socket: OwnedFd, path: &Path, door: Door) -> Result<Listener, TransportError> {
        let lock = Listener::take_place(path, door)?;
        // The check shows that the path is this socket's, so no other broker listens there.
        let facts = inherited::check(&socket, path, door)?;
        raise_descriptor_limit();
        // Earlier connections may bring descriptors, as on a kernel without this option.
        process::pass_descriptors(&socket, false);
        rustix::io::ioctl_fionbio(&socket, true).map_err(TransportError::system("setting up the socket"))?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)
            .map_err(TransportError::system("setting up the socket"))?;
        listen(&socket, BACKLOG).map_err(TransportError::system("listening"))?;
        let passes = true;
        let mut listener = Listener::of(socket, path, &facts, door, passes, lock);
        listener.keeps_place = true;
        Ok(listener)
    }

    /// Checks the socket's folder, and takes the lock in it.
    /// Takes the place if no broker is alive there.
    fn free_place(path: &Path, door: Door) -> Result<File, TransportError> {
        let lock = Listener::take_place(path, door)?;
        // No broker of this build is alive, unless the lock file was removed, so connect and ask.
        match client::answers(path) {
            true => Err(TransportError::Taken(path.to_path_buf())),
            false => Ok(lock),
        }
    }

    fn take_place(path: &Path, door: Door) -> Result<File, TransportError> {
        match door {
            Door::Private => path::check_folder(path, true)?,
            Door::Shared { .. } => path::check_shared_folder(path)?,
        }
        lock(path)
    }

    /// A listener on this socket. With `passes`, connections may bring descriptors.
    fn of(socket: OwnedFd, path: &Path, facts: &fs::Metadata, door: Door, passes: bool, lock: File) -> Listener {
        Listener {
            socket,
            path: path.to_path_buf(),
            inode: (facts.dev(), facts.ino()),
            keeps_place: false,
            half_open: Vec::new(),
            later: VecDeque::new(),
            looked: Instant::now(),
            said: VecDeque::new(),
            callers: Callers::new(passes),
            door,
            _lock: lock,
        }
    }

    /// Whether the socket is still in place; a broker without it should end.
    pub(crate) fn in_place(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|facts| (facts.dev(), facts.ino()) == self.inode)
    }

    /// CPU time accounts.
    pub(crate) fn accounts(&self) -> Accounts {
        self.callers.accounts().clone()
    }

    /// The next connection with its first packet; `None` when the time is up. Silent, malformed,
    /// foreign or outdated connections end here and delay no other.
    pub fn accept(&mut self, within: Duration) -> Result<Option<Incoming>, TransportError> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(incoming) = self.said.pop_front() {
                return Ok(Some(incoming));
            }
            let now = Instant::now();
            self.half_open.retain(|one| one.deadline > now);
            self.look_who_waited(now);
            let until = self
                .half_open
                .iter()
                .map(|one| one.deadline)
                .fold(deadline, Instant::min);
            let until = match self.later.is_empty() {
                true => until,
                false => until.min(self.looked + LOOKED_AT_AGAIN),
            };
            let mut set: Vec<PollFd<'_>> = Vec::with_capacity(self.half_open.len() + 1);
            set.push(PollFd::new(&self.socket, PollFlags::IN));
            set.extend(self.half_open.iter().map(|one| PollFd::new(&one.socket, PollFlags::IN)));
            match poll(&mut set, Some(&fds::left(until))) {
                Ok(0) if Instant::now() >= deadline => return Ok(None),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(TransportError::system("waiting for clients")(errno)),
            }
            let mut ready = set.iter().map(|entry| !entry.revents().is_empty());
            let comes = ready.next().unwrap_or(false);
            let ready: Vec<bool> = ready.collect();
            drop(set);
            // These are read first, because a new connection may displace one of them.
            self.hear(&ready);
            if comes {
                self.take_new();
            }
        }
    }

    /// Reads again from users whose CPU share allows it; drops expired connections.
    fn look_who_waited(&mut self, now: Instant) {
        if now.saturating_duration_since(self.looked) < LOOKED_AT_AGAIN {
            return;
        }
        self.looked = now;
        for one in std::mem::take(&mut self.later) {
            if self.callers.accounts().waits(one.socket.uid()).is_none() {
                self.half_open.push(one);
            } else if one.deadline > now {
                self.later.push_back(one);
            }
        }
    }

    fn take_new(&mut self) {
        let mut before = thread_time();
        for _ in 0..AT_ONCE {
            match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => match peer::peer(&socket) {
                    Ok(peer) => {
                        let uid = match self.door.is_shared() {
                            true => user_of(&socket, &peer),
                            false => peer.uid,
                        };
                        self.comes(self.callers.comes(uid, socket));
                        let after = thread_time();
                        self.callers
                            .accounts()
                            .charge(uid, after.saturating_sub(std::mem::replace(&mut before, after)));
                    }
                    // Closed on a thread on which it can delay no other user.
                    Err(_) => drop(self.callers.comes(u32::MAX, socket)),
                },
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => {
                    log::warn!("accepting a client: {errno}");
                    std::thread::sleep(SHORTAGE);
                    return;
                }
            }
        }
    }

    /// Takes an accepted connection; most have sent their packet.
    fn comes(&mut self, socket: Connection) {
        let (uid, is_guest) = (socket.uid(), self.door.is_shared() && !socket.is_owners());
        if is_guest && self.callers.count_of(uid) > CONNECTIONS_OF_A_GUEST {
            let full = Packet::Refused(Refusal::Full(CONNECTIONS_OF_A_GUEST));
            let _ = fds::send(&socket, &full, &[], TimeLimit::new(Duration::ZERO));
            return;
        }
        if self.callers.accounts().waits(uid).is_some() {
            // Further connections are closed unread, which is the cheapest answer.
            if self.later.iter().filter(|one| one.socket.uid() == uid).count() < LATER_OF_A_GUEST {
                let deadline = Instant::now() + HANDSHAKE;
                self.later.push_back(HalfOpen { socket, deadline });
            }
            return;
        }
        let said = take_plain(&socket, socket.passes());
        if !matches!(said, Ok(None)) {
            self.says(socket, said);
            return;
        }
        let his = |one: &HalfOpen| one.socket.uid() == uid;
        if is_guest && self.half_open.iter().filter(|one| his(one)).count() >= HALF_OPEN_OF_A_GUEST {
            self.drop_oldest_of(uid);
        } else if self.half_open.len() >= HALF_OPEN {
            let mut counts = BTreeMap::<u32, usize>::new();
            for one in &self.half_open {
                *counts.entry(one.socket.uid()).or_default() += 1;
            }
            if let Some((most, _)) = counts.into_iter().max_by_key(|(_, count)| *count) {
                self.drop_oldest_of(most);
            }
        }
        self.half_open.push(HalfOpen {
            socket,
            deadline: Instant::now() + HANDSHAKE,
        });
    }

    fn drop_oldest_of(&mut self, uid: u32) {
        if let Some(at) = self.half_open.iter().position(|one| one.socket.uid() == uid) {
            self.half_open.remove(at);
        }
    }

    /// Reads half-open connections that are ready.
    fn hear(&mut self, ready: &[bool]) {
        let mut heard = Vec::new();
        let mut ready = ready.iter();
        let waits = std::mem::take(&mut self.half_open);
        for one in waits {
            let said = match ready.next() {
                Some(true) => {
                    let uid = one.socket.uid();
                    let take = || take_plain(&one.socket, one.socket.passes());
                    one.socket.accounts().at_cost_of(uid, take)
                }
                _ => Ok(None),
            };
            match said {
                Ok(None) => self.half_open.push(one),
                said => heard.push((one.socket, said)),
            }
        }
        for (socket, said) in heard {
            self.says(socket, said);
        }
    }

    fn says(&mut self, socket: Connection, said: Said) {
        let uid = socket.uid();
        match listen_to(socket, said, self.door) {
            Ok(incoming) => self.said.push_back(incoming),
            Err(TransportError::Gone) => {}
            Err(why) => user_log::line(uid, Level::Warn, format_args!("a connection was refused: {why}")),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.in_place() && !self.keeps_place {
            let _ = fs::remove_file(&self.path);
        }
    }
}

type Said = Result<Option<Packet>, TransportError>;

fn listen_to(socket: Connection, said: Said, door: Door) -> Result<Incoming, TransportError> {
    let limit = TimeLimit::new(Duration::ZERO);
    let refuse = |why: Refusal| {
        let _ = fds::send(&socket, &Packet::Refused(why.clone()), &[], limit);
        Err(TransportError::Refused(why))
    };
    let peer = peer::peer(&socket)?;
    if !door.is_shared() && peer.uid != peer::own_uid() {
        return refuse(Refusal::User);
    }
    if door.is_shared() && peer.pid.is_none() {
        // The pid that the client reports could be another process's.
        return refuse(Refusal::Unseen);
    }
    match said {
        Err(TransportError::Refused(why)) => refuse(why),
        Err(why) => Err(why),
        Ok(Some(Packet::Hello(hello))) => {
            let pidfd = process::pidfd(&socket, peer.pid)?.map(Arc::new);
            Ok(Incoming::Client(PendingClient {
                hello,
                uid: socket.uid(),
                pid: peer.pid,
                pidfd,
                socket,
                door,
            }))
        }
        Ok(Some(Packet::Question(text))) => Ok(Incoming::Question(Question {
            text,
            asker: Asker {
                uid: socket.uid(),
                pid: peer.pid,
            },
            socket,
        })),
        Ok(_) => Err(TransportError::Nonsense(
            "it began with a message that only a broker sends",
        )),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(suffix);
    PathBuf::from(name)
}

/// Time for which a killed broker's place may still seem taken. The child that it was starting has
/// its descriptors until it executes its own program, which takes long without a core.
const KILLED_WITHIN: Duration = Duration::from_millis(500);

/// Interval between two looks at a place that seems taken.
const KILLED_AGAIN: Duration = Duration::from_millis(20);

/// Takes the lock that a live broker holds. The file is never removed: otherwise two brokers could
/// hold two locks.
fn lock(path: &Path) -> Result<File, TransportError> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(with_suffix(path, ".lock"))
        .map_err(TransportError::io("opening the lock next to the broker's socket"))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(TransportError::Taken(path.to_path_buf())),
        Err(errno) => Err(TransportError::system("locking the broker's socket")(errno)),
    }
}

/// Raises the limit of open files. A client takes about five, so the usual limit of 1024 suffices
/// for some 200 clients.
fn raise_descriptor_limit() {
    let now = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: now.maximum,
        maximum: now.maximum,
    };
    if setrlimit(Resource::Nofile, raised).is_err() {
        log::warn!("the limit of open files stays at {:?}", now.current);
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::PollFlags;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::super::callers::tests::lingering;
    use super::super::tests::connect;
    use super::*;
    use weft_protocol::transport::wire;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn send(socket: &OwnedFd, packet: &Packet, descriptor: BorrowedFd<'_>) -> Result<usize, Errno> {
        let bytes = wire::pack(packet).expect("packed");
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let sent = [descriptor];
        assert!(control.push(SendAncillaryMessage::ScmRights(&sent)));
        sendmsg(
            socket,
            &[std::io::IoSlice::new(&bytes)],
            &mut control,
            SendFlags::empty(),
        )
    }

    fn next(listener: &mut Listener) -> Incoming {
        let begin = Instant::now();
        loop {
            if let Some(incoming) = listener.accept(Duration::from_millis(20)).expect("accepting goes on") {
                return incoming;
            }
            assert!(begin.elapsed() < PATIENCE, "nobody is heard");
        }
    }

    fn asks(path: &Path, what: &str) -> OwnedFd {
        let socket = connect(path);
        let question = Packet::Question(what.into());
        fds::send(&socket, &question, &[], TimeLimit::new(PATIENCE)).expect("sent");
        socket
    }

    #[test]
    fn the_place_of_a_killed_broker_is_taken_once_its_child_has_let_go() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("broker.sock");
        let killed = Listener::bind(&path).expect("bound");
        let next = std::thread::spawn({
            let path = path.clone();
            move || Listener::bind(&path).map(|_| ())
        });
        std::thread::sleep(KILLED_WITHIN / 5);
        drop(killed);
        next.join().expect("no panic").expect("the place is free");
        let _alive = Listener::bind(&path).expect("bound");
        assert!(matches!(Listener::bind(&path), Err(TransportError::Taken(_))));
    }

    #[test]
    fn a_descriptor_is_refused_by_the_kernel_that_can() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("broker.sock");
        let mut listener = Listener::bind(&path).expect("bound");
        let (socket, question) = (connect(&path), Packet::Question("one".into()));
        if listener.callers.count_of(0) == 0 && process::pass_descriptors(&socket, true) {
            assert_eq!(send(&socket, &question, socket.as_fd()), Err(Errno::PERM));
        }
        let _two = asks(&path, "two");
        assert!(matches!(next(&mut listener), Incoming::Question(question) if question.text == "two"));
    }

    #[test]
    fn on_a_kernel_that_cannot_a_descriptor_whose_close_hangs_holds_up_nobody() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("broker.sock");
        let mut listener = Listener::bind(&path).expect("bound");
        process::pass_descriptors(&listener.socket, true);
        listener.callers = Callers::new(true);
        let uid = peer::own_uid();
        let ends: Vec<_> = (0..2)
            .map(|number| {
                let (sender, silent) = lingering();
                let socket = connect(&path);
                if number == 1 {
                    assert!(listener.accept(Duration::ZERO).expect("accepted").is_none());
                }
                send(&socket, &Packet::Question("bad".into()), sender.as_fd()).expect("sent");
                (socket, silent)
            })
            .collect();
        let good = asks(&path, "good");
        match next(&mut listener) {
            Incoming::Question(question) => {
                assert_eq!(question.text, "good");
                question.answer("?").expect("answered");
            }
            Incoming::Client(_) => panic!("nobody wants in"),
        }
        assert!(fds::ready(&good, PollFlags::IN, Instant::now() + PATIENCE).expect("waited"));
        assert!(
            listener.callers.count_of(uid) >= 2,
            "their connections are not closed yet"
        );
        let (sockets, silent): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
        drop(silent);
        let begin = Instant::now();
        while listener.callers.count_of(uid) > 0 {
            assert!(begin.elapsed() < PATIENCE, "what hangs no more is closed");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(sockets);
    }
}
