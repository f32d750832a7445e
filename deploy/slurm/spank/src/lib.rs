// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plugin by which Slurm starts jobs under weft.
//!
//! Slurm's commands, its node daemon and its step daemon load it (SPANK, `plugstack.conf`). It adds
//! options to `sbatch`, `srun` and `salloc`. If a step holds a GPU, the plugin sets for its tasks
//! the variables that `weft run` would set. It changes nothing else.
//!
//! Invariants: no panic unwinds into Slurm, and no error in the plugin fails a job. Only a wrong
//! value of an option is refused, by the command that the user gives it to.

// A test build lacks the exports.
#[cfg_attr(test, allow(dead_code))]
mod books;
mod leftovers;
// A test build lacks the exports, the only users of some of its items.
#[cfg_attr(test, allow(dead_code))]
mod options;
mod settings;
mod task;
mod weft;

// The exports and Slurm's functions. A test build has no Slurm to link with.
#[cfg(not(test))]
mod exports;
#[cfg(not(test))]
mod host;
