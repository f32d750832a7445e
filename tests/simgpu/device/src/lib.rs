//! The simulated GPU's device process, and the link by which clients use it.
//!
//! A client (the simulated libcuda) opens a [`Link`], makes contexts and streams, submits [`Op`]s and waits. All processes with the same socket share one device.
//!
//! Times are nanoseconds of the device ([`Link::now`]); with a dilation of 10 one of them lasts ten wall nanoseconds.

pub mod config;
mod durations;
pub mod link;
mod op;

pub use config::{Config, ConfigError};
pub use durations::Durations;
pub use link::{Link, LinkError, Options, WINDOW};
pub use op::{Ctx, Direction, Effects, Extra, Launch, NameId, NoEffects, Ns, Op, Seq, Status, Stream, Times};
