// SPDX-License-Identifier: MIT OR Apache-2.0
//! Control messages: to one client, from one client, and from many at once.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipc_channel::TryRecvError;
use ipc_channel::ipc::{IpcReceiver, IpcReceiverSet, IpcSelectionResult, IpcSender};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::callers::Connection;
use super::receive::take_plain;
use weft_protocol::control::{ToBroker, ToClient};
use weft_protocol::transport::wire::{Packet, UpMessage};
use weft_protocol::transport::{TimeLimit, TransportError, fds};

/// The channel to one client.
#[derive(Debug, Clone)]
pub enum ToTheClient {
    /// A private broker's channel.
    Ipc(IpcSender<ToClient>),
    /// A shared broker's rendezvous socket.
    Packets(Arc<Connection>),
}

impl ToTheClient {
    /// A channel without a receiver.
    #[doc(hidden)]
    pub fn nobody() -> ToTheClient {
        ToTheClient::Ipc(ipc_channel::ipc::channel().expect("a channel").0)
    }

    /// Sends a message.
    ///
    /// A private broker's channel may block while the client does not read, so only a few messages
    /// may be sent. A shared broker does not wait: a client that does not read misses the message.
    pub fn send(&self, message: ToClient) -> Result<(), TransportError> {
        self.send_within(message, Duration::ZERO)
    }

    /// Sends a message. A shared broker waits at most `within` for a client that does not read.
    pub fn send_within(&self, message: ToClient, within: Duration) -> Result<(), TransportError> {
        match self {
            ToTheClient::Ipc(way) => way.send(message).map_err(|_| TransportError::Gone),
            ToTheClient::Packets(socket) => fds::send(&**socket, &Packet::Tell(message), &[], TimeLimit::new(within)),
        }
    }
}

/// The messages of one client.
#[derive(Debug)]
pub struct FromClient(pub(super) MessageSource);

#[derive(Debug)]
pub(super) enum MessageSource {
    Ipc(IpcReceiver<UpMessage>),
    Packets(Arc<Connection>),
}

impl FromClient {
    /// The next message; `None` when the time is up.
    pub fn next(&self, within: Duration) -> Result<Option<ToBroker>, TransportError> {
        match &self.0 {
            MessageSource::Ipc(way) => match way.try_recv_timeout(within) {
                Ok(UpMessage::Say(message)) => Ok(Some(message)),
                Ok(UpMessage::Open(_)) => Err(TransportError::Nonsense("a client opened its channel twice")),
                Err(TryRecvError::Empty) => Ok(None),
                Err(TryRecvError::IpcError(_)) => Err(TransportError::Gone),
            },
            MessageSource::Packets(socket) => {
                let deadline = Instant::now() + within;
                fds::ready(&**socket, PollFlags::IN, deadline)?;
                match take_plain(&**socket, socket.passes())? {
                    Some(Packet::Say(message)) => Ok(Some(message)),
                    Some(_) => Err(TransportError::Nonsense("a client sent an invalid message")),
                    None => Ok(None),
                }
            }
        }
    }
}

/// News from a client.
#[derive(Debug)]
pub enum News {
    /// A message.
    Said(ToBroker),
    /// Malformed bytes, which an honest client never sends.
    Nonsense,
    /// The client closed its end.
    Gone,
}

/// The messages of many clients.
pub struct Inbox {
    set: IpcReceiverSet,
    clients: HashMap<u64, u64>,
    /// Sockets of a shared broker's clients. A broker's clients are all of one kind.
    guests: Vec<(u64, Arc<Connection>)>,
}

/// Messages of one guest read per round, so that a busy client does not keep others waiting.
const HEARD_AT_ONCE: usize = 16;

impl std::fmt::Debug for Inbox {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Inbox")
            .field("clients", &self.clients)
            .finish_non_exhaustive()
    }
}

impl Inbox {
    /// An empty inbox.
    pub fn make() -> Result<Inbox, TransportError> {
        Ok(Inbox {
            set: IpcReceiverSet::new().map_err(TransportError::io("making an inbox"))?,
            clients: HashMap::new(),
            guests: Vec::new(),
        })
    }

    /// Adds a client's messages under its number.
    pub fn add(&mut self, client: u64, receiver: FromClient) -> Result<(), TransportError> {
        match receiver.0 {
            MessageSource::Packets(socket) => self.guests.push((client, socket)),
            MessageSource::Ipc(way) => {
                let entry = self
                    .set
                    .add(way)
                    .map_err(TransportError::io("adding a client to the inbox"))?;
                self.clients.insert(entry, client);
            }
        }
        Ok(())
    }

    /// Stops reading from a client that ended another way.
    pub fn forget(&mut self, client: u64) {
        self.guests.retain(|(guest, _)| *guest != client);
    }

    /// Reads the guests' sockets.
    fn hear_guests(&mut self, within: Duration) -> Result<Vec<(u64, News)>, TransportError> {
        // Guests beyond their CPU share are read later.
        let heard: Vec<&(u64, Arc<Connection>)> = self
            .guests
            .iter()
            .filter(|(_, socket)| socket.accounts().waits(socket.uid()).is_none())
            .collect();
        let mut set: Vec<PollFd<'_>> = heard
            .iter()
            .map(|(_, socket)| PollFd::new(&**socket, PollFlags::IN))
            .collect();
        let left = Timespec::try_from(within).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        match poll(&mut set, Some(&left)) {
            Ok(0) | Err(Errno::INTR) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(errno) => return Err(TransportError::system("waiting for the clients' messages")(errno)),
        }
        let ready: Vec<bool> = set.iter().map(|entry| !entry.revents().is_empty()).collect();
        drop(set);
        let mut news = Vec::new();
        let mut over = Vec::new();
        for ((client, socket), _) in heard.into_iter().zip(ready).filter(|(_, ready)| *ready) {
            for _ in 0..HEARD_AT_ONCE {
                let take = || take_plain(&**socket, socket.passes());
                match socket.accounts().at_cost_of(socket.uid(), take) {
                    Ok(Some(Packet::Say(message))) => news.push((*client, News::Said(message))),
                    Ok(None) => break,
                    Err(TransportError::Gone) => {
                        news.push((*client, News::Gone));
                        over.push(*client);
                        break;
                    }
                    Ok(Some(_)) | Err(_) => {
                        news.push((*client, News::Nonsense));
                        over.push(*client);
                        break;
                    }
                }
            }
        }
        self.guests.retain(|(client, _)| !over.contains(client));
        Ok(news)
    }

    /// News of the clients, within at most `within`; empty when the time is up.
    pub fn wait(&mut self, within: Duration) -> Result<Vec<(u64, News)>, TransportError> {
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
                return Err(TransportError::io("reading the clients' messages")(why));
            }
        };
        let mut news = Vec::with_capacity(results.len());
        for result in results {
            match result {
                IpcSelectionResult::MessageReceived(entry, message) => {
                    let Some(client) = self.clients.get(&entry) else {
                        continue;
                    };
                    let said = match message.to::<UpMessage>() {
                        Ok(UpMessage::Say(message)) => News::Said(message),
                        Ok(UpMessage::Open(_)) | Err(_) => News::Nonsense,
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
