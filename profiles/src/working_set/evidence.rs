// SPDX-License-Identifier: MIT OR Apache-2.0
//! Evidence: sources that show which memory a kernel touched.
//!
//! Each launch's [`Evidence`] is [`Certainty::Exact`] or a guess. There is a back end for each
//! source:
//!
//! * [`SimulatedLedger`], of the simulated GPU: exact for kernels whose parameters it understands.
//! * [`HostResidency`], of a real GPU: the host's page table shows which pages left the host during
//!   the kernel. It shows pages, not bytes, and no kind of access. Not every driver takes pages off
//!   the host on first touch, so the caller tests that first.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use super::{Access, Touched};

/// Source of the memory ranges that kernels touched.
pub trait Evidence {
    /// Granule, bytes: ranges are rounded outwards to its multiples; 1 is exact.
    fn granule(&self) -> u64;

    /// Appends the ranges that a launch touched. `None` if the source knows nothing about the
    /// launch, unlike a launch that touched nothing.
    fn touched(&mut self, launch: u64, into: &mut Vec<Touched>) -> Option<Certainty>;
}

/// Certainty of one launch's evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Certainty {
    /// The launch touched exactly this, up to [`Evidence::granule`].
    Exact,
    /// The source does not know the kernel: the launch may touch other parts, and equal launches
    /// may differ.
    Guessed,
}

/// Most launches that a [`SimulatedLedger`] keeps until they are read.
const MAX_LAUNCHES: usize = 65_536;

/// Ledger of the simulated GPU.
#[derive(Debug, Default)]
pub struct SimulatedLedger {
    launches: VecDeque<(u64, Certainty, Vec<Touched>)>,
}

impl SimulatedLedger {
    /// Records a launch; numbers ascend.
    pub fn record(&mut self, launch: u64, certainty: Certainty, touched: Vec<Touched>) {
        if self.launches.len() >= MAX_LAUNCHES {
            self.launches.pop_front();
        }
        self.launches.push_back((launch, certainty, touched));
    }
}

impl Evidence for SimulatedLedger {
    fn granule(&self) -> u64 {
        1
    }

    fn touched(&mut self, launch: u64, into: &mut Vec<Touched>) -> Option<Certainty> {
        while let Some((number, certainty, touched)) = self.launches.front() {
            if *number > launch {
                break;
            }
            let mine = (*number == launch).then_some(*certainty);
            if mine.is_some() {
                into.extend_from_slice(touched);
            }
            self.launches.pop_front();
            if mine.is_some() {
                return mine;
            }
        }
        None
    }
}

/// The host's page table before and after a launch. `/proc/self/pagemap` has 64 bits per page, with
/// "present" in bit 63 and "swapped" in bit 62 (kernel:
/// `Documentation/admin-guide/mm/pagemap.rst`). The caller evicts a range to the host, reads its
/// entries, launches, waits, and reads them again.
#[derive(Debug, Default)]
pub struct HostResidency {
    page: u64,
    ready: VecDeque<(u64, Vec<Touched>)>,
}

impl HostResidency {
    /// Least size that a driver moves after a fault, bytes.
    pub const GRANULE: u64 = 64 << 10;

    /// Size of an aligned block, bytes. A driver widens a fault to the largest aligned power of two
    /// of granules in the block that is more than half present. So up to twice the touched memory
    /// leaves the host, never less; [`super::Fitter::of_residency`] allows for that.
    pub const BLOCK: u64 = 2 << 20;

    /// Makes a reader for pages of `page` bytes.
    pub fn new(page: u64) -> HostResidency {
        HostResidency {
            page: page.max(1),
            ready: VecDeque::new(),
        }
    }

    /// Compares the entries of the pages from `address` on, before and after a launch. Surplus
    /// entries on either side are ignored.
    pub fn compare(&mut self, launch: u64, address: u64, before: &[u8], after: &[u8]) {
        let mut touched: Vec<Touched> = Vec::new();
        let entries = before.as_chunks::<8>().0.iter().zip(after.as_chunks::<8>().0);
        for (number, (before, after)) in (0u64..).zip(entries) {
            let on_host = |entry: &[u8; 8]| u64::from_le_bytes(*entry) >> 62 != 0;
            if !on_host(before) || on_host(after) {
                continue;
            }
            let begin = address.saturating_add(number.saturating_mul(self.page));
            match touched.last_mut() {
                Some(last) if last.end() == begin => last.bytes += self.page,
                _ => touched.push(Touched {
                    address: begin,
                    bytes: self.page,
                    access: Access::ReadWrite,
                }),
            }
        }
        match self.ready.back_mut() {
            // Another range of the same launch.
            Some((number, ranges)) if *number == launch => ranges.append(&mut touched),
            _ => self.ready.push_back((launch, touched)),
        }
    }
}

impl Evidence for HostResidency {
    fn granule(&self) -> u64 {
        self.page.max(HostResidency::GRANULE)
    }

    fn touched(&mut self, launch: u64, into: &mut Vec<Touched>) -> Option<Certainty> {
        let at = self.ready.iter().position(|(number, _)| *number == launch)?;
        for (_, touched) in self.ready.drain(..=at).filter(|(number, _)| *number == launch) {
            into.extend(touched);
        }
        Some(Certainty::Exact)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(address: u64, bytes: u64) -> Touched {
        Touched {
            address,
            bytes,
            access: Access::ReadWrite,
        }
    }

    #[test]
    fn pages_that_left_the_host_were_touched() {
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        let bytes = |entries: &[u64]| -> Vec<u8> { entries.iter().flat_map(|entry| entry.to_le_bytes()).collect() };
        let before = bytes(&[PRESENT | 7, PRESENT, SWAPPED | 5, 0, PRESENT, PRESENT]);
        let after = bytes(&[PRESENT | 7, 0, 0, 0, PRESENT, 0]);
        let mut evidence = HostResidency::new(4096);
        evidence.compare(3, 0x10000, &before, &after);
        evidence.compare(3, 0x90000, &before[..8], &after[8..16]);
        evidence.compare(4, 0, &[1, 2, 3], &[]);
        let mut touched = Vec::new();
        assert_eq!(evidence.touched(9, &mut touched), None);
        assert_eq!(evidence.touched(3, &mut touched), Some(Certainty::Exact));
        assert_eq!(
            touched,
            [range(0x11000, 8192), range(0x15000, 4096), range(0x90000, 4096)]
        );
        touched.clear();
        assert!(
            evidence.touched(4, &mut touched).is_some() && touched.is_empty(),
            "known to have touched nothing"
        );
    }

    #[test]
    fn the_ledger_answers_for_its_own_launches() {
        let mut ledger = SimulatedLedger::default();
        ledger.record(1, Certainty::Exact, vec![range(1, 1)]);
        ledger.record(3, Certainty::Guessed, vec![range(3, 1)]);
        let mut touched = Vec::new();
        assert_eq!(ledger.touched(2, &mut touched), None);
        assert_eq!(ledger.touched(3, &mut touched), Some(Certainty::Guessed));
        assert_eq!(touched, [range(3, 1)]);
    }
}
