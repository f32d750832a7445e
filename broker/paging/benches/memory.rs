// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cost of a switch in the memory planner:
//! `cargo bench -p weft-paging --bench memory -- [--check] [--json FILE]`.
//!
//! Eight clients with 40,000 granules of 2 MB each take turns on a device of 80 GB; orders end at
//! once. The benchmark measures the switch with its first orders, for which a job may wait, and all
//! calls of a turn. One thread.
#![forbid(unsafe_code)]

use std::{process::ExitCode, time::Instant};

use weft_paging::{
    Access, GRANULE, GranulePlace, GranuleRange, Link, OrderStatus, PagingConfig, Planner, ResidencySlot, Use,
    WorkingSet,
};
use weft_protocol::Client;

#[path = "../../../tests/figures.rs"]
mod figures;

use figures::Asked;

/// Aim, ns a switch.
const AIM: u64 = 1_000_000;

const CLIENTS: u64 = 8;
const GRANULES: u64 = 40_000;

fn set() -> WorkingSet {
    // 500 kernels of 80 granules in 50 ms, the first half unwritten.
    let uses = (0..500)
        .map(|kernel| Use {
            at: kernel * 100_000,
            range: GranuleRange {
                first: kernel * 80,
                count: 80,
            },
            access: if kernel < 250 { Access::Read } else { Access::ReadWrite },
        })
        .collect();
    WorkingSet {
        period: 50_000_000,
        uses,
    }
}

fn main() -> ExitCode {
    let asked = Asked::read();
    let link = Link {
        inward: 50e9,
        outward: 50e9,
        both: 76e9,
        duplex: true,
    };
    let mut planner = Planner::new(PagingConfig::new(GRANULES * GRANULE, 16 * GRANULES * GRANULE, link));
    for number in 0..CLIENTS {
        planner.join(Client(number));
        let all = GranuleRange {
            first: 0,
            count: GRANULES as u32,
        };
        planner.placed(Client(number), all, GranulePlace::Host);
        planner.set_working_set(Client(number), set(), 0);
    }
    let length = 100_000_000;
    let mut clients: Vec<u64> = (0..CLIENTS).collect();
    let (mut switches, mut turns, mut moved) = (Vec::new(), Vec::new(), 0u64);
    let mut orders = Vec::new();
    for _ in 0..10 * CLIENTS {
        let timeline: Vec<ResidencySlot> = clients
            .iter()
            .map(|client| ResidencySlot {
                client: Client(*client),
                length,
            })
            .collect();
        let begin = Instant::now();
        planner.switch(&timeline);
        planner.orders(&mut orders);
        switches.push(begin.elapsed().as_nanos() as u64);
        // Granules that the link carries in a turn.
        let mut budget = 2_500;
        let running = Client(clients[0]);
        for part in 0..100 {
            while budget > 2_500 - (part + 1) * 25 && !orders.is_empty() {
                for order in std::mem::take(&mut orders) {
                    budget -= i64::from(order.range.count);
                    moved += u64::from(order.range.count);
                    planner.done(order.id, OrderStatus::Done);
                }
                planner.orders(&mut orders);
            }
            // A little short of the plan, so that the two never match exactly.
            planner.ran(running, length / 100 - 7);
            planner.orders(&mut orders);
        }
        for order in std::mem::take(&mut orders) {
            planner.done(order.id, OrderStatus::Done);
        }
        turns.push(begin.elapsed().as_nanos() as u64);
        clients.rotate_left(1);
    }
    switches.sort_unstable();
    turns.sort_unstable();
    let middle = |all: &[u64]| all[all.len() / 2];
    let (median, worst, turn) = (middle(&switches), switches[switches.len() - 1], middle(&turns));
    println!(
        "{CLIENTS} clients of {GRANULES} granules on a device of {GRANULES}; {moved} granules moved in {} turns",
        switches.len()
    );
    println!(
        "a switch and its first orders: median {:.0} us, worst {:.0} us",
        median as f64 / 1e3,
        worst as f64 / 1e3
    );
    println!("all calls of a turn: median {:.0} us", turn as f64 / 1e3);
    let text = format!(
        "{{\"switch_ns_median\": {median}, \"switch_ns_worst\": {worst}, \"turn_ns_median\": {turn}, \"aim\": {AIM}}}\n"
    );
    let missed = (median > AIM).then(|| format!("missed: a switch takes {median} ns, aim {AIM} ns"));
    asked.end(&text, missed.as_slice())
}
