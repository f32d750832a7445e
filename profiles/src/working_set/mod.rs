//! Working sets: the memory that each kernel touches, as a function of its launch arguments.
//!
//! MSched (arXiv 2512.24637, section 4) found simple functions: a region that begins at a pointer
//! argument and is of constant size (its T1, our [`Template::Fixed`]), of a size proportional to a
//! product of other arguments (T2, [`Template::Linear`]), or several chunks at a regular stride
//! (T3, [`Template::Strided`]). MSched learns them by binary instrumentation, weft from any
//! [`Evidence`].
//!
//! * [`Launch`]: a kernel with its parameter buffer, grid and block. [`Allocations`]: the job's
//!   memory, which shows what words are pointers.
//! * [`Fitter`]: from launches and what they touched to [`WorkingSets`], which the profile stores.
//! * [`Predictor`]: from a launch to its [`Region`]s, in well under a microsecond, in the steady
//!   state without allocations.
//! * [`evaluate`]: how much of the touched memory is predicted, and of the predicted touched.
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
pub use evaluate::{Evaluation, evaluate};
pub use evidence::{Certainty, Evidence, HostResidency, SimulatedLedger};
pub use fit::Fitter;
pub use formula::{Formula, Term};
pub use launch::Launch;
pub use predict::{GUESSED_BYTES, Predicted, Predictor};
pub use region::{Access, Region, Touched};
pub use template::{KernelWorkingSet, Template, WordTemplate, WorkingSets};

#[cfg(test)]
pub(crate) use tests::example;
