// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes of a lying client: anything, anywhere in the memory that it shares with the broker, and
//! any launch epoch on the epoch page.
#![forbid(unsafe_code)]

use std::mem::{offset_of, size_of};
use std::sync::atomic::Ordering;

use weft_protocol::lane::{Kind, Lane, Orders, Reports};

use crate::chance::SeededChance;
use crate::process::SimProcess;

/// A number that is as likely small as huge.
fn any(chance: &mut SeededChance) -> u64 {
    match chance.between(0, 5) {
        0 => 0,
        1 => u64::MAX,
        2 => chance.next(),
        3 => chance.length(1, 1 << 40),
        4 => i64::MAX as u64,
        _ => chance.between(0, 1_000_000),
    }
}

/// One lie.
pub(crate) fn tell(process: &mut SimProcess, chance: &mut SeededChance) {
    let lane = &process.lane;
    let (reports, orders) = (&lane.reports, &lane.orders);
    match chance.between(0, 12) {
        0 => reports.issued.store(any(chance), Ordering::Relaxed),
        1 => reports.completed.store(any(chance), Ordering::Relaxed),
        2 => reports.wanted_cost.store(any(chance), Ordering::Relaxed),
        3 => {
            reports.waiting_since.store(any(chance), Ordering::Relaxed);
            reports.wanted_kernel.store(any(chance), Ordering::Relaxed);
            reports.waiting.store(chance.between(0, 2) as u32, Ordering::Relaxed);
        }
        4 => orders.credit.store(any(chance) as i64, Ordering::Relaxed),
        5 => orders.epochs.store(any(chance), Ordering::Relaxed),
        6 => orders.flags.store(any(chance) as u32, Ordering::Relaxed),
        7 => orders.mode.store(chance.between(0, 5) as u32, Ordering::Relaxed),
        8 => {
            for _ in 0..chance.length(1, 20_000) {
                process.write(Kind::Launch, 0, any(chance), any(chance), any(chance), any(chance));
            }
        }
        9 => {
            for priority in 0..10 {
                process.host.epoch_page.bump(priority);
            }
        }
        10 => process
            .host
            .epoch_page
            .heartbeat
            .store(any(chance) as u32, Ordering::Relaxed),
        // Bytes into the orders, into the reports, or anywhere.
        place => {
            let (begin, length) = match (place, chance.between(0, 2)) {
                (_, 0) => (offset_of!(Lane, orders), size_of::<Orders>()),
                (_, 1) => (offset_of!(Lane, reports), size_of::<Reports>()),
                _ => (0, size_of::<Lane>()),
            };
            for _ in 0..chance.between(1, 40) {
                let at = begin as u64 + chance.between(0, length as u64 - 8) / 8 * 8;
                // It was made with this very size; if the write failed, no lie was written.
                let _ = rustix::io::pwrite(lane.memory(), &any(chance).to_le_bytes(), at);
            }
        }
    }
}
