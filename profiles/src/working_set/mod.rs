// SPDX-License-Identifier: MIT OR Apache-2.0
//! Working sets: the memory that each kernel touches, as a function of its launch arguments.
//!
//! MSched (arXiv 2512.24637, section 4) found three kinds of regions that begin at a pointer
//! argument:
//!
//! * T1, [`Template::Fixed`]: of constant size;
//! * T2, [`Template::Linear`]: of a size proportional to a product of other arguments;
//! * T3, [`Template::Strided`]: several chunks at a regular stride.
//!
//! MSched learns them by binary instrumentation, weft from any [`Evidence`].
//!
//! * [`LaunchArguments`]: a kernel with parameters, grid and block. [`Allocations`] show which
//!   words are pointers.
//! * [`Fitter`]: makes [`WorkingSets`], which the profile stores, from launches and their touched
//!   memory.
//! * [`WorkingSetPredictor`]: maps a launch to its [`Region`]s, in well under a microsecond,
//!   without allocations in the steady state.
//! * [`mod@evaluate`]: counts touched memory that was not predicted, and predicted memory that was
//!   not touched.
#![forbid(unsafe_code)]

mod allocations;
mod coarse;
mod evaluate;
mod evidence;
mod fit;
mod formula;
mod launch;
mod predict;
mod ranges;
mod recall;
pub mod recording;
mod region;
mod samples;
mod table;
mod template;
#[cfg(test)]
mod tests;

pub use allocations::Allocations;
pub use evaluate::{WorkingSetAccuracy, evaluate};
pub use evidence::{Certainty, Evidence, HostResidency, SimulatedLedger};
pub use fit::Fitter;
pub use formula::{Formula, Term};
pub use launch::LaunchArguments;
pub use predict::{GUESSED_BYTES, Predicted, WorkingSetPredictor};
pub use region::{Access, Region, Touched};
pub use template::{KernelWorkingSet, Template, WordTemplate, WorkingSets};

#[cfg(test)]
pub(crate) use tests::example;
