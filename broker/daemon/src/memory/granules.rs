//! From ranges of addresses to granules, and from orders to errands.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashSet, VecDeque};

use weft_paging::{GRANULE, Order, Range, What};
use weft_protocol::errands::{self, Errand};

/// What is confirmed by one errand at most: should it be away after all, launches wait for its end.
const LONGEST_CONFIRM: u64 = 16 * GRANULE;

/// The granules that a range of addresses lies in.
pub(super) fn granules(start: u64, bytes: u64) -> Range {
    let first = start / GRANULE;
    let end = start.saturating_add(bytes).div_ceil(GRANULE);
    Range {
        first,
        count: u32::try_from(end - first).unwrap_or(u32::MAX),
    }
}

/// Errands that ask once more for those of these granules that should be there, in their order.
pub(super) fn confirms(wanted: impl Iterator<Item = u64>, there: impl Fn(u64) -> bool) -> VecDeque<Errand> {
    let mut seen = HashSet::new();
    let mut found: VecDeque<Errand> = VecDeque::new();
    for granule in wanted.filter(|granule| there(*granule)) {
        if !seen.insert(granule) {
            continue;
        }
        let start = granule * GRANULE;
        match found.back_mut() {
            Some(last) if last.start + last.bytes == start && last.bytes < LONGEST_CONFIRM => last.bytes += GRANULE,
            _ => found.push_back(Errand {
                what: errands::What::Confirm,
                start,
                bytes: GRANULE,
            }),
        }
    }
    found
}

/// What of these granules lies in ranges that are there.
pub(super) fn held(ranges: &BTreeMap<u64, (u64, u64)>, wanted: Range) -> Vec<Range> {
    let from = wanted.first.saturating_mul(GRANULE);
    let to = wanted.end().saturating_mul(GRANULE);
    let before = ranges.range(..from).next_back();
    let parts = before.into_iter().chain(ranges.range(from..to));
    let mut found: Vec<Range> = Vec::new();
    for (start, (bytes, _)) in parts {
        let range = granules(*start, *bytes);
        let first = range.first.max(wanted.first).max(found.last().map_or(0, Range::end));
        let end = range.end().min(wanted.end());
        if first >= end {
            continue;
        }
        match found.last_mut() {
            Some(last) if last.end() == first => last.count += (end - first) as u32,
            _ => found.push(Range {
                first,
                count: (end - first) as u32,
            }),
        }
    }
    found
}

/// Neighbours as ranges.
pub(super) fn joined(granules: impl Iterator<Item = u64>) -> Vec<Range> {
    let mut found: Vec<Range> = Vec::new();
    for granule in granules {
        match found.last_mut() {
            Some(last) if last.end() == granule => last.count += 1,
            _ => found.push(Range {
                first: granule,
                count: 1,
            }),
        }
    }
    found
}

/// An order as its client is told.
pub(super) fn errand(order: &Order) -> Errand {
    Errand {
        what: match order.what {
            What::Prefetch => errands::What::Prefetch,
            What::Populate => errands::What::Populate,
            What::Evict => errands::What::Evict,
            What::Release => errands::What::Release,
            What::Discard => errands::What::Discard,
            What::Advise(true) => errands::What::MostlyRead,
            What::Advise(false) => errands::What::Written,
        },
        start: order.range.first.saturating_mul(GRANULE),
        bytes: u64::from(order.range.count) * GRANULE,
    }
}
