//! The preloaded libcuda.

pub mod session;
