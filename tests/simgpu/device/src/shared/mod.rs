//! The memory that clients and the device share.
//!
//! * [`lane`]: one a client: the ring of submissions, the ring of news, and the words on which the
//!   two wake each other.
//! * [`board`]: one a device, mapped by all clients: the clock, the doorbell's flag, the memory
//!   each client holds.
//! * [`mapping`]: how either gets into an address space.
//! * [`futex`]: waiting on a word across processes.
//!
//! Everything in it is an atomic, so a reference to it is sound whatever the other side does. The
//! device reads a client's lane as an allegation: it copies a word, checks it, then uses the copy.
//! Sizes are fixed by seals, so nobody can shrink a lane under the other's feet.

pub(crate) mod board;
pub(crate) mod futex;
pub(crate) mod lane;
pub(crate) mod mapping;
pub(crate) mod record;
