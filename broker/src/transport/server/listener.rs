//! The well-known socket: taken by one broker at a time, and those who come to it heard side by side. Nobody is waited for here beyond the time he is given to say what he wants.
#![forbid(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Asker, Pending, Question};
use crate::protocol::control::Refusal;
use crate::transport::wire::Packet;
use crate::transport::{Error, HANDSHAKE, client, fds, path, peer};

/// Connections that have not said yet what they want. More than that, and the oldest is dropped.
const HALF_OPEN: usize = 1024;

/// Connections the kernel may keep for us. 300 jobs started at once are an aim; the kernel itself caps this at its own limit (4096 by default).
const BACKLOG: i32 = 4096;

/// Pause after an accept that failed for want of descriptors or memory.
const SHORTAGE: Duration = Duration::from_millis(10);

/// Whom a broker serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Door {
    /// The user who runs it.
    #[default]
    Private,
    /// All users, or those of a group.
    Shared {
        /// Of this group alone.
        group: Option<u32>,
    },
}

impl Door {
    /// Whether others than its own user are served.
    pub fn is_shared(self) -> bool {
        self != Door::Private
    }
}

/// The well-known socket.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    inode: (u64, u64),
    half_open: Vec<HalfOpen>,
    door: Door,
    _lock: File,
}

#[derive(Debug)]
struct HalfOpen {
    socket: OwnedFd,
    deadline: Instant,
}

/// Somebody who said what he wants.
#[derive(Debug)]
pub enum Incoming {
    /// A process that wants a lane.
    Client(Pending),
    /// A person's question.
    Question(Question),
}

impl Listener {
    /// Takes the socket at `path` for a private broker. A stale one is replaced; a live broker's is not ([`Error::Taken`]).
    pub fn bind(path: &Path) -> Result<Listener, Error> {
        Listener::open(path, Door::Private)
    }

    /// Takes the socket at `path`, as [`Listener::bind`] does.
    pub fn open(path: &Path, door: Door) -> Result<Listener, Error> {
        match door {
            Door::Private => path::check_folder(path, true)?,
            Door::Shared { .. } => path::check_shared_folder(path)?,
        }
        let lock = lock(path)?;
        // The lock says that no broker of this build lives. Somebody may have removed the lock file under a living one: ask.
        if client::answers(path) {
            return Err(Error::Taken(path.to_path_buf()));
        }
        if let Ok(facts) = fs::symlink_metadata(path)
            && !facts.file_type().is_socket()
        {
            return Err(Error::Folder {
                path: path.to_path_buf(),
                why: "is there and no socket; remove it, or set WEFT_SOCKET to another path".into(),
            });
        }
        raise_descriptor_limit();
        // Bound and made ready under another name, then renamed: nobody ever sees a socket that does not listen.
        let fresh = with_suffix(path, ".new");
        let _ = fs::remove_file(&fresh);
        let address = SocketAddrUnix::new(&fresh).map_err(|_| Error::Folder {
            path: path.to_path_buf(),
            why: "the path of the socket may have at most 103 bytes; set WEFT_SOCKET to a shorter one".into(),
        })?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(Error::system("making a socket"))?;
        bind(&socket, &address).map_err(Error::system("binding the broker's socket"))?;
        let mode = match door {
            Door::Private => 0o600,
            Door::Shared { group: Some(group) } => {
                std::os::unix::fs::chown(&fresh, None, Some(group))
                    .map_err(Error::io("giving the broker's socket to the group"))?;
                0o660
            }
            Door::Shared { group: None } => 0o666,
        };
        fs::set_permissions(&fresh, fs::Permissions::from_mode(mode))
            .map_err(Error::io("setting who may use the broker's socket"))?;
        listen(&socket, BACKLOG).map_err(Error::system("listening"))?;
        let facts = fs::symlink_metadata(&fresh).map_err(Error::io("looking at the broker's socket"))?;
        fs::rename(&fresh, path).map_err(Error::io("putting the broker's socket in place"))?;
        Ok(Listener {
            socket,
            path: path.to_path_buf(),
            inode: (facts.dev(), facts.ino()),
            half_open: Vec::new(),
            door,
            _lock: lock,
        })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the socket is still where it was put. A broker whose socket was removed can not be reached any more and should end.
    pub fn in_place(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|facts| (facts.dev(), facts.ino()) == self.inode)
    }

    /// The next one who said what he wants; `None` when the time is up. Who says nothing, or nonsense, or is another user, or speaks
    /// another version is answered and dropped here, and holds up nobody.
    pub fn accept(&mut self, within: Duration) -> Result<Option<Incoming>, Error> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(incoming) = self.heard() {
                return Ok(Some(incoming));
            }
            let now = Instant::now();
            self.half_open.retain(|one| one.deadline > now);
            let until = self
                .half_open
                .iter()
                .map(|one| one.deadline)
                .fold(deadline, Instant::min);
            let mut set: Vec<PollFd<'_>> = Vec::with_capacity(self.half_open.len() + 1);
            set.push(PollFd::new(&self.socket, PollFlags::IN));
            set.extend(self.half_open.iter().map(|one| PollFd::new(&one.socket, PollFlags::IN)));
            match poll(&mut set, Some(&fds::left(until))) {
                Ok(0) if Instant::now() >= deadline => return Ok(None),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::system("waiting for clients")(errno)),
            }
            self.take_new();
        }
    }

    fn take_new(&mut self) {
        loop {
            match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    if self.half_open.len() >= HALF_OPEN {
                        self.half_open.remove(0);
                    }
                    self.half_open.push(HalfOpen {
                        socket,
                        deadline: Instant::now() + HANDSHAKE,
                    });
                }
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

    /// Reads from every half-open connection until one has said what it wants.
    fn heard(&mut self) -> Option<Incoming> {
        let mut index = 0;
        while index < self.half_open.len() {
            let said = fds::take(&self.half_open[index].socket);
            if matches!(said, Ok(None)) {
                index += 1;
                continue;
            }
            let socket = self.half_open.remove(index).socket;
            match listen_to(socket, said, self.door) {
                Ok(incoming) => return Some(incoming),
                Err(Error::Gone) => {}
                Err(why) => log::warn!("a connection was not let in: {why}"),
            }
        }
        None
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.in_place() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

type Said = Result<Option<(Packet, Vec<OwnedFd>)>, Error>;

fn listen_to(socket: OwnedFd, said: Said, door: Door) -> Result<Incoming, Error> {
    let deadline = Instant::now();
    let refuse = |why: Refusal| {
        let _ = fds::send(&socket, &Packet::Refused(why.clone()), &[], deadline);
        Err(Error::Refused(why))
    };
    let peer = peer::peer(&socket)?;
    if !door.is_shared() && peer.uid != peer::own_uid() {
        return refuse(Refusal::User);
    }
    if door.is_shared() && peer.pid.is_none() {
        // It would have to be believed which process it is, and could so be taken for another's.
        return refuse(Refusal::Unseen);
    }
    match said {
        Err(Error::Refused(why)) => refuse(why),
        Err(why) => Err(why),
        Ok(Some((Packet::Hello(hello), mut brought))) => {
            let pidfd = peer::pidfd(peer.pid);
            Ok(Incoming::Client(Pending {
                hello,
                uid: peer.uid,
                pid: peer.pid,
                pidfd,
                socket,
                profile: brought.pop().filter(|_| door.is_shared()),
                door,
            }))
        }
        Ok(Some((Packet::Question(text), _))) => Ok(Incoming::Question(Question {
            text,
            asker: Asker {
                uid: peer.uid,
                pid: peer.pid,
            },
            socket,
        })),
        Ok(_) => Err(Error::Nonsense("it began with what only a broker says")),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(suffix);
    PathBuf::from(name)
}

/// Takes the lock that a broker holds as long as it lives. The file stays: removing it would let two brokers hold two locks.
fn lock(path: &Path) -> Result<File, Error> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(with_suffix(path, ".lock"))
        .map_err(Error::io("opening the lock beside the broker's socket"))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(Error::Taken(path.to_path_buf())),
        Err(errno) => Err(Error::system("locking the broker's socket")(errno)),
    }
}

/// A client takes about five descriptors; the usual soft limit of 1024 ends at some 200 clients.
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
