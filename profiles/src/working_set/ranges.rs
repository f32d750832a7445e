// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets of addresses, as sorted disjoint ranges.
#![forbid(unsafe_code)]

use super::{Access, Touched};

/// Start and end.
pub(super) type Span = (u64, u64);

/// Sorts and unites ranges, adjoining ones too; drops empty ones.
pub(super) fn unite(spans: &mut Vec<Span>) {
    spans.retain(|(begin, end)| begin < end);
    spans.sort_unstable();
    let mut kept = 0;
    for at in 0..spans.len() {
        let (begin, end) = spans[at];
        if kept > 0 && begin <= spans[kept - 1].1 {
            spans[kept - 1].1 = spans[kept - 1].1.max(end);
        } else {
            spans[kept] = (begin, end);
            kept += 1;
        }
    }
    spans.truncate(kept);
}

/// Widens each range outwards to multiples of `page` bytes, then unites.
pub(super) fn widen(spans: &mut Vec<Span>, page: u64) {
    let page = page.max(1);
    for (begin, end) in spans.iter_mut() {
        *begin = *begin / page * page;
        *end = end.div_ceil(page).saturating_mul(page);
    }
    unite(spans);
}

/// A span relative to a pointer, shifted by half the address space so that nothing is negative.
pub(super) fn shifted((begin, end): (i64, i64)) -> Span {
    const MIDDLE: u64 = 1 << 63;
    ((begin as u64).wrapping_add(MIDDLE), (end as u64).wrapping_add(MIDDLE))
}

/// Total size, bytes.
pub(super) fn size(spans: &[Span]) -> u64 {
    spans.iter().map(|(begin, end)| end - begin).sum()
}

/// Intersection of two united sets.
pub(super) fn common(one: &[Span], other: &[Span]) -> Vec<Span> {
    let (mut i, mut j) = (0, 0);
    let mut both = Vec::new();
    while let (Some(a), Some(b)) = (one.get(i), other.get(j)) {
        let (begin, end) = (a.0.max(b.0), a.1.min(b.1));
        if begin < end {
            both.push((begin, end));
        }
        if a.1 < b.1 { i += 1 } else { j += 1 }
    }
    both
}

/// Access to a united set as a whole.
pub(super) fn access_of(touched: impl Iterator<Item = Access>) -> Option<Access> {
    touched.reduce(Access::and)
}

/// United spans of touched ranges.
pub(super) fn spans(touched: &[Touched]) -> Vec<Span> {
    let mut spans: Vec<Span> = touched.iter().map(|one| (one.address, one.end())).collect();
    unite(&mut spans);
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_addresses() {
        let mut spans = vec![(50, 60), (10, 20), (20, 30), (15, 18), (70, 70)];
        unite(&mut spans);
        assert_eq!(spans, [(10, 30), (50, 60)]);
        assert_eq!(size(&spans), 30);
        assert_eq!(common(&spans, &[(0, 12), (25, 55)]), [(10, 12), (25, 30), (50, 55)]);
        widen(&mut spans, 16);
        assert_eq!(spans, [(0, 32), (48, 64)]);
    }
}
