//! The real driver: where it is found, what it has, and calls of our own to it.
//!
//! Nothing here knows of weft's own work: no hook, no session, no broker.
//!
//! | module | holds |
//! | --- | --- |
//! | [`linker`] | the dynamic linker's tables, and ourselves in them |
//! | [`loader`] | finds and opens the driver |
//! | [`symbols`] | the symbol table, and the driver's function for each symbol |
//! | [`abi`] | the driver's types, as far as we look at them |
//! | [`calls`] | the driver's functions, typed, for our own use |
//! | [`device`] | what is known of a device |
//! | [`events`] | the few that deal with events, for the session |
//! | [`stream`] | handles of streams and events |
//! | [`capture`] | which streams are being captured |
//! | [`counts`] | what lookups of the job's yielded |

pub mod abi;
pub mod calls;
pub mod capture;
pub mod counts;
pub mod device;
pub mod events;
pub mod linker;
pub mod loader;
pub mod stream;
pub mod symbols;
