//! The broker's half of the transport: takes the socket, lets clients in side by side, hands out
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
//!             // A slow client holds up its own thread alone.
//!             std::thread::spawn(move || pending.welcome(&host, 1, Vec::new(), |_lane| {}));
//!         }
//!     }
//! }
//! # Ok::<(), weft_protocol::transport::Error>(())
//! ```
//!
//! A broker that serves many users ([`Door::Shared`](crate::base::options::Door::Shared)) trusts of a client only what the kernel says.
//! Clients of different users share nothing that could hurt one another:
//! * control messages come by the rendezvous socket, one packet each. No length is believed, and no
//!   thread waits for a second half;
//! * root of a container counts as a user of its own, nobody;
//! * each user has a [`UserPage`] with an epoch page and a doorbell. Clients of other
//!   users neither read nor write them;
//! * a profile comes in pieces by that socket. The broker opens no file for a client and takes no
//!   descriptor from one.
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
pub mod other_brokers;
mod process;
mod question;
mod receive;
#[cfg(test)]
mod tests;
mod user_page;
pub mod user_threads;

pub use account::{Accounts, thread_time};
pub use attach::{Attached, Life, PendingClient};
pub use callers::Connection;
pub use claim::{Claim, Who};
pub use contained::user_of;
pub use listener::{CONNECTIONS_OF_A_GUEST, Incoming, Listener};
pub use messages::{FromClient, Inbox, News, ToTheClient};
pub use question::{Asker, Question};
pub use user_page::{Host, UserPage};
