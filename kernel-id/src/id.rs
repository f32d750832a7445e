// SPDX-License-Identifier: MIT OR Apache-2.0
//! Identity of a launch, as a value.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    demangle,
    hash::{SymbolKey, launch_hash},
};

/// Longest symbol that is kept, bytes. Template-heavy libraries reach about 5,000. A longer symbol
/// is cut and marked, and keeps the hash of the whole ([`KernelId::new`]).
pub const MAX_SYMBOL_BYTES: usize = 16 * 1024;

/// Identity of a kernel launch.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KernelId {
    /// Hash of the kernel's module image; 0 if unknown. The names of XLA and Triton are not unique.
    pub module: u64,
    /// Mangled symbol, as the driver knows it.
    pub symbol: String,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared: u32,
}

impl KernelId {
    /// An identity with its symbol cut at [`MAX_SYMBOL_BYTES`]. A cut symbol ends in `#` and the
    /// key of the whole, so that long symbols with a common beginning differ.
    pub fn new(module: u64, symbol: &str, grid: [u32; 3], block: [u32; 3], shared: u32) -> KernelId {
        let mut id = KernelId {
            module,
            symbol: String::new(),
            grid,
            block,
            shared,
        };
        id.symbol = bounded(symbol);
        id
    }

    /// A graph as an entry among kernels: its identity and its number of kernels.
    pub fn graph(identity: u64, kernels: usize) -> KernelId {
        KernelId::new(0, &format!("graph:{identity:016x}:{kernels}"), [0; 3], [0; 3], 0)
    }

    /// Number of kernels, if this is a graph.
    pub fn graph_kernels(&self) -> Option<usize> {
        self.symbol.strip_prefix("graph:")?.split_once(':')?.1.parse().ok()
    }

    /// Number of this identity in records. For a graph, the identity given at its creation.
    pub fn hash64(&self) -> u64 {
        if let Some(graph) = self.symbol.strip_prefix("graph:")
            && let Some((identity, _)) = graph.split_once(':')
            && let Ok(identity) = u64::from_str_radix(identity, 16)
        {
            return identity;
        }
        launch_hash(
            SymbolKey::new(self.module, self.symbol.as_bytes()),
            self.grid,
            self.block,
            self.shared,
        )
    }

    /// The symbol for people: demangled, template arguments shortened.
    pub fn short_name(&self) -> String {
        match self.graph_kernels() {
            Some(kernels) => format!("graph of {kernels} kernels"),
            None => demangle::short(&self.symbol),
        }
    }

    /// The launch shape for people: `(256,2) x (128) +4096 B`, without trailing ones and a zero of
    /// shared memory.
    pub fn shape(&self) -> String {
        let mut text = format!("{} x {}", extent(self.grid), extent(self.block));
        if self.shared > 0 {
            text.push_str(&format!(" +{} B", self.shared));
        }
        text
    }
}

impl fmt::Display for KernelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]", self.short_name(), self.shape())
    }
}

/// `(256,2)` for `[256, 2, 1]`.
fn extent(size: [u32; 3]) -> String {
    match size {
        [x, 1, 1] => format!("({x})"),
        [x, y, 1] => format!("({x},{y})"),
        [x, y, z] => format!("({x},{y},{z})"),
    }
}

fn bounded(symbol: &str) -> String {
    if symbol.len() <= MAX_SYMBOL_BYTES {
        return symbol.to_owned();
    }
    let whole = SymbolKey::new(0, symbol.as_bytes()).to_word();
    let mark = format!("#{whole:016x}");
    let mut end = MAX_SYMBOL_BYTES - mark.len();
    while !symbol.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{mark}", symbol.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_parts() {
        let id = KernelId::new(9, "_Z4axpyfPfS_", [10, 2, 1], [128, 1, 1], 64);
        let key = SymbolKey::new(9, b"_Z4axpyfPfS_");
        assert_eq!(id.hash64(), launch_hash(key, [10, 2, 1], [128, 1, 1], 64));
    }

    #[test]
    fn ceiling_of_a_symbol() {
        let at_the_ceiling = "k".repeat(MAX_SYMBOL_BYTES);
        assert_eq!(
            KernelId::new(0, &at_the_ceiling, [1; 3], [1; 3], 0).symbol,
            at_the_ceiling
        );
        for tail in ["a", "b", "é"] {
            let over = format!("{at_the_ceiling}{tail}");
            let id = KernelId::new(0, &over, [1; 3], [1; 3], 0);
            assert_eq!(id.symbol.len(), MAX_SYMBOL_BYTES);
        }
        let a = KernelId::new(0, &format!("{at_the_ceiling}a"), [1; 3], [1; 3], 0);
        let b = KernelId::new(0, &format!("{at_the_ceiling}b"), [1; 3], [1; 3], 0);
        assert_ne!(a, b);
        // A cut never splits a character.
        let wide = "é".repeat(MAX_SYMBOL_BYTES);
        assert!(KernelId::new(0, &wide, [1; 3], [1; 3], 0).symbol.len() <= MAX_SYMBOL_BYTES);
    }

    #[test]
    fn a_graph_keeps_its_identity() {
        let id = KernelId::graph(0xfeed_0000_0000_0001, 12);
        assert_eq!(id.hash64(), 0xfeed_0000_0000_0001);
        assert_eq!(id.short_name(), "graph of 12 kernels");
        assert_eq!(KernelId::new(0, "graphics", [1; 3], [1; 3], 0).graph_kernels(), None);
    }

    #[test]
    fn the_shape_leaves_ones_out() {
        assert_eq!(
            KernelId::new(0, "k", [256, 1, 1], [128, 2, 1], 0).shape(),
            "(256) x (128,2)"
        );
        assert_eq!(
            KernelId::new(0, "k", [1, 1, 4], [32, 1, 1], 48).shape(),
            "(1,1,4) x (32) +48 B"
        );
    }
}
