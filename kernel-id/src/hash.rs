// SPDX-License-Identifier: MIT OR Apache-2.0
//! 64-bit numbers that stand for identities.
//!
//! They are written into profiles and compared between processes, so **the algorithm never
//! changes** (the tests below pin values; if one fails, the change is wrong). All arithmetic is
//! modulo 2^64, words are little-endian:
//!
//! * `fold(a, b)` is the low half xor the high half of the 128-bit product `a * b`.
//! * [`SymbolKey`]: with `s` the FNV-1a 64 of the symbol's bytes, `fold(s ^ K1, module ^ K2)`.
//! * [`launch_hash`]: four words `w0 = grid.x | grid.y << 32`, `w1 = grid.z | block.x << 32`,
//!   `w2 = block.y | block.z << 32`, `w3 = shared`; `h = fold(key ^ w0, w1 ^ K1)`,
//!   `h = fold(h ^ w2, w3 ^ K2)`, `h ^= h >> 32`.
//! * [`graph_hash`]: `h = K3`, then `h = fold(h ^ kernel, K1) + 1` for each kernel in launch order,
//!   last `h = fold(h ^ count, K2)`.
//! * [`image_hash`]: `h = length ^ K3`, then `h = fold(h ^ word, K1)` rotated left by 23 for each
//!   8-byte word, the last one padded with zeros, last `h = fold(h, K2)`.
//!
//! A result of 0 becomes `K1`: 0 means "no kernel" in records. `w1 ^ K1` and `w3 ^ K2` are never 0
//! for a shape that a GPU accepts, so no shape swallows the other words.
//!
//! There is no defence against deliberate collisions: such a client harms only its own job's
//! estimates.

/// 2^64 / golden ratio, odd.
const K1: u64 = 0x9e37_79b9_7f4a_7c15;
/// From the expansion of pi, two high bits set, odd.
const K2: u64 = 0xe438_6a88_85a3_08d3;
/// From the expansion of pi, the next words, odd.
const K3: u64 = 0x1319_8a2e_0370_7345;

/// FNV's 64-bit offset basis and prime.
const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[inline]
fn not_zero(hash: u64) -> u64 {
    if hash == 0 { K1 } else { hash }
}

/// Hash of a module and a symbol, the parts of an identity that are known before a launch. It is
/// computed once per function handle and stored with the handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SymbolKey(u64);

impl SymbolKey {
    /// Key of a mangled symbol in a module whose image hashes to `module` (0 if unknown).
    pub fn new(module: u64, symbol: &[u8]) -> SymbolKey {
        let symbol = symbol
            .iter()
            .fold(FNV_BASIS, |h, byte| (h ^ u64::from(*byte)).wrapping_mul(FNV_PRIME));
        SymbolKey(fold(symbol ^ K1, module ^ K2))
    }

    /// The key as a word for an atomic.
    pub const fn to_word(self) -> u64 {
        self.0
    }

    /// The inverse of [`SymbolKey::to_word`].
    pub const fn from_word(word: u64) -> SymbolKey {
        SymbolKey(word)
    }
}

/// Identity of a launch, never 0. Two multiplications; touches no memory.
#[inline]
pub fn launch_hash(key: SymbolKey, grid: [u32; 3], block: [u32; 3], shared: u32) -> u64 {
    let [gx, gy, gz] = grid.map(u64::from);
    let [bx, by, bz] = block.map(u64::from);
    let h = fold(key.0 ^ (gx | gy << 32), (gz | bx << 32) ^ K1);
    let h = fold(h ^ (by | bz << 32), u64::from(shared) ^ K2);
    not_zero(h ^ h >> 32)
}

/// Identity of a graph from its kernels' hashes in launch order, never 0.
pub fn graph_hash(kernels: impl IntoIterator<Item = u64>) -> u64 {
    let mut count = 0u64;
    let h = kernels.into_iter().fold(K3, |h, kernel| {
        count += 1;
        fold(h ^ kernel, K1).wrapping_add(1)
    });
    not_zero(fold(h ^ count, K2))
}

/// Identity of a module image (cubin, PTX text, fat binary), never 0. About three cycles per word.
pub fn image_hash(image: &[u8]) -> u64 {
    let (words, rest) = image.as_chunks::<8>();
    let step = |h: u64, word: u64| fold(h ^ word, K1).rotate_left(23);
    let mut h = words
        .iter()
        .fold(image.len() as u64 ^ K3, |h, word| step(h, u64::from_le_bytes(*word)));
    if !rest.is_empty() {
        let last = rest.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        h = step(h, last);
    }
    not_zero(fold(h, K2))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// The values are in files: if this test fails, every existing profile has lost its kernels.
    #[test]
    fn the_algorithm_never_changes() {
        let key = SymbolKey::new(0, b"_Z4axpyfPfS_");
        assert_eq!(key.to_word(), 0xa0c9_92ea_9644_eee4);
        assert_eq!(launch_hash(key, [1, 1, 1], [256, 1, 1], 0), 0x00da_e40f_1f6a_e9ab);
        assert_eq!(
            launch_hash(SymbolKey::new(7, b"fusion_12"), [65535, 3, 2], [32, 8, 1], 49152),
            0x9182_4253_8b44_084b
        );
        assert_eq!(graph_hash([1, 2, 3]), 0x1bd9_3e89_b49c_3110);
        assert_eq!(graph_hash([]), 0x6d05_4bb5_60d9_e209);
        assert_eq!(image_hash(b""), 0x6d05_4bb5_60d9_e209);
        assert_eq!(image_hash(b"\x7fELF\x02\x01\x01\x33\x07\x00"), 0x222f_630c_928c_919b);
    }

    #[test]
    fn shapes_do_not_collide() {
        let mut seen = HashSet::new();
        for symbol in 0..8u32 {
            let key = SymbolKey::new(0, format!("kernel_{symbol}").as_bytes());
            for x in 1..200 {
                for y in 1..8 {
                    for (threads, shared) in [(32, 0), (64, 0), (128, 1024), (256, 0), (1024, 49152)] {
                        assert!(seen.insert(launch_hash(key, [x, y, 1], [threads, 1, 1], shared)));
                    }
                }
            }
        }
    }

    #[test]
    fn every_part_of_the_identity_counts() {
        let key = SymbolKey::new(1, b"k");
        let base = launch_hash(key, [2, 3, 4], [5, 6, 7], 8);
        let others = [
            launch_hash(SymbolKey::new(2, b"k"), [2, 3, 4], [5, 6, 7], 8),
            launch_hash(SymbolKey::new(1, b"j"), [2, 3, 4], [5, 6, 7], 8),
            launch_hash(key, [3, 2, 4], [5, 6, 7], 8),
            launch_hash(key, [2, 3, 5], [5, 6, 7], 8),
            launch_hash(key, [2, 3, 4], [6, 5, 7], 8),
            launch_hash(key, [2, 3, 4], [5, 6, 8], 8),
            launch_hash(key, [2, 3, 4], [5, 6, 7], 9),
        ];
        assert!(others.iter().all(|other| *other != base));
        assert_eq!(others.iter().collect::<HashSet<_>>().len(), others.len());
    }

    #[test]
    fn half_of_the_bits_change_with_one_bit_of_the_shape() {
        let key = SymbolKey::new(0, b"avalanche");
        let mut flips = 0;
        let mut pairs = 0;
        for bit in 0..16 {
            for base in [1u32, 77, 4096, 60000] {
                let a = launch_hash(key, [base, 1, 1], [256, 1, 1], 0);
                let b = launch_hash(key, [base ^ (1 << bit), 1, 1], [256, 1, 1], 0);
                flips += (a ^ b).count_ones();
                pairs += 1;
            }
        }
        let mean = f64::from(flips) / f64::from(pairs);
        assert!((26.0..38.0).contains(&mean), "{mean} of 64 bits change");
    }

    #[test]
    fn a_graph_is_its_kernels_in_their_order() {
        assert_ne!(graph_hash([1, 2]), graph_hash([2, 1]));
        assert_ne!(graph_hash([1]), graph_hash([1, 1]));
        assert_ne!(graph_hash([]), graph_hash([0]));
        assert_ne!(graph_hash([0]), graph_hash([0, 0]));
    }

    #[test]
    fn an_image_is_all_of_its_bytes() {
        let image: Vec<u8> = (0..=255).collect();
        let whole = image_hash(&image);
        for length in 0..image.len() {
            assert_ne!(image_hash(&image[..length]), whole);
        }
        for at in 0..image.len() {
            let mut other = image.clone();
            other[at] ^= 1;
            assert_ne!(image_hash(&other), whole);
        }
        assert_ne!(image_hash(&[0; 8]), image_hash(&[0; 9]));
    }
}
