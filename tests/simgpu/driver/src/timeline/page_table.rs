// SPDX-License-Identifier: MIT OR Apache-2.0
//! Managed pages that lie only on the device are not in the process's page table
//! (`/proc/self/pagemap`). A real driver does the same: it takes a page from the host when the page
//! moves.
//!
//! Only with `SIMGPU_PAGE_TABLE=on`: each call that sees work end (a wait, a query that answers
//! "done") then costs a round trip to the device.
//!
//! Modelled: when such a call returns, the pages that the ended work left only on the device are
//! gone from the table. A page that comes back is in the table when the host uses it, not before.
//! No prefetch puts it there.
//!
//! Not modelled: the host's use of a page on the device does not move it. The page is then in the
//! table and, by the ledger, on the device. If another process's work displaces pages, they are
//! checked when this process uses them again.
#![deny(unsafe_code)]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use simgpu_device::lock::lock;
use simgpu_device::{Op, Seq, TouchedAddresses};

use crate::space::{GRANULE, LEDGER_PAGE_BYTES as PAGE, space};
use crate::timeline::{Timeline, device_of};

/// Operations not seen to have ended yet, with the memory that they use.
static UNDER_WAY: Mutex<Vec<(Seq, TouchedAddresses)>> = Mutex::new(Vec::new());

/// Whether there are any.
static ANY: AtomicBool = AtomicBool::new(false);

/// Most operations that are followed: more than a client has between two waits. Beyond that the
/// oldest are forgotten, and their pages stay in the table.
const MOST_TOUCHES: usize = 1 << 16;

fn on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| std::env::var("SIMGPU_PAGE_TABLE").is_ok_and(|value| value == "on"))
}

/// An operation was submitted that uses managed memory.
pub(crate) fn used(seq: Seq, op: &Op, touches: &[TouchedAddresses]) {
    if !on() {
        return;
    }
    let moved = match *op {
        Op::Prefetch { start, bytes, .. } => Some(TouchedAddresses {
            start,
            bytes,
            write: false,
        }),
        _ => None,
    };
    if touches.is_empty() && moved.is_none() {
        return;
    }
    let mut under_way = lock(&UNDER_WAY);
    under_way.extend(touches.iter().copied().chain(moved).map(|touch| (seq, touch)));
    let beyond = under_way.len().saturating_sub(MOST_TOUCHES);
    under_way.drain(..beyond);
    ANY.store(true, Ordering::Release);
}

/// Work was seen to have ended: the table follows.
pub(crate) fn follow(timeline: &Timeline) {
    if !ANY.load(Ordering::Acquire) {
        return;
    }
    let mut under_way = lock(&UNDER_WAY);
    let mut blocks: BTreeSet<(usize, u64)> = BTreeSet::new();
    under_way.retain(|(seq, touch)| {
        let ended = timeline.is_known_done(*seq);
        if ended {
            let end = touch.start.saturating_add(touch.bytes);
            let numbers = touch.start / GRANULE..end.div_ceil(GRANULE);
            blocks.extend(numbers.map(|number| (device_of(*seq), number)));
        }
        !ended
    });
    ANY.store(!under_way.is_empty(), Ordering::Release);
    let blocks: Vec<_> = blocks.into_iter().collect();
    for run in blocks.chunk_by(|one, next| one.0 == next.0 && one.1 + 1 == next.1) {
        let Some((device, first)) = run.first().copied() else {
            continue;
        };
        let Ok(pages) = timeline.on_device(device, first, run.len()) else {
            continue;
        };
        for ((_, number), pages) in run.iter().zip(pages) {
            hide(*number, pages);
        }
    }
}

/// Takes pages of a block out of the table.
fn hide(number: u64, pages: u32) {
    let Ok(space) = space() else { return };
    let mut at = 0;
    while at < u32::BITS {
        let run = (pages >> at).trailing_ones();
        if run > 0 {
            space.hide(number * GRANULE + u64::from(at) * PAGE, u64::from(run) * PAGE);
        }
        at += run.max(1);
    }
}
