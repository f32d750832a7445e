// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared tools of all the daemon's modules: clock, processes, options, logs, priority of threads.

pub mod clock;
pub mod job_end;
pub mod log_file;
pub mod options;
pub mod process;
pub mod thread_priority;
pub mod trace;
pub mod user_log;
