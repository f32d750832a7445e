//! The preloaded libcuda.
