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
//!
//! A broker that serves many users ([`Door::Shared`]) trusts no more of a client than the kernel says of it. What its clients could hurt one another by is not shared between users:
//! * control messages come by the socket of the rendezvous, a packet each: no length is believed and nobody waits for a second half;
//! * each user has a [`House`] of his own, with a board and a doorbell: its clients can write to both, and no one else's read them;
//! * a profile comes as sealed bytes: no file is opened for anybody.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use ipc_channel::TryRecvError;
use ipc_channel::ipc::{IpcOneShotServer, IpcReceiver, IpcReceiverSet, IpcSelectionResult, IpcSender};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::map::{SharedBoard, SharedLane};
use super::wire::{Packet, Up};
use super::{Error, HANDSHAKE, client, fds, path, peer, sealed};
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

/// Who asks, as the kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asker {
    /// The user.
    pub uid: u32,
    /// The process; `None` if it lives in a pid namespace that is not visible here.
    pub pid: Option<u32>,
}

impl Asker {
    /// Whether it may do what the broker's owner may: its own user, or root.
    pub fn is_owner(self) -> bool {
        const ROOT: u32 = 0;
        self.uid == ROOT || self.uid == peer::own_uid()
    }
}

/// A question of the command line's.
#[derive(Debug)]
pub struct Question {
    /// What it asks.
    pub text: String,
    /// Who.
    pub asker: Asker,
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

/// A process that wants a lane. Its user was looked at, nothing else.
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
    profile: Option<OwnedFd>,
    door: Door,
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
    /// Its user, as the kernel says.
    pub uid: u32,
    /// Its user's house; `None` in a private broker.
    pub house: Option<Arc<House>>,
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
    socket: Arc<OwnedFd>,
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
        self.pidfd.iter().map(AsFd::as_fd).chain([(*self.socket).as_fd()])
    }
}

impl Pending {
    /// The bytes of the profile that it brought to a shared broker; `None` if it brought none.
    pub fn profile(&self) -> Option<Result<Vec<u8>, Error>> {
        self.profile.as_ref().map(sealed::read)
    }

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
        if self.door.is_shared() {
            return self.welcome_guest(host, client, &costs, lane, deadline);
        }
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
            uid: self.uid,
            house: None,
            lane,
            receiver: FromClient(Source::Ipc(receiver)),
            sender: ToTheClient::Ipc(sender),
            life: Life {
                pidfd: self.pidfd,
                socket: Arc::new(self.socket),
            },
        })
    }

    fn welcome_guest(
        self,
        host: &Host,
        client: u64,
        costs: &[(u64, Ns)],
        lane: SharedLane,
        deadline: Instant,
    ) -> Result<Attached, Error> {
        /// A cost takes 20 bytes at most.
        const COSTS: usize = super::wire::LONGEST / 20 - 16;
        let house = host
            .house_of(self.uid)?
            .ok_or(Error::Nonsense("this broker has no guests"))?;
        let packet = Packet::Lane { channel: String::new() };
        let descriptors = [lane.memory(), house.board.memory(), house.bell.as_fd()];
        fds::send(&self.socket, &packet, &descriptors, deadline)?;
        let mut rest = costs;
        loop {
            let (piece, after) = rest.split_at(rest.len().min(COSTS));
            let last = after.is_empty();
            let costs = piece.to_vec();
            fds::send(&self.socket, &Packet::Welcome { client, costs, last }, &[], deadline)?;
            if last {
                break;
            }
            rest = after;
        }
        let socket = Arc::new(self.socket);
        Ok(Attached {
            client,
            hello: self.hello,
            pid: self.pid,
            uid: self.uid,
            house: Some(house),
            lane,
            receiver: FromClient(Source::Packets(Arc::clone(&socket))),
            sender: ToTheClient::Packets(Arc::clone(&socket)),
            life: Life {
                pidfd: self.pidfd,
                socket,
            },
        })
    }
}

/// The way to one client.
#[derive(Debug, Clone)]
pub enum ToTheClient {
    /// A private broker's channel.
    Ipc(IpcSender<ToClient>),
    /// A shared broker's: the socket of the rendezvous.
    Packets(Arc<OwnedFd>),
}

impl ToTheClient {
    /// To nobody.
    #[cfg(test)]
    pub fn nobody() -> ToTheClient {
        ToTheClient::Ipc(ipc_channel::ipc::channel().expect("a channel").0)
    }

    /// Tells the client something. Of a private broker it may block while the client does not read, so a few messages at most; a shared broker does not wait, and a client that does not
    /// read misses it.
    pub fn send(&self, message: ToClient) -> Result<(), Error> {
        self.send_within(message, Duration::ZERO)
    }

    /// The same; a shared broker waits so long for a client that does not read.
    pub fn send_within(&self, message: ToClient, within: Duration) -> Result<(), Error> {
        match self {
            ToTheClient::Ipc(way) => way.send(message).map_err(|_| Error::Gone),
            ToTheClient::Packets(socket) => {
                let deadline = Instant::now() + within;
                fds::send(&**socket, &Packet::Tell(message), &[], deadline)
            }
        }
    }
}

/// The messages of one client.
#[derive(Debug)]
pub struct FromClient(Source);

#[derive(Debug)]
enum Source {
    Ipc(IpcReceiver<Up>),
    Packets(Arc<OwnedFd>),
}

impl FromClient {
    /// The next message; `None` when the time is up.
    pub fn next(&self, within: Duration) -> Result<Option<ToBroker>, Error> {
        match &self.0 {
            Source::Ipc(way) => match way.try_recv_timeout(within) {
                Ok(Up::Say(message)) => Ok(Some(message)),
                Ok(Up::Open(_)) => Err(Error::Nonsense("a client opened its channel twice")),
                Err(TryRecvError::Empty) => Ok(None),
                Err(TryRecvError::IpcError(_)) => Err(Error::Gone),
            },
            Source::Packets(socket) => {
                let deadline = Instant::now() + within;
                fds::ready(&**socket, PollFlags::IN, deadline)?;
                match fds::take(&**socket)? {
                    Some((Packet::Say(message), _)) => Ok(Some(message)),
                    Some(_) => Err(Error::Nonsense("a client sent what is no message")),
                    None => Ok(None),
                }
            }
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
    /// Those of a shared broker, whose messages come by their sockets. A broker has clients of one kind.
    guests: Vec<(u64, Arc<OwnedFd>)>,
}

/// Messages of one guest that are heard in a look, so that nobody who never stops talking keeps the others waiting.
const HEARD_AT_ONCE: usize = 16;

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
            guests: Vec::new(),
        })
    }

    /// Takes in a client's messages under its number.
    pub fn add(&mut self, client: u64, receiver: FromClient) -> Result<(), Error> {
        match receiver.0 {
            Source::Packets(socket) => self.guests.push((client, socket)),
            Source::Ipc(way) => {
                let entry = self.set.add(way).map_err(Error::io("adding a client to the inbox"))?;
                self.clients.insert(entry, client);
            }
        }
        Ok(())
    }

    /// A client ended in another way: nothing of it is heard any more.
    pub fn forget(&mut self, client: u64) {
        self.guests.retain(|(guest, _)| *guest != client);
    }

    /// What came by the guests' sockets.
    fn hear_guests(&mut self, within: Duration) -> Result<Vec<(u64, News)>, Error> {
        let mut set: Vec<PollFd<'_>> = self
            .guests
            .iter()
            .map(|(_, socket)| PollFd::new(&**socket, PollFlags::IN))
            .collect();
        let left = Timespec::try_from(within).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        match poll(&mut set, Some(&left)) {
            Ok(0) | Err(Errno::INTR) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(errno) => return Err(Error::system("waiting for the clients' messages")(errno)),
        }
        let ready: Vec<bool> = set.iter().map(|entry| !entry.revents().is_empty()).collect();
        drop(set);
        let mut news = Vec::new();
        let mut over = Vec::new();
        for ((client, socket), _) in self.guests.iter().zip(ready).filter(|(_, ready)| *ready) {
            for _ in 0..HEARD_AT_ONCE {
                match fds::take(&**socket) {
                    Ok(Some((Packet::Say(message), _))) => news.push((*client, News::Said(message))),
                    Ok(None) => break,
                    Err(Error::Gone) => {
                        news.push((*client, News::Gone));
                        over.push(*client);
                        break;
                    }
                    Ok(Some(_)) | Err(_) => {
                        news.push((*client, News::Nonsense));
                        break;
                    }
                }
            }
        }
        self.guests.retain(|(client, _)| !over.contains(client));
        Ok(news)
    }

    /// What came, as (client, news). Empty when the time is up.
    pub fn wait(&mut self, within: Duration) -> Result<Vec<(u64, News)>, Error> {
        if !self.guests.is_empty() {
            return self.hear_guests(within);
        }
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
