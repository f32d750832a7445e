// SPDX-License-Identifier: MIT OR Apache-2.0
//! A job's allocations, which show which words are pointers.
#![forbid(unsafe_code)]

/// Live allocations of a job, by address. They never overlap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allocations {
    /// Start and end.
    by_address: Vec<(u64, u64)>,
}

impl Allocations {
    /// Makes an empty list.
    pub fn new() -> Allocations {
        Allocations::default()
    }

    /// Adds an allocation. Overlapped ones are removed: their free was missed.
    pub fn add(&mut self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        if bytes == 0 {
            return;
        }
        let first = self.by_address.partition_point(|(_, other)| *other <= address);
        let last = self.by_address.partition_point(|(begin, _)| *begin < end);
        self.by_address.splice(first..last.max(first), [(address, end)]);
    }

    /// Removes the allocation that begins at `address`; `false` if there is none.
    pub fn remove(&mut self, address: u64) -> bool {
        match self.by_address.binary_search_by_key(&address, |(begin, _)| *begin) {
            Ok(at) => {
                self.by_address.remove(at);
                true
            }
            Err(_) => false,
        }
    }

    /// Start and end of the allocation that contains `address`.
    pub fn find(&self, address: u64) -> Option<(u64, u64)> {
        let at = self.by_address.partition_point(|(begin, _)| *begin <= address);
        let (begin, end) = *self.by_address.get(at.checked_sub(1)?)?;
        (address < end).then_some((begin, end))
    }

    /// As [`Allocations::find`], with a guess of the index in `near`, which is set to the right
    /// one.
    #[inline]
    pub(super) fn find_near(&self, address: u64, near: &mut u32) -> Option<(u64, u64)> {
        if let Some((begin, end)) = self.by_address.get(*near as usize)
            && (*begin..*end).contains(&address)
        {
            return Some((*begin, *end));
        }
        let at = self.by_address.partition_point(|(begin, _)| *begin <= address);
        let (begin, end) = *self.by_address.get(at.checked_sub(1)?)?;
        *near = (at - 1) as u32;
        (address < end).then_some((begin, end))
    }

    /// All allocations by address: start and end.
    pub fn all(&self) -> &[(u64, u64)] {
        &self.by_address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_where_they_lie() {
        let mut live = Allocations::new();
        live.add(1000, 100);
        live.add(100, 100);
        live.add(200, 0);
        assert_eq!(live.find(99), None);
        assert_eq!(live.find(100), Some((100, 200)));
        assert_eq!(live.find(199), Some((100, 200)));
        assert_eq!(live.find(200), None);
        assert_eq!(live.find(1050), Some((1000, 1100)));
        live.add(150, 900);
        assert_eq!(live.all(), [(150, 1050)], "frees that were missed");
        assert!(!live.remove(100));
        assert!(live.remove(150));
        assert!(live.all().is_empty());
    }
}
