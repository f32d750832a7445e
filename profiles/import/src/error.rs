// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults of files.

use std::{io, path::PathBuf};

/// Error of an import: one line with the file, the place, and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The system refused to read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Not a file of a known kind.
    #[error(
        "{} is neither JSON nor SQLite: give a trace of torch.profiler (export_chrome_trace) or an export of \
         Nsight Systems (nsys export --type sqlite)",
        path.display()
    )]
    UnknownKind {
        /// The file.
        path: PathBuf,
    },
    /// The JSON ends early.
    #[error("{} is truncated: its JSON ends within a value after {bytes} bytes: copy or export it again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes of the JSON, unpacked.
        bytes: u64,
    },
    /// The JSON is wrong.
    #[error("{} is no trace of a profiler ({why}): export it again", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The fault and its place.
        why: String,
    },
    /// The JSON has no events.
    #[error("{} is not a trace: it has neither traceEvents nor the steps that weft trace export writes", path.display())]
    NoEvents {
        /// The file.
        path: PathBuf,
    },
    /// The JSON is not quite a trace of weft.
    #[error("{} is not a trace in weft's JSON ({why}): weft trace export writes one", path.display())]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// The fault and its place.
        why: String,
    },
    /// A trace of weft among other files.
    #[error("{} is a trace in weft's JSON: import it alone", path.display())]
    OneTrace {
        /// The file.
        path: PathBuf,
    },
    /// A table cannot be read.
    #[error("{}: table {table}: {why}: export it again", path.display())]
    Table {
        /// The file.
        path: PathBuf,
        /// The table.
        table: &'static str,
        /// The fault.
        why: String,
    },
    /// A database without kernels.
    #[error(
        "{} has no table CUPTI_ACTIVITY_KIND_KERNEL: record with nsys profile --trace cuda and export it again",
        path.display()
    )]
    NoKernelTable {
        /// The file.
        path: PathBuf,
    },
    /// No kernel or copy.
    #[error(
        "{} has no device work{}: record the CUDA activity, too",
        path.display(),
        device.map(|device| format!(" of device {device}")).unwrap_or_default()
    )]
    NoWork {
        /// The file.
        path: PathBuf,
        /// The wanted device.
        device: Option<u32>,
    },
    /// No launch call has work.
    #[error("{} has no launch call of its kernels: record the CPU activity, too", path.display())]
    NoLaunches {
        /// The file.
        path: PathBuf,
    },
    /// No step.
    #[error(
        "no step found by this cut: give --cut whole, sync, name:REGEX or wait-by:THREAD (threads: {})",
        threads.join(", ")
    )]
    NoCut {
        /// Some of the file's threads.
        threads: Vec<String>,
    },
    /// More than is kept.
    #[error("more than {0}: record fewer steps")]
    TooMuch(&'static str),
    /// No file was given.
    #[error("give a file to import")]
    NoFile,
}

/// Longest quotation of another library's error, characters: such errors quote the file.
const LONGEST_QUOTATION: usize = 200;

/// Another library's error in one line.
pub(crate) fn quoted(error: &dyn std::error::Error) -> String {
    let text = error.to_string();
    let words: Vec<&str> = text.split(|c: char| c.is_whitespace() || c.is_control()).collect();
    words.join(" ").chars().take(LONGEST_QUOTATION).collect()
}
