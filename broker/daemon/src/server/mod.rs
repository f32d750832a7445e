//! The broker's half: take the socket, let clients in one by one without letting any of them hold
//! up the others, hand out lanes.
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
//! A broker that serves many users ([`Door::Shared`]) trusts no more of a client than the kernel
//! says of it. What its clients could hurt one another by is not shared between users:
//! * control messages come by the socket of the rendezvous, a packet each: no length is believed
//!   and nobody waits for a second half;
//! * each user has a [`UserPage`] of his own, with a epoch page and a doorbell: its clients can
//!   write to both, and no one else's read them;
//! * a profile comes in pieces by that socket: no file is opened for anybody, and no descriptor is
//!   taken from anybody.
#![deny(unsafe_code)]

mod account;
mod attach;
mod callers;
mod claim;
#[doc(hidden)]
pub mod fuzzed;
mod listener;
mod messages;
mod process;
mod question;
mod receive;
#[cfg(test)]
mod tests;
mod user_page;

pub use account::{Accounts, thread_time};
pub use attach::{Attached, Life, Pending};
pub use callers::Connection;
pub use claim::{Claim, Who};
pub use listener::{CONNECTIONS_OF_A_GUEST, Door, Incoming, Listener};
pub use messages::{FromClient, Inbox, News, ToTheClient};
pub use question::{Asker, Question};
pub use user_page::{Host, UserPage};
