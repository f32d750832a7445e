// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of a link.

use crate::config::ConfigError;

/// Reason for which the device did not serve a request.
#[derive(Debug)]
pub enum LinkError {
    /// The configuration cannot be used.
    Config(ConfigError),
    /// The device could not be started or reached in time.
    Unreachable(String),
    /// No further attempt can succeed: a program that is missing, an invalid path, a device that
    /// refuses.
    Unusable(String),
    /// The device died, or cut the link off. All on it is lost.
    Lost,
    /// The time was over first.
    TimedOut,
    /// A child of fork uses its parent's link.
    Forked,
    /// No device memory left.
    OutOfMemory,
    /// No such context, stream or operation.
    Unknown,
    /// An [`crate::Effects`] call used a method that waits for effects.
    Reentrant,
}

impl std::fmt::Display for LinkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LinkError::Config(error) => error.fmt(f),
            LinkError::Unreachable(what) => write!(f, "the simulated device cannot be reached: {what}"),
            LinkError::Unusable(what) => f.write_str(what),
            LinkError::Lost => f.write_str("the simulated device is gone"),
            LinkError::TimedOut => f.write_str("the operation did not end in time"),
            LinkError::Forked => f.write_str("a forked child cannot use its parent's device"),
            LinkError::OutOfMemory => f.write_str("out of device memory"),
            LinkError::Unknown => f.write_str("no such context, stream or operation"),
            LinkError::Reentrant => f.write_str("an effect cannot wait for the device"),
        }
    }
}

impl std::error::Error for LinkError {}
