// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels that wait on the device for kernels on other devices: collectives.
//!
//! They are recognised by their names ([`weft_kernel_id::collective`]).
//!
//! Such a kernel spins until its peers run. If one rank waited at a gate, the other ranks would
//! spin and block their devices, which that gate does not know. So these kernels pass without
//! credit. Their cost is charged, and the job's next launches pay for it. They are not deferred:
//! the launch queue is emptied first, through the gate. A graph with such kernels is gated as one
//! piece.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use crate::kernels::index::Index;

/// Table size; identities use at most three quarters of it. NCCL has some dozens of kernels, in a
/// few shapes each.
const MOST: usize = 1 << 10;

static PEERS: Index<MOST> = Index::new();

static ANY: AtomicBool = AtomicBool::new(false);

/// Whether the process has launched such a kernel.
pub fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Notes the first launch of an identity, with its kernel's symbol.
pub fn kernel_seen(hash: u64, symbol: &str) {
    if weft_kernel_id::is_collective(symbol) {
        ANY.store(true, Ordering::Relaxed);
        PEERS.set(hash as usize, 1);
    }
}

/// Whether a kernel of this identity waits for peers.
pub fn awaits(hash: u64) -> bool {
    hash != 0
        && PEERS
            .find(hash as usize)
            .is_some_and(|slot| slot.value.load(Ordering::Relaxed) != 0)
}
