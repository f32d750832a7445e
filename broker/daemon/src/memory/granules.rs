// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conversions from address ranges to granules, and from orders to page operations.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashSet, VecDeque};

use weft_paging::{GRANULE, GranuleRange, OrderKind, PagingOrder};
use weft_protocol::page_ops::{self, PageOp};

/// Most memory of one confirmation: launches may have to wait for its end.
const LONGEST_CONFIRM: u64 = 16 * GRANULE;

/// The granules that an address range touches.
pub(super) fn granules(start: u64, bytes: u64) -> GranuleRange {
    let first = start / GRANULE;
    let end = start.saturating_add(bytes).div_ceil(GRANULE);
    GranuleRange {
        first,
        count: u32::try_from(end - first).unwrap_or(u32::MAX),
    }
}

/// Page operations that confirm, in order, the granules of `wanted` that should be on the device.
pub(super) fn confirms(wanted: impl Iterator<Item = u64>, there: impl Fn(u64) -> bool) -> VecDeque<PageOp> {
    let mut seen = HashSet::new();
    let mut found: VecDeque<PageOp> = VecDeque::new();
    for granule in wanted.filter(|granule| there(*granule)) {
        if !seen.insert(granule) {
            continue;
        }
        let start = granule * GRANULE;
        match found.back_mut() {
            Some(last) if last.start + last.bytes == start && last.bytes < LONGEST_CONFIRM => last.bytes += GRANULE,
            _ => found.push_back(PageOp {
                kind: page_ops::PageOpKind::Confirm,
                start,
                bytes: GRANULE,
            }),
        }
    }
    found
}

/// The parts of `wanted` that are in the client's ranges.
pub(super) fn held(ranges: &BTreeMap<u64, (u64, u64)>, wanted: GranuleRange) -> Vec<GranuleRange> {
    let from = wanted.first.saturating_mul(GRANULE);
    let to = wanted.end().saturating_mul(GRANULE);
    let before = ranges.range(..from).next_back();
    let parts = before.into_iter().chain(ranges.range(from..to));
    let mut found: Vec<GranuleRange> = Vec::new();
    for (start, (bytes, _)) in parts {
        let range = granules(*start, *bytes);
        let first = range
            .first
            .max(wanted.first)
            .max(found.last().map_or(0, GranuleRange::end));
        let end = range.end().min(wanted.end());
        if first >= end {
            continue;
        }
        match found.last_mut() {
            Some(last) if last.end() == first => last.count += (end - first) as u32,
            _ => found.push(GranuleRange {
                first,
                count: (end - first) as u32,
            }),
        }
    }
    found
}

/// Neighbouring granules as ranges.
pub(super) fn joined(granules: impl Iterator<Item = u64>) -> Vec<GranuleRange> {
    let mut found: Vec<GranuleRange> = Vec::new();
    for granule in granules {
        match found.last_mut() {
            Some(last) if last.end() == granule => last.count += 1,
            _ => found.push(GranuleRange {
                first: granule,
                count: 1,
            }),
        }
    }
    found
}

/// An order as a page operation.
pub(super) fn page_op(order: &PagingOrder) -> PageOp {
    PageOp {
        kind: match order.kind {
            OrderKind::Prefetch => page_ops::PageOpKind::Prefetch,
            OrderKind::Populate => page_ops::PageOpKind::Populate,
            OrderKind::Evict => page_ops::PageOpKind::Evict,
            OrderKind::Release => page_ops::PageOpKind::Release,
            OrderKind::Discard => page_ops::PageOpKind::Discard,
            OrderKind::Advise(true) => page_ops::PageOpKind::MostlyRead,
            OrderKind::Advise(false) => page_ops::PageOpKind::Written,
        },
        start: order.range.first.saturating_mul(GRANULE),
        bytes: u64::from(order.range.count) * GRANULE,
    }
}
