//! What every room of the daemon may use: clock, processes, options, logs, the rank of threads.

pub mod clock;
pub mod job_end;
pub mod log_file;
pub mod options;
pub mod process;
pub mod thread_priority;
pub mod trace;
pub mod user_log;
