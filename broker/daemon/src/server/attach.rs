// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attaching a client: lane, handshake, death notices.
//!
//! A handshake is bounded in time; each belongs on its own thread.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ipc_channel::ipc::{IpcOneShotServer, IpcSender};
use rustix::event::PollFlags;

use super::callers::Connection;
use super::messages::MessageSource;
use super::receive::receive_plain;
use super::{FromClient, Host, ToTheClient, UserPage};
use crate::base::options::Door;
use weft_protocol::Ns;
use weft_protocol::control::{Hello, Refusal, ToClient};
use weft_protocol::lane::Lane;
use weft_protocol::transport::map::SharedLane;
use weft_protocol::transport::wire::{LONGEST, Packet, UpMessage};
use weft_protocol::transport::{HANDSHAKE, MAX_PROFILE_BYTES, TimeLimit, TransportError, fds};

/// Longest wait for a client's profile, as long as a client waits for its broker: 70 packets, each
/// of which needs both processes to run, take seconds on a busy machine. Only the user's own
/// clients wait meanwhile.
const PROFILE_WITHIN: Duration = Duration::from_secs(5);

/// A process that wants a lane. Only its user was checked.
#[derive(Debug)]
pub struct PendingClient {
    /// The process's first message.
    pub hello: Hello,
    /// User id from the kernel.
    pub uid: u32,
    /// Process id from the kernel; `None`: its pid namespace is not visible here.
    pub pid: Option<u32>,
    /// Readable once the process has ended.
    pub pidfd: Option<Arc<OwnedFd>>,
    pub(super) socket: Connection,
    pub(super) door: Door,
}

/// A client with a lane.
#[derive(Debug)]
pub struct Attached {
    /// Client number.
    pub client: u64,
    /// The client's first message.
    pub hello: Hello,
    /// Process id from the kernel.
    pub pid: Option<u32>,
    /// User id from the kernel.
    pub uid: u32,
    /// The user's page; `None` in a private broker.
    pub user_page: Option<Arc<UserPage>>,
    /// The client's lane.
    pub lane: SharedLane,
    /// Messages from the client.
    pub receiver: FromClient,
    /// Messages to the client.
    pub sender: ToTheClient,
    /// Death notices of the client.
    pub life: Life,
}

/// The death notices of a client.
#[derive(Debug)]
pub struct Life {
    pidfd: Option<Arc<OwnedFd>>,
    socket: Arc<Connection>,
}

impl Life {
    /// Descriptor of the client's process; `None`: the system has no such descriptors.
    pub(crate) fn pidfd(&self) -> Option<Arc<OwnedFd>> {
        self.pidfd.clone()
    }

    /// Whether the process has ended. Never waits. The pidfd shows it even if a forked child holds
    /// the socket.
    pub(crate) fn ended(&self) -> bool {
        match &self.pidfd {
            Some(pidfd) => fds::hung_up(pidfd, PollFlags::IN),
            None => fds::hung_up(&self.socket, PollFlags::RDHUP),
        }
    }

    /// Whether the client closed its end of the socket, or ended.
    pub(crate) fn left(&self) -> bool {
        self.ended() || fds::hung_up(&self.socket, PollFlags::RDHUP)
    }

    /// Descriptors that become readable or hang up when the client may have ended.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pidfd.iter().map(AsFd::as_fd).chain([(*self.socket).as_fd()])
    }
}

impl PendingClient {
    /// The profile's bytes, or the reason why there are none. For clients of a shared broker that
    /// name a profile and take no samples.
    ///
    /// At most [`MAX_PROFILE_BYTES`] bytes in [`PROFILE_WITHIN`]. After an error the connection is
    /// unusable.
    pub fn profile(&self) -> Result<Result<Vec<u8>, &'static str>, TransportError> {
        let limit = TimeLimit::new(PROFILE_WITHIN);
        let mut all = Vec::new();
        let mut fits = true;
        loop {
            let packet = receive_plain(&self.socket, self.socket.passes(), "a client", limit)?;
            let Packet::Profile { bytes, last } = packet else {
                return Err(TransportError::Nonsense(
                    "a client sent another message instead of its profile",
                ));
            };
            fits &= all.len() + bytes.len() <= MAX_PROFILE_BYTES;
            if fits {
                all.extend_from_slice(&bytes);
            }
            match (last, fits, all.is_empty()) {
                (false, ..) => {}
                (true, false, _) => {
                    return Ok(Err(
                        "it is larger than 4 MiB, the limit of a shared broker: record a shorter run",
                    ));
                }
                (true, true, true) => {
                    return Ok(Err(
                        "the job found no such file, or may not read it: name one that it can read (WEFT_PROFILE=/FOLDER/NAME)",
                    ));
                }
                (true, true, false) => return Ok(Ok(all)),
            }
        }
    }

    /// Refuses the client.
    pub fn refuse(self, why: Refusal) {
        // This fails only if the client has ended.
        let _ = fds::send(&self.socket, &Packet::Refused(why), &[], TimeLimit::new(HANDSHAKE));
    }

    /// Makes the lane, calls `orders` to fill it, and finishes the handshake. This takes about
    /// [`HANDSHAKE`] at most.
    pub fn welcome(
        self,
        host: &Host,
        client: u64,
        costs: Vec<(u64, Ns)>,
        orders: impl FnOnce(&Lane),
    ) -> Result<Attached, TransportError> {
        let limit = TimeLimit::new(HANDSHAKE);
        let lane = SharedLane::lane()?;
        orders(&lane);
        if self.door.is_shared() {
            return self.welcome_guest(host, client, &costs, lane, limit);
        }
        let (server, name) =
            IpcOneShotServer::<UpMessage>::new().map_err(TransportError::io("making a control channel"))?;
        let packet = Packet::Lane { channel: name.clone() };
        let descriptors = [lane.memory(), host.epoch_page.memory(), host.bell.as_fd()];
        fds::send(&self.socket, &packet, &descriptors, limit)?;
        match receive_plain(&self.socket, self.socket.passes(), "a client", limit)? {
            Packet::Connected => {}
            _ => return Err(TransportError::Nonsense("a client did not connect its channel")),
        }
        // `accept()` has no time limit. If the client did connect, its connection is first in the
        // queue; else ours is first and ends at once.
        let own = IpcSender::<UpMessage>::connect(name).map_err(TransportError::io("reaching a control channel"))?;
        drop(own);
        let (receiver, first) = server.accept().map_err(|_| TransportError::Gone)?;
        let UpMessage::Open(sender) = first else {
            return Err(TransportError::Nonsense(
                "a client's channel began with an unexpected message",
            ));
        };
        sender
            .send(ToClient::Welcome { client, costs })
            .map_err(|_| TransportError::Gone)?;
        Ok(Attached {
            client,
            hello: self.hello,
            pid: self.pid,
            uid: self.uid,
            user_page: None,
            lane,
            receiver: FromClient(MessageSource::Ipc(receiver)),
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
        limit: TimeLimit,
    ) -> Result<Attached, TransportError> {
        /// A cost takes 20 bytes at most.
        const COSTS_BYTES: usize = LONGEST / 20 - 16;
        let user_page = host
            .user_page_of(self.uid)?
            .ok_or(TransportError::Nonsense("this broker serves no other users"))?;
        let packet = Packet::Lane { channel: String::new() };
        let descriptors = [lane.memory(), user_page.epoch_page.memory(), user_page.bell.as_fd()];
        fds::send(&self.socket, &packet, &descriptors, limit)?;
        let mut rest = costs;
        loop {
            let (piece, after) = rest.split_at(rest.len().min(COSTS_BYTES));
            let last = after.is_empty();
            let costs = piece.to_vec();
            fds::send(&self.socket, &Packet::Welcome { client, costs, last }, &[], limit)?;
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
            user_page: Some(user_page),
            lane,
            receiver: FromClient(MessageSource::Packets(Arc::clone(&socket))),
            sender: ToTheClient::Packets(Arc::clone(&socket)),
            life: Life {
                pidfd: self.pidfd,
                socket,
            },
        })
    }
}
