//! Shows that each invariant can fail.
#![forbid(unsafe_code)]
