//! How clients find driver functions, and how each way is made to lead to us.
//!
//! | a client | finds us because |
//! | --- | --- |
//! | is linked against `libcuda.so.1` | a preload comes first in the linker's order |
//! | opens `libcuda.so.1` by name | our SONAME is that name |
//! | opens `libcuda.so`, or an absolute path to either | [`open`] wraps `dlopen` |
//! | opens one of the names from a scope of its own (`RTLD_DEEPBIND`) | both names are ours; [`past`] says what got the driver all the same |
//! | looks a name up in a handle of the driver's | [`symbol`] wraps `dlsym` and `dlvsym` |
//! | asks `cuGetProcAddress` | [`crate::hooks`] answers with our entry points |
//! | asks `cuGetExportTable` | it does not: those tables pass through unchanged, and which is noted ([`crate::deferred::tables`]) |
//!
//! A function that the symbol table lacks is handed out as the driver's own, and counted.

pub mod open;
pub mod past;
pub mod symbol;
