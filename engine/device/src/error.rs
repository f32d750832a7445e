// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a call of the engine was refused.

/// Why a call was refused. The engine is unchanged then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineError {
    /// The context is gone or never was.
    NoContext,
    /// The stream is gone, closing, or never was.
    NoStream,
    /// The operation waits for nothing that can be released.
    NotReleasable,
}

impl std::fmt::Display for EngineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            EngineError::NoContext => "no such context",
            EngineError::NoStream => "no such stream",
            EngineError::NotReleasable => "the operation is no host operation and no held kernel",
        })
    }
}

impl std::error::Error for EngineError {}
