//! The simulated libcuda.so.1.
