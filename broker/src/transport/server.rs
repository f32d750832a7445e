//! The broker's half: take the socket, let clients in one by one without letting any of them hold up the others, hand out lanes.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use weft_broker::transport::{path, server::{Host, Incoming, Listener}};
//! let host = std::sync::Arc::new(Host::make()?);
//! let mut listener = Listener::bind(&path::socket())?;
//! loop {
//!     match listener.accept(Duration::from_millis(100))? {
//!         None => {}                                                       // a chance to do something else
//!         Some(Incoming::Question(question)) => question.answer("fine")?,  // bounded
//!         Some(Incoming::Client(pending)) => {
//!             let host = host.clone();
//!             // A slow client holds up its own thread alone.
//!             std::thread::spawn(move || pending.welcome(&host, 1, Vec::new(), |_lane| {}));
//!         }
//!     }
//! }
//! # Ok::<(), weft_broker::transport::Error>(())
//! ```
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ipc_channel::TryRecvError;
use ipc_channel::ipc::{IpcOneShotServer, IpcReceiver, IpcReceiverSet, IpcSelectionResult, IpcSender};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::map::{SharedBoard, SharedLane};
use super::wire::{Packet, Up};
use super::{Error, HANDSHAKE, client, fds, path, peer};
use crate::protocol::Ns;
use crate::protocol::control::{Hello, Refusal, ToBroker, ToClient};
use crate::protocol::lane::Lane;

/// Connections that have not said yet what they want. More than that, and the oldest is dropped.
const HALF_OPEN: usize = 1024;

/// Connections the kernel may keep for us. 300 jobs started at once are an aim; the kernel itself caps this at its own limit (4096 by default).
const BACKLOG: i32 = 4096;

/// How long an answer for people may take to be read.
const ANSWER: Duration = Duration::from_secs(2);

/// Pause after an accept that failed for want of descriptors or memory.
const SHORTAGE: Duration = Duration::from_millis(10);

/// What all clients of a broker share.
#[derive(Debug)]
pub struct Host {
    /// The board.
    pub board: SharedBoard,
    /// The doorbell that clients ring: an eventfd, not blocking.
    pub bell: OwnedFd,
}

impl Host {
    /// Makes a board and a doorbell.
    pub fn make() -> Result<Host, Error> {
        let bell =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(Error::system("making the doorbell"))?;
        Ok(Host {
            board: SharedBoard::board()?,
            bell,
        })
    }

    /// Waits until a client rings or the time is up, and takes all rings. True if somebody rang.
    pub fn wait(&self, within: Duration) -> Result<bool, Error> {
        let rang = fds::ready(&self.bell, PollFlags::IN, Instant::now() + within)?;
        if rang {
            let mut count = [0u8; 8];
            // Another thread may have been faster; there is nothing to do about any error here.
            let _ = rustix::io::read(&self.bell, &mut count);
        }
        Ok(rang)
    }
}

/// The well-known socket.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    inode: (u64, u64),
    half_open: Vec<HalfOpen>,
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
    /// Takes the socket at `path`. A stale one is replaced; a live broker's is not ([`Error::Taken`]).
    pub fn bind(path: &Path) -> Result<Listener, Error> {
        path::check_folder(path, true)?;
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
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600))
            .map_err(Error::io("closing the broker's socket to others"))?;
        listen(&socket, BACKLOG).map_err(Error::system("listening"))?;
        let facts = fs::symlink_metadata(&fresh).map_err(Error::io("looking at the broker's socket"))?;
        fs::rename(&fresh, path).map_err(Error::io("putting the broker's socket in place"))?;
        Ok(Listener {
            socket,
            path: path.to_path_buf(),
            inode: (facts.dev(), facts.ino()),
            half_open: Vec::new(),
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
            match listen_to(socket, said) {
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

fn listen_to(socket: OwnedFd, said: Said) -> Result<Incoming, Error> {
    let deadline = Instant::now();
    let refuse = |why: Refusal| {
        let _ = fds::send(&socket, &Packet::Refused(why.clone()), &[], deadline);
        Err(Error::Refused(why))
    };
    let peer = peer::peer(&socket)?;
    if peer.uid != peer::own_uid() {
        return refuse(Refusal::User);
    }
    match said {
        Err(Error::Refused(why)) => refuse(why),
        Err(why) => Err(why),
        Ok(Some((Packet::Hello(hello), _))) => {
            let pidfd = peer::pidfd(peer.pid);
            Ok(Incoming::Client(Pending {
                hello,
                uid: peer.uid,
                pid: peer.pid,
                pidfd,
                socket,
            }))
        }
        Ok(Some((Packet::Question(text), _))) => Ok(Incoming::Question(Question { text, socket })),
        Ok(_) => Err(Error::Nonsense("it began with what only a broker says")),
    }
}

/// A question of the command line's.
#[derive(Debug)]
pub struct Question {
    /// What it asks.
    pub text: String,
    socket: OwnedFd,
}

impl Question {
    /// Answers. Takes at most two seconds where the asker does not read.
    pub fn answer(self, text: &str) -> Result<(), Error> {
        let deadline = Instant::now() + ANSWER;
        // A piece with its frame must fit a packet.
        let longest = super::wire::LONGEST - 64;
        let mut rest = text;
        loop {
            let end = (0..=rest.len().min(longest))
                .rev()
                .find(|end| rest.is_char_boundary(*end))
                .unwrap_or(0);
            let (piece, after) = rest.split_at(end);
            let last = after.is_empty();
            let packet = Packet::Answer {
                text: piece.to_string(),
                last,
            };
            fds::send(&self.socket, &packet, &[], deadline)?;
            if last {
                return Ok(());
            }
            rest = after;
        }
    }
}

/// A process that wants a lane. Its user was checked, nothing else.
#[derive(Debug)]
pub struct Pending {
    /// What it says of itself.
    pub hello: Hello,
    /// Its user, as the kernel says.
    pub uid: u32,
    /// Its process id, as the kernel says; `None` if it lives in a pid namespace that is not visible here.
    pub pid: Option<u32>,
    /// Readable when the process is gone.
    pub pidfd: Option<OwnedFd>,
    socket: OwnedFd,
}

/// A client that holds a lane.
#[derive(Debug)]
pub struct Attached {
    /// Its number.
    pub client: u64,
    /// What it said of itself.
    pub hello: Hello,
    /// Its process id, as the kernel says.
    pub pid: Option<u32>,
    /// Its lane.
    pub lane: SharedLane,
    /// Its messages.
    pub receiver: FromClient,
    /// The way to it.
    pub sender: ToTheClient,
    /// Whether it lives.
    pub life: Life,
}

/// The death notices of a client.
#[derive(Debug)]
pub struct Life {
    pidfd: Option<OwnedFd>,
    socket: OwnedFd,
}

impl Life {
    /// Whether the process is gone. Never waits. The pidfd tells even where a forked child keeps the socket open.
    pub fn ended(&self) -> bool {
        match &self.pidfd {
            Some(pidfd) => fds::hung_up(pidfd, PollFlags::IN),
            None => fds::hung_up(&self.socket, PollFlags::RDHUP),
        }
    }

    /// Whether the client closed its end of the socket, or ended.
    pub fn left(&self) -> bool {
        self.ended() || fds::hung_up(&self.socket, PollFlags::RDHUP)
    }

    /// The descriptors to wait for: readable, or hung up, when the client may be gone.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pidfd.iter().map(AsFd::as_fd).chain([self.socket.as_fd()])
    }
}

impl Pending {
    /// Says no.
    pub fn refuse(self, why: Refusal) {
        // Nobody is left to tell if this fails.
        let _ = fds::send(&self.socket, &Packet::Refused(why), &[], Instant::now() + HANDSHAKE);
    }

    /// Lets the client in: makes its lane, has `orders` put the first orders into it, and finishes the handshake. Takes at most about [`HANDSHAKE`] with an honest client,
    /// so it belongs on a thread of its own.
    pub fn welcome(
        self,
        host: &Host,
        client: u64,
        costs: Vec<(u64, Ns)>,
        orders: impl FnOnce(&Lane),
    ) -> Result<Attached, Error> {
        let deadline = Instant::now() + HANDSHAKE;
        let lane = SharedLane::lane()?;
        orders(&lane);
        let (server, name) = IpcOneShotServer::<Up>::new().map_err(Error::io("making a control channel"))?;
        let packet = Packet::Lane { channel: name.clone() };
        let descriptors = [lane.memory(), host.board.memory(), host.bell.as_fd()];
        fds::send(&self.socket, &packet, &descriptors, deadline)?;
        match fds::receive(&self.socket, "a client", HANDSHAKE, deadline)? {
            (Packet::Connected, _) => {}
            _ => return Err(Error::Nonsense("a client did not connect its channel")),
        }
        // accept() has no time limit. The client says that it connected, so its connection is the first in the queue; should it lie, ours is, and ends at once.
        let own = IpcSender::<Up>::connect(name).map_err(Error::io("reaching a control channel"))?;
        drop(own);
        let (receiver, first) = server.accept().map_err(|_| Error::Gone)?;
        let Up::Open(sender) = first else {
            return Err(Error::Nonsense("a client's channel began with another message"));
        };
        sender
            .send(ToClient::Welcome { client, costs })
            .map_err(|_| Error::Gone)?;
        Ok(Attached {
            client,
            hello: self.hello,
            pid: self.pid,
            lane,
            receiver: FromClient(receiver),
            sender: ToTheClient(sender),
            life: Life {
                pidfd: self.pidfd,
                socket: self.socket,
            },
        })
    }
}

/// The way to one client.
#[derive(Debug, Clone)]
pub struct ToTheClient(IpcSender<ToClient>);

impl ToTheClient {
    /// To nobody.
    #[cfg(test)]
    pub fn nobody() -> ToTheClient {
        ToTheClient(ipc_channel::ipc::channel().expect("a channel").0)
    }

    /// Tells the client something. May block while it does not read, so a few messages at most.
    pub fn send(&self, message: ToClient) -> Result<(), Error> {
        self.0.send(message).map_err(|_| Error::Gone)
    }
}

/// The messages of one client.
#[derive(Debug)]
pub struct FromClient(IpcReceiver<Up>);

impl FromClient {
    /// The next message; `None` when the time is up.
    pub fn next(&self, within: Duration) -> Result<Option<ToBroker>, Error> {
        match self.0.try_recv_timeout(within) {
            Ok(Up::Say(message)) => Ok(Some(message)),
            Ok(Up::Open(_)) => Err(Error::Nonsense("a client opened its channel twice")),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::IpcError(_)) => Err(Error::Gone),
        }
    }
}

/// What came from a client.
#[derive(Debug)]
pub enum News {
    /// A message.
    Said(ToBroker),
    /// Bytes that are no message. An honest client never sends any.
    Nonsense,
    /// Its end of the channel is closed.
    Gone,
}

/// The messages of many clients, waited for at once.
pub struct Inbox {
    set: IpcReceiverSet,
    clients: HashMap<u64, u64>,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Inbox")
            .field("clients", &self.clients)
            .finish_non_exhaustive()
    }
}

impl Inbox {
    /// An empty one.
    pub fn make() -> Result<Inbox, Error> {
        Ok(Inbox {
            set: IpcReceiverSet::new().map_err(Error::io("making an inbox"))?,
            clients: HashMap::new(),
        })
    }

    /// Takes in a client's messages under its number.
    pub fn add(&mut self, client: u64, receiver: FromClient) -> Result<(), Error> {
        let entry = self
            .set
            .add(receiver.0)
            .map_err(Error::io("adding a client to the inbox"))?;
        self.clients.insert(entry, client);
        Ok(())
    }

    /// What came, as (client, news). Empty when the time is up.
    pub fn wait(&mut self, within: Duration) -> Result<Vec<(u64, News)>, Error> {
        let results = match self.set.try_select_timeout(within) {
            Ok(results) => results,
            Err(ipc_channel::TrySelectError::Empty) => return Ok(Vec::new()),
            Err(ipc_channel::TrySelectError::IoError(why)) if why.kind() == std::io::ErrorKind::Interrupted => {
                return Ok(Vec::new());
            }
            Err(ipc_channel::TrySelectError::IoError(why)) => {
                return Err(Error::io("reading the clients' messages")(why));
            }
        };
        let mut news = Vec::with_capacity(results.len());
        for result in results {
            match result {
                IpcSelectionResult::MessageReceived(entry, message) => {
                    let Some(client) = self.clients.get(&entry) else {
                        continue;
                    };
                    let said = match message.to::<Up>() {
                        Ok(Up::Say(message)) => News::Said(message),
                        Ok(Up::Open(_)) | Err(_) => News::Nonsense,
                    };
                    news.push((*client, said));
                }
                IpcSelectionResult::ChannelClosed(entry) => {
                    if let Some(client) = self.clients.remove(&entry) {
                        news.push((client, News::Gone));
                    }
                }
            }
        }
        Ok(news)
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
