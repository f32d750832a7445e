// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory that clients and the device share.
//!
//! * [`lane`]: one a client: the rings of submissions and news, and words for waking each other.
//! * [`board`]: one a device, mapped by all clients: the clock, the doorbell's flag, the memory of
//!   each client.
//! * [`mapping`]: how either gets into an address space.
//! * [`futex`]: waiting on a word across processes.
//!
//! Everything is an atomic, so a reference is sound whatever the other side does. The device treats
//! a lane as an allegation: it copies a word, checks the copy, then uses it. Seals fix the sizes,
//! so a lane cannot shrink under a reader.

pub(crate) mod board;
pub(crate) mod futex;
pub(crate) mod lane;
pub(crate) mod mapping;
pub(crate) mod record;
