//! The laboratory: several jobs on one GPU in virtual time, under any policy, and what each of them
//! gets.
//!
//! * [`job`]: what a job asks of the device, from a launch trace or a [`generate`]d one, and when
//!   its requests come.
//! * [`world`]: the machine. The simulated GPU's engine, host threads that launch ahead, and what
//!   stands between them: nothing, the broker's core as the daemon drives it, or a [`policy`] of
//!   the lab's own (other projects' rules, for comparison).
//! * [`cost`]: what a rule's calls take of their hosts.
//! * [`measure`]: what came of a run; [`bound`]: what the device's time allows at most; [`oracle`]:
//!   what fits into gaps at most, kernel by kernel; [`why`]: what stood in the way.
//! * [`together`]: the engine in which kernels share SMs, beside hardware.
//! * [`calibrated`]: the device, by a calibration file.
//! * [`scenario`]: runs as TOML files; [`pairs`]: the large set behind `scripts/lab`; [`aims`]:
//!   what is to be reached; [`report`]: for people.
//! * [`seeds`]: a figure over several seeds, and its interval.
//! * [`promise`]: what users are promised: a slowdown, an SLO, the time of a token.
//!
//! What holds: a run is its scenario and a seed. The same two give the same result to the last
//! nanosecond, on any machine.
#![forbid(unsafe_code)]

pub mod admission;
pub mod aims;
pub mod bound;
pub mod calibrated;
pub mod compare;
pub mod cost;
pub mod foresight;
pub mod generate;
pub mod job;
mod lost;
pub mod measure;
pub mod memory;
pub mod oracle;
pub mod pairs;
pub mod policy;
pub mod promise;
pub mod random;
pub mod report;
pub mod rule;
pub mod scenario;
pub mod seeds;
pub mod speed;
pub mod together;
pub mod why;
pub mod world;

/// A time or a duration in nanoseconds.
pub type Ns = u64;
/// A microsecond.
pub const US: Ns = 1_000;
/// A millisecond.
pub const MS: Ns = 1_000_000;
