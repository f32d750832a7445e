// SPDX-License-Identifier: MIT OR Apache-2.0
//! The broker's half of the transport: takes the socket, lets clients in concurrently, hands out
//! lanes.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use weft_daemon::server::{Host, Incoming, Listener};
//! # use weft_protocol::transport::path;
//! let host = std::sync::Arc::new(Host::make()?);
//! let mut listener = Listener::bind(&path::socket())?;
//! loop {
//!     match listener.accept(Duration::from_millis(100))? {
//!         None => {}                                                       // a chance to do something else
//!         Some(Incoming::Question(question)) => question.answer("fine")?,  // bounded
//!         Some(Incoming::Client(pending)) => {
//!             let host = host.clone();
//!             // A slow client delays only its own thread.
//!             std::thread::spawn(move || pending.welcome(&host, 1, Vec::new(), |_lane| {}));
//!         }
//!     }
//! }
//! # Ok::<(), weft_protocol::transport::TransportError>(())
//! ```
//!
//! A broker that serves many users ([`Door::Shared`](crate::base::options::Door::Shared)) trusts
//! only what the kernel reports about a client. Clients of different users share nothing with which
//! one could harm another:
//! * control messages arrive on the rendezvous socket, one packet each. No length field is trusted,
//!   and no thread waits for the rest of a message;
//! * root of a container counts as a separate user (`nobody`);
//! * each user has a [`UserPage`] with an epoch page and a doorbell. Clients of other
//!   users neither read nor write them;
//! * a profile arrives in pieces on the same socket. The broker opens no file for a client and
//!   takes no descriptor from one.
#![deny(unsafe_code)]

mod account;
mod attach;
mod callers;
mod claim;
mod contained;
#[doc(hidden)]
pub mod fuzzed;
mod inherited;
mod listener;
mod messages;
pub(crate) mod other_brokers;
mod process;
mod question;
mod receive;
#[cfg(test)]
mod tests;
mod user_page;
pub(crate) mod user_threads;

pub use attach::{Attached, PendingClient};
pub use listener::{Incoming, Listener};
pub use user_page::Host;

pub(crate) use account::{Accounts, thread_time};
pub(crate) use attach::Life;
pub(crate) use claim::{Claim, Claimant};
pub(crate) use contained::user_of;
pub(crate) use messages::{FromClient, Inbox, News, ToTheClient};
pub(crate) use question::{Asker, Question};
pub(crate) use user_page::UserPage;
