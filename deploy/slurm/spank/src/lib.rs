//! The plugin by which Slurm starts jobs under weft.
//!
//! Slurm's commands, its node daemon and its step daemon load it (SPANK, `plugstack.conf`). It adds
//! options to `sbatch`, `srun` and `salloc`, and gives the tasks of a step that holds a GPU the
//! variables that `weft run` would give them. Everything else passes untouched.
//!
//! What holds here: nothing unwinds into Slurm, and nothing that goes wrong here fails a job. Only
//! a wrong value of an option is refused, where it is given.

mod leftovers;
// A test's program has none of the exports, which use all of it.
#[cfg_attr(test, allow(dead_code))]
mod options;
mod settings;
mod task;
mod weft;

// The exports, and what Slurm offers to a plugin. A test's program has no Slurm around it.
#[cfg(not(test))]
mod exports;
#[cfg(not(test))]
mod host;
