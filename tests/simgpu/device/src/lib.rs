// SPDX-License-Identifier: MIT OR Apache-2.0
//! The simulated GPU's device process, and the link by which clients use it.
//!
//! A client (the simulated libcuda) opens a [`Link`], makes contexts and streams, submits [`Op`]s
//! and waits. All processes of one socket share one device. The first client starts it; it ends
//! when the last has left.
//!
//! Times are device nanoseconds ([`Link::now`]); with a dilation of 10 each lasts ten wall
//! nanoseconds.
//!
//! * [`link`]: the client's end. [`server`]: the device process. `shared`: the memory between them.
//!   `wire`: the socket's messages.
//! * [`config`], [`Durations`]: the device's figures and kernel times. [`machine`]: several
//!   devices. [`model`]: the GPU that is imitated.

use std::io::{Read as _, Seek as _};

pub mod config;
mod durations;
pub mod link;
pub mod lock;
pub mod machine;
pub mod model;
mod op;
pub mod server;
mod shared;
mod wire;

pub use config::{Config, ConfigError};
pub use durations::Durations;
pub use link::{Link, LinkError, Options, STREAM_DEPTH, WINDOW, default_socket};
pub use op::{
    Advice, Ctx, Direction, Effects, Extra, KernelLaunch, LinkStream, NameId, NoEffects, Ns, Op, Seq, Status, Times,
    TouchedAddresses,
};

/// State of the device that serves `socket`, as JSON text. It and the log hold everything up to
/// this moment. Starts no device.
pub fn status(socket: &std::path::Path) -> std::io::Result<String> {
    let connection = link::connect_to(socket)?;
    wire::send(&connection, &wire::Request::Status, &[])?;
    let (_, files) = wire::receive_bytes(&connection)?.ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let file = files.into_iter().next().ok_or(std::io::ErrorKind::InvalidData)?;
    let mut file = std::fs::File::from(file);
    file.rewind()?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}
