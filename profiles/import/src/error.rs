// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults of files.

use std::{io, path::PathBuf};

use weft_trace_format::TraceError;

/// Error of an import: one line with the file, the place, and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The system refused to read.
    #[error("cannot read {}: {source}{}", path.display(), next_step(source))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file without content.
    #[error("{} is empty: copy or export it again", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A trace of weft's that cannot be read.
    #[error(transparent)]
    Ours(#[from] TraceError),
    /// Not a file of a known kind.
    #[error(
        "{} is neither JSON nor SQLite, nor a trace of weft: give a trace of torch.profiler (export_chrome_trace) or an \
         export of Nsight Systems (nsys export --type sqlite)",
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
    #[error("{} is no trace of a profiler ({why}): export it again, from nsys with --type sqlite", path.display())]
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
    #[error("{} is a trace of weft: import it alone", path.display())]
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
    /// A database without kernels, or not of Nsight Systems.
    #[error("{} has no table {table}: record with nsys profile --trace cuda and export it again", path.display())]
    NoTable {
        /// The file.
        path: PathBuf,
        /// The table.
        table: &'static str,
    },
    /// No kernel or copy.
    #[error("{} has no device work{others}: record the CUDA activity, too", path.display())]
    NoWork {
        /// The file.
        path: PathBuf,
        /// Events that it has, in parentheses; empty if it has none.
        others: String,
    },
    /// No kernel that takes time.
    #[error("{} has no kernel{why}", path.display())]
    NoKernel {
        /// The file.
        path: PathBuf,
        /// The reason and the remedy.
        why: String,
    },
    /// A trace of XLA's profiler.
    #[error(
        "{} is a trace of XLA's profiler (JAX, TensorFlow), which has no launch calls: record with nsys profile --trace \
         cuda,nvtx",
        path.display()
    )]
    OfXla {
        /// The file.
        path: PathBuf,
    },
    /// None of the wanted device.
    #[error("{} has no work of device {device}: give --device {}", path.display(), others.join(" or "))]
    OtherDevices {
        /// The file.
        path: PathBuf,
        /// The wanted device.
        device: u32,
        /// Some of those with work.
        others: Vec<String>,
    },
    /// No launch call has work.
    #[error("{} has no launch call of its kernels: record the CPU activity, too", path.display())]
    NoLaunches {
        /// The file.
        path: PathBuf,
    },
    /// No step.
    #[error(
        "{} has no step by --cut {cut}: give --cut whole, sync, name:REGEX or wait-by:THREAD (threads: {})",
        path.display(),
        threads.join(", ")
    )]
    NoCut {
        /// The file.
        path: PathBuf,
        /// The cut.
        cut: String,
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

/// The next step after a system's error, behind it.
fn next_step(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::IsADirectory => ": name a file in it",
        io::ErrorKind::NotFound => ": give the name of a file that is there",
        // gzip's.
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
            " (it is truncated or damaged): copy or export it again"
        }
        _ => "",
    }
}

/// Longest quotation of a file or of another library's error, characters.
const LONGEST_QUOTATION: usize = 200;

/// Another library's error in one line.
pub(crate) fn quoted(error: &dyn std::error::Error) -> String {
    one_line(&error.to_string())
}

/// A text without control characters, cut to a readable length.
pub(crate) fn one_line(text: &str) -> String {
    let printed = |c: char| if c.is_whitespace() || c.is_control() { ' ' } else { c };
    text.chars().take(LONGEST_QUOTATION).map(printed).collect()
}
