// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels by the number in a record.

use std::collections::HashMap;

use crate::KernelId;

/// A bounded table of kernels by hash: a client that invents kernels without end fills only its own
/// table.
#[derive(Debug, Clone, Default)]
pub struct Names {
    table: HashMap<u64, KernelId>,
    refused: u64,
    conflicts: u64,
}

/// Most kernels of a table. The busiest client seen (a compiler's tuner) has some thousands.
pub const MAX_NAMES: usize = 65_536;

impl Names {
    /// An empty table.
    pub fn new() -> Names {
        Names::default()
    }

    /// Enters a kernel under its hash in records. The first name stays; a different second one
    /// counts as a conflict. False if the table is full.
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

    /// The kernel with this hash.
    pub fn get(&self, hash: u64) -> Option<&KernelId> {
        self.table.get(&hash)
    }

    /// The kernel, or the number if unknown.
    pub fn display(&self, hash: u64) -> String {
        match self.get(hash) {
            Some(id) => id.to_string(),
            None => format!("kernel {hash:016x}"),
        }
    }

    /// All kernels, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &KernelId)> {
        self.table.iter().map(|(hash, id)| (*hash, id))
    }

    /// Number of kernels.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Number of kernels refused by a full table.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Number of times that a hash came with a different kernel: a collision, or a misbehaving
    /// client.
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
