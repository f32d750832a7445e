//! Readers for fatbin, cubin and PTX images.
