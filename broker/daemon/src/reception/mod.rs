//! The two threads that hear clients: one lets them in, one hears their slow messages.
#![forbid(unsafe_code)]

pub mod acceptor;
pub mod control;
