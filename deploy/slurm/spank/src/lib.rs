//! The plugin with which Slurm starts jobs under weft.
//!
//! Slurm's commands, its node daemon and its step daemon load it (SPANK, `plugstack.conf`). It adds
//! options to `sbatch`, `srun` and `salloc`. It gives the tasks of a step that holds a GPU the
//! variables that `weft run` would give them. Everything else passes unchanged.
//!
//! Invariants: no panic unwinds into Slurm, and no fault of the plugin fails a job. Only a wrong
//! value of an option is refused, at submission.

mod leftovers;
// A test program has no exports, which use all of it.
#[cfg_attr(test, allow(dead_code))]
mod options;
mod settings;
mod task;
mod weft;

// The exports, and Slurm's functions for plugins. A test program runs without Slurm.
#[cfg(not(test))]
mod exports;
#[cfg(not(test))]
mod host;
