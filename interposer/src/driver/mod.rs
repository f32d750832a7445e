// SPDX-License-Identifier: MIT OR Apache-2.0
//! The real driver: the search for it, its functions, and weft's own calls to it.
//!
//! This module knows no hook, session or broker.
//!
//! | module | contains |
//! | --- | --- |
//! | [`linker`] | the dynamic linker's tables, and this library in them |
//! | [`loader`] | finds and opens the driver |
//! | [`symbols`] | the symbol table, and the driver's function for each symbol |
//! | [`abi`] | the driver's types |
//! | [`calls`] | the driver's functions, typed, for weft's own calls |
//! | [`device`] | device facts |
//! | [`queries`] | queries about the thread's context and about addresses |
//! | [`events`] | the event functions, for the session |
//! | [`stream`] | handles of streams and events |
//! | [`stream_order`] | the order of work on streams, and marks in it |
//! | [`capture`] | the streams that are being captured |
//! | [`counts`] | results of the job's lookups |

pub mod abi;
pub mod calls;
pub mod capture;
pub mod counts;
pub mod device;
pub mod events;
pub mod linker;
pub mod loader;
pub mod queries;
pub mod stream;
pub mod stream_order;
pub mod symbols;
