//! From the number in a record back to the kernel.

use std::collections::HashMap;

use crate::KernelId;

/// A table of kernels by hash. It is bounded: a client that invents kernels without end fills its
/// own table and no more.
#[derive(Debug, Clone, Default)]
pub struct Names {
    table: HashMap<u64, KernelId>,
    refused: u64,
    conflicts: u64,
}

/// Kernels a table holds. The busiest client seen (a compiler's tuner) makes some thousands.
pub const MAX_NAMES: usize = 65_536;

impl Names {
    /// An empty table.
    pub fn new() -> Names {
        Names::default()
    }

    /// Enters a kernel under the hash that its records carry. The first name stays; a second,
    /// different one is counted as a conflict. False where the table is full.
    pub fn insert(&mut self, hash: u64, id: KernelId) -> bool {
        if let Some(known) = self.table.get(&hash) {
            if *known != id {
                self.conflicts += 1;
            }
            return true;
        }
        if self.table.len() >= MAX_NAMES {
            self.refused += 1;
            return false;
        }
        self.table.insert(hash, id);
        true
    }

    /// The kernel of a hash.
    pub fn get(&self, hash: u64) -> Option<&KernelId> {
        self.table.get(&hash)
    }

    /// What to print for a hash: the kernel, or the number.
    pub fn display(&self, hash: u64) -> String {
        match self.get(hash) {
            Some(id) => id.to_string(),
            None => format!("kernel {hash:016x}"),
        }
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &KernelId)> {
        self.table.iter().map(|(hash, id)| (*hash, id))
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Kernels that found the table full.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Times that one hash came with two different kernels: a collision, or a client that lies.
    pub fn conflicts(&self) -> u64 {
        self.conflicts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(symbol: &str) -> KernelId {
        KernelId::new(0, symbol, [1; 3], [1; 3], 0)
    }

    #[test]
    fn the_first_name_stays_and_conflicts_are_counted() {
        let mut names = Names::new();
        assert!(names.insert(1, id("a")));
        assert!(names.insert(1, id("a")));
        assert_eq!(names.conflicts(), 0);
        assert!(names.insert(1, id("b")));
        assert_eq!(names.conflicts(), 1);
        assert_eq!(names.get(1), Some(&id("a")));
        assert_eq!(names.display(2), "kernel 0000000000000002");
    }

    #[test]
    fn ceiling_of_the_table() {
        let mut names = Names::new();
        for hash in 0..MAX_NAMES as u64 {
            assert!(names.insert(hash, id("k")));
        }
        assert!(!names.insert(MAX_NAMES as u64, id("k")));
        assert!(names.insert(5, id("k")), "a known one is still welcome");
        assert_eq!(names.len(), MAX_NAMES);
        assert_eq!(names.refused(), 1);
    }
}
