//! What tells which memory a kernel touched.
//!
//! [`Evidence`] is the trait, with a back end for each source. Each launch's evidence says whether
//! it is [`Certainty::Exact`] or a guess:
//!
//! * [`SimulatedLedger`], of the simulated GPU: exact for the kernels whose parameters it
//!   understands, a guess for the others.
//! * [`HostResidency`], of a real one: the host's page table says which pages left the host while
//!   the kernel ran. It tells pages, not bytes, and reads not from writes. Not every driver takes
//!   pages off the host on the GPU's first touch, so its user tries that first.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use super::{Access, Touched};

/// What tells which memory a kernel touched.
pub trait Evidence {
    /// Ranges are rounded outwards to multiples of this many bytes; 1 is exact.
    fn granule(&self) -> u64;

    /// Whether [`Touched::access`] is known. Otherwise it is [`Access::ReadWrite`] throughout.
    fn tells_access(&self) -> bool;

    /// Appends what the launch of this number touched. `None` if nothing is known about it: such a
    /// launch is no observation, which is not the same as one that touched nothing.
    fn touched(&mut self, launch: u64, into: &mut Vec<Touched>) -> Option<Certainty>;
}

/// What evidence of one launch is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Certainty {
    /// It touched this, up to [`Evidence::granule`], and nothing else.
    Exact,
    /// Whoever tells it does not know the kernel: it may touch other parts, and evidence of an
    /// equal launch may differ.
    Guessed,
}

/// Launches that a [`SimulatedLedger`] remembers at most before they are asked for.
const REMEMBERED: usize = 1 << 16;

/// What the simulated GPU wrote down.
#[derive(Debug, Default)]
pub struct SimulatedLedger {
    launches: VecDeque<(u64, Certainty, Vec<Touched>)>,
}

impl SimulatedLedger {
    /// The ledger's entry for a launch; numbers ascend.
    pub fn record(&mut self, launch: u64, certainty: Certainty, touched: Vec<Touched>) {
        if self.launches.len() >= REMEMBERED {
            self.launches.pop_front();
        }
        self.launches.push_back((launch, certainty, touched));
    }
}

impl Evidence for SimulatedLedger {
    fn granule(&self) -> u64 {
        1
    }

    fn tells_access(&self) -> bool {
        true
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

/// The host's page table before and after a launch: `/proc/self/pagemap`, whose entries are 64 bits
/// a page with "present" in bit 63 and "swapped" in bit 62 (the kernel's
/// `Documentation/admin-guide/mm/pagemap.rst`). The caller evicts a range to the host, reads its
/// entries, launches, waits, and reads them again.
#[derive(Debug, Default)]
pub struct HostResidency {
    page: u64,
    ready: VecDeque<(u64, Vec<Touched>)>,
}

impl HostResidency {
    /// A driver moves no less than this on a fault.
    pub const GRANULE: u64 = 64 << 10;

    /// A driver brings more than what faulted: it widens a fault to the largest aligned part (a
    /// power of two of granules) of a block of this size of which more than half is there. So what
    /// left the host is what was touched and more, up to twice as much, and never less;
    /// [`super::Fitter::of_residency`] allows for that.
    pub const BLOCK: u64 = 2 << 20;

    /// With pages of this many bytes.
    pub fn new(page: u64) -> HostResidency {
        HostResidency {
            page: page.max(1),
            ready: VecDeque::new(),
        }
    }

    /// The entries of the pages from `address` on, before and after this launch. Entries that are
    /// in one alone say nothing.
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

    fn tells_access(&self) -> bool {
        false
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
