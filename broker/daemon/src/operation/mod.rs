//! The broker under its owner: questions, options read again, the service manager.
#![forbid(unsafe_code)]

pub mod query;
pub mod reload;
pub mod supervisor;
