// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client's half: attaches to a broker, or asks it a question.
//!
//! ipc-channel's send may block, and raises SIGPIPE when the broker is gone. A job uses its
//! [`Channel`] only on the helper thread, which blocks all signals.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use ipc_channel::TryRecvError;
use ipc_channel::ipc::{self, IpcReceiver, IpcSender};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use weft_profiles::Store;

use super::wire::{Packet, UpMessage};
use super::{TimeLimit, TransportError, fds, path, peer, wire};
use crate::Ns;
use crate::control::{Hello, Refusal, ToBroker, ToClient};

/// Bytes kept of the command line.
const LONGEST_COMMAND: usize = 1024;

/// Bytes of a profile in one packet.
const PIECE: usize = wire::LONGEST - 64;

/// Pause before another connect to a full queue.
const FULL_QUEUE: Duration = Duration::from_millis(2);

/// Handles and costs of an attached client.
#[derive(Debug)]
pub struct Attachment {
    /// Its number at this broker.
    pub client: u64,
    /// Memory of its lane, for [`super::map::Mapping::put`].
    pub lane: OwnedFd,
    /// Memory of the broker's epoch page.
    pub epoch_page: OwnedFd,
    /// The broker's doorbell, an eventfd.
    pub bell: OwnedFd,
    /// Costs of its profile's kernels: (hash, ns).
    pub costs: Vec<(u64, Ns)>,
    /// The control channel.
    pub channel: Channel,
}

/// Control channel to a broker.
#[derive(Debug)]
pub struct Channel {
    way: ChannelKind,
    socket: OwnedFd,
    inode: u64,
}

#[derive(Debug)]
enum ChannelKind {
    /// A private broker's ipc-channel.
    Ipc {
        up: IpcSender<UpMessage>,
        down: IpcReceiver<ToClient>,
    },
    /// The rendezvous socket: a shared broker does not trust announced lengths.
    Packets,
}

/// Time after which a shared broker with an unread message counts as gone.
const UNREAD: Duration = Duration::from_secs(5);

impl Channel {
    /// Whether the socket is still weft's. A program that closes foreign descriptors may have
    /// reused its number. In that case weft must not send or close by number.
    pub fn intact(&self) -> bool {
        inode(&self.socket) == Some(self.inode)
    }

    /// Sends a message. May block while the broker does not read.
    pub fn send(&self, message: ToBroker) -> Result<(), TransportError> {
        match &self.way {
            ChannelKind::Ipc { up, .. } => up.send(UpMessage::Say(message)).map_err(|_| TransportError::Gone),
            ChannelKind::Packets => match fds::send(&self.socket, &Packet::Say(message), &[], TimeLimit::new(UNREAD)) {
                // Dropped, as it fits no packet: a graph of thousands of kernels is known only by
                // its hash.
                Err(TransportError::Nonsense(_)) => Ok(()),
                sent => sent,
            },
        }
    }

    /// Returns the next message, if any. Never waits.
    pub fn receive(&self) -> Result<Option<ToClient>, TransportError> {
        match &self.way {
            ChannelKind::Ipc { down, .. } => match down.try_recv() {
                Ok(message) => Ok(Some(message)),
                Err(TryRecvError::Empty) => Ok(None),
                Err(TryRecvError::IpcError(_)) => Err(TransportError::Gone),
            },
            ChannelKind::Packets => match fds::take(&self.socket)? {
                Some((Packet::Tell(message), _)) => Ok(Some(message)),
                Some(_) => Err(TransportError::Nonsense("the broker sent an invalid message")),
                None => Ok(None),
            },
        }
    }

    /// The broker's process; `None`: its pid namespace is not visible from here.
    pub fn broker(&self) -> Option<u32> {
        peer::peer(&self.socket).ok()?.pid
    }

    /// Whether the broker is gone. Never waits.
    pub fn lost(&self) -> bool {
        fds::hung_up(&self.socket, PollFlags::RDHUP)
    }
}

fn inode(socket: &OwnedFd) -> Option<u64> {
    rustix::fs::fstat(socket).ok().map(|facts| facts.st_ino)
}

/// Connects to the broker at `path`. Its folder must be this user's or root's, or a gift of root's.
#[doc(hidden)]
pub fn reach(path: &Path, limit: TimeLimit) -> Result<OwnedFd, TransportError> {
    let trusted = path::trusted(path)?;
    let refused = |why: &str| TransportError::Folder {
        path: path.to_path_buf(),
        why: why.to_string(),
    };
    let address = SocketAddrUnix::new(path).map_err(|_| {
        refused("the path of a broker's socket has at most 103 bytes; set WEFT_SOCKET to a shorter one")
    })?;
    let is_file = || std::fs::metadata(path).is_ok_and(|facts| !facts.file_type().is_socket());
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(TransportError::system("making a socket"))?;
    loop {
        match connect(&socket, &address) {
            Ok(()) => break,
            // The queue is full: many clients start at once.
            Err(Errno::AGAIN) if Instant::now() < limit.deadline() => thread::sleep(FULL_QUEUE),
            Err(Errno::AGAIN) => return Err(limit.late("the broker")),
            Err(Errno::INTR) => {}
            Err(Errno::CONNREFUSED | Errno::NOTSOCK) if is_file() => {
                return Err(refused(
                    "is not a socket; set WEFT_SOCKET to a broker's socket, or to a free path",
                ));
            }
            Err(Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR) => {
                return Err(TransportError::NoBroker(path.to_path_buf()));
            }
            Err(Errno::ACCESS) if trusted == peer::own_uid() => {
                return Err(refused(
                    "permission denied: its mode forbids it to its owner; chmod 600 it",
                ));
            }
            Err(Errno::ACCESS) => {
                let whose = match path::is_shared(path) {
                    true => "the shared broker is not open to this user (its --group)".to_string(),
                    false => format!("it is the private broker of user {trusted}"),
                };
                return Err(refused(&format!(
                    "permission denied: {whose}; set WEFT_SOCKET to a path of your own"
                )));
            }
            Err(Errno::PROTOTYPE | Errno::NOTSOCK) => {
                return Err(refused(
                    "is another program's socket; set WEFT_SOCKET to a broker's socket, or to a free path",
                ));
            }
            Err(errno) => return Err(TransportError::system("connecting to the broker")(errno)),
        }
    }
    let peer = peer::peer(&socket)?;
    if peer.uid != trusted {
        return Err(TransportError::OtherUser {
            path: path.to_path_buf(),
            uid: peer.uid,
        });
    }
    Ok(socket)
}

/// Swaps an error's versions to the client's view.
fn from_broker(error: TransportError) -> TransportError {
    match error {
        // `fds` calls the reader "broker" and the sender "client".
        TransportError::Refused(Refusal::Version { broker, client }) => TransportError::Refused(Refusal::Version {
            broker: client,
            client: broker,
        }),
        other => other,
    }
}

/// Attaches to the broker at `path`, within about `within`.
pub fn attach(path: &Path, mut hello: Hello, within: Duration) -> Result<Attachment, TransportError> {
    let limit = TimeLimit::new(within);
    if hello.command.len() > LONGEST_COMMAND {
        let end = (0..=LONGEST_COMMAND)
            .rev()
            .find(|end| hello.command.is_char_boundary(*end))
            .unwrap_or(0);
        hello.command.truncate(end);
    }
    // Keeps weft's descriptors above 2 meanwhile. A program that closed its standard descriptors
    // may write to those numbers.
    let _standard = fds::standard_taken();
    let socket = reach(path, limit)?;
    fds::enough(&socket)?;
    // A shared broker opens no client's file.
    let profile = match (&hello.profile, hello.profiling, path::is_shared(path)) {
        (Some(called), false, true) => Some(carried(called).unwrap_or_default()),
        _ => None,
    };
    fds::send(&socket, &Packet::Hello(hello), &[], limit)?;
    if let Some(bytes) = profile {
        match bring(&socket, &bytes, limit) {
            // The broker's last packet gives the reason.
            Ok(()) | Err(TransportError::Gone) => {}
            Err(why) => return Err(why),
        }
    }
    let (packet, descriptors) = fds::receive(&socket, "the broker", limit).map_err(from_broker)?;
    let name = match packet {
        Packet::Lane { channel } => channel,
        Packet::Refused(why) => return Err(TransportError::Refused(why)),
        _ => {
            return Err(TransportError::Nonsense(
                "the broker answered a hello with an unexpected message",
            ));
        }
    };
    let [lane, epoch_page, bell]: [OwnedFd; 3] = descriptors
        .try_into()
        .map_err(|_| TransportError::Nonsense("the broker sent a wrong number of descriptors"))?;
    let (client, costs, way) = if name.is_empty() {
        let (client, costs) = welcomed(&socket, limit)?;
        (client, costs, ChannelKind::Packets)
    } else {
        let up = IpcSender::<UpMessage>::connect(name).map_err(TransportError::io("connecting the control channel"))?;
        let (way_down, down) = ipc::channel::<ToClient>().map_err(TransportError::io("making the control channel"))?;
        up.send(UpMessage::Open(way_down)).map_err(|_| TransportError::Gone)?;
        fds::send(&socket, &Packet::Connected, &[], limit)?;
        let left = limit.deadline().saturating_duration_since(Instant::now());
        match down.try_recv_timeout(left) {
            Ok(ToClient::Welcome { client, costs }) => (client, costs, ChannelKind::Ipc { up, down }),
            Ok(ToClient::Refused(why)) => return Err(TransportError::Refused(why)),
            Ok(
                ToClient::Warning(_)
                | ToClient::Said(_)
                | ToClient::ForgetCosts
                | ToClient::Costs(_)
                | ToClient::MayTake(_)
                | ToClient::Outcome(_)
                | ToClient::WorkingSets(_),
            ) => {
                return Err(TransportError::Nonsense(
                    "the broker sent an unexpected message before its welcome",
                ));
            }
            Err(TryRecvError::Empty) => return Err(limit.late("the broker")),
            Err(TryRecvError::IpcError(_)) => return Err(TransportError::Gone),
        }
    };
    Ok(Attachment {
        client,
        lane,
        epoch_page,
        bell,
        costs,
        channel: Channel {
            way,
            inode: inode(&socket).unwrap_or_default(),
            socket,
        },
    })
}

fn welcomed(socket: &OwnedFd, limit: TimeLimit) -> Result<(u64, Vec<(u64, Ns)>), TransportError> {
    let mut all = Vec::new();
    loop {
        match fds::receive(socket, "the broker", limit)?.0 {
            Packet::Welcome { client, costs, last } => {
                all.extend(costs);
                if last {
                    return Ok((client, all));
                }
            }
            Packet::Refused(why) => return Err(TransportError::Refused(why)),
            _ => {
                return Err(TransportError::Nonsense(
                    "the broker sent an unexpected message before its welcome",
                ));
            }
        }
    }
}

fn bring(socket: &OwnedFd, profile: &[u8], limit: TimeLimit) -> Result<(), TransportError> {
    let mut rest = profile;
    loop {
        let (piece, after) = rest.split_at(rest.len().min(PIECE));
        let packet = Packet::Profile {
            bytes: piece.to_vec(),
            last: after.is_empty(),
        };
        fds::send(socket, &packet, &[], limit)?;
        if after.is_empty() {
            return Ok(());
        }
        rest = after;
    }
}

/// Reads the profile that the job names; `None` on failure.
fn carried(called: &str) -> Option<Vec<u8>> {
    let (store, name) = Store::locate(called).ok()?;
    let file = File::open(store.path(&name).ok()?).ok()?;
    let mut bytes = Vec::new();
    // One byte more shows that it is too large.
    let most = super::MAX_PROFILE_BYTES as u64 + 1;
    file.take(most).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Asks the broker at `path` a person's question, for a whole answer.
pub fn ask(path: &Path, question: &str, within: Duration) -> Result<String, TransportError> {
    let limit = TimeLimit::new(within);
    let socket = reach(path, limit)?;
    // It was killed meanwhile.
    let gone = |error: TransportError| match error {
        TransportError::Gone => TransportError::NoBroker(path.to_path_buf()),
        other => other,
    };
    fds::send(&socket, &Packet::Question(question.to_string()), &[], limit).map_err(gone)?;
    let mut answer = String::new();
    loop {
        let (packet, _) = fds::receive(&socket, "the broker", limit)
            .map_err(from_broker)
            .map_err(gone)?;
        match packet {
            Packet::Answer { text, last } => {
                answer.push_str(&text);
                if last {
                    return Ok(answer);
                }
            }
            Packet::Refused(why) => return Err(TransportError::Refused(why)),
            _ => {
                return Err(TransportError::Nonsense(
                    "the broker answered a question with an unexpected message",
                ));
            }
        }
    }
}

/// Whether a broker accepts connections at `path`.
pub fn answers(path: &Path) -> bool {
    reach(path, TimeLimit::new(super::HANDSHAKE)).is_ok()
}

#[cfg(test)]
mod tests {
    use rustix::net::{bind, listen, socketpair};

    use super::*;

    /// Far from [`super::super::HANDSHAKE`], so that an error with the wrong limit shows.
    const WITHIN: Duration = Duration::from_millis(30);

    #[test]
    fn who_is_late_is_told_with_the_limit_that_held() {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("broker.sock");
        let deaf = socket_with(AddressFamily::UNIX, kind, flags, None).expect("a socket");
        bind(&deaf, &SocketAddrUnix::new(&path).expect("short")).expect("bound");
        listen(&deaf, 0).expect("listens");
        // No broker accepts: the queue is full after a few connections.
        let mut queue = Vec::new();
        let why = loop {
            assert!(queue.len() < 100, "the queue has no end");
            match reach(&path, TimeLimit::new(WITHIN)) {
                Ok(socket) => queue.push(socket),
                Err(why) => break why,
            }
        };
        assert_eq!(why.to_string(), "the broker did not answer within 30ms");

        let (socket, _silent) = socketpair(AddressFamily::UNIX, kind, flags, None).expect("a pair");
        let packet = Packet::Question("x".repeat(10_000));
        let why = loop {
            if let Err(why) = fds::send(&socket, &packet, &[], TimeLimit::new(WITHIN)) {
                break why;
            }
        };
        assert_eq!(why.to_string(), "the other side did not answer within 30ms");
        let why = fds::receive(&socket, "the broker", TimeLimit::new(WITHIN)).expect_err("silent");
        assert_eq!(why.to_string(), "the broker did not answer within 30ms");
        let left = TimeLimit::new(Duration::from_nanos(4_999_987_654)).late("the broker");
        assert_eq!(left.to_string(), "the broker did not answer within 5s");
    }
}
