//! The table of attached clients.
#![forbid(unsafe_code)]

pub mod registry;
