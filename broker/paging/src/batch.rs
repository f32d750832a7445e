// SPDX-License-Identifier: MIT OR Apache-2.0
//! Merges orders for neighbouring granules into one.
#![forbid(unsafe_code)]

use super::{GranuleRange, OrderKind};
use weft_protocol::Client;

/// Neighbouring granules with the same order.
#[derive(Debug, Default)]
pub(super) struct Batch(pub Option<(Client, OrderKind, GranuleRange)>);

impl Batch {
    /// Takes one more granule. False if it does not fit.
    pub fn take(&mut self, client: Client, kind: OrderKind, granule: u64, most: u32) -> bool {
        let Some((whose, order, range)) = &mut self.0 else {
            let range = GranuleRange {
                first: granule,
                count: 1,
            };
            self.0 = Some((client, kind, range));
            return true;
        };
        if *whose != client || *order != kind || range.count >= most.max(1) {
            return false;
        }
        if granule == range.end() {
            range.count += 1;
            return true;
        }
        // Victims are found backwards.
        if granule + 1 == range.first {
            range.first = granule;
            range.count += 1;
            return true;
        }
        false
    }
}
