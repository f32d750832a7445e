// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small HTTP server, for the metrics and for `weft serve`.
//!
//! | file | holds |
//! | --- | --- |
//! | `http` | requests and answers; pure |
//! | `server` | the sockets, the thread and its connections |
#![forbid(unsafe_code)]

mod http;
mod server;

pub use self::http::{WebAnswer, WebRequest};
pub use self::server::{Visitor, WebDoors, WebHandler, WebServer};
