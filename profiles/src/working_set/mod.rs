//! What each kernel touches, told from its launch arguments.
//!
//! MSched (arXiv 2512.24637, section 4) found that what a kernel touches is a simple function of its arguments: a region that begins at a pointer argument and
//! is of constant size (its T1, our `Fixed`), of a size proportional to a product of other arguments (T2, `Linear`), or several
//! chunks at a regular stride (T3, `Strided`). It learns them from a binary instrumentation tool; we learn them from any evidence.
#![forbid(unsafe_code)]

mod region;

pub use region::{Access, Region, Touched};
