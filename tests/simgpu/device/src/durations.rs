// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel times: by the first rule of the table that matches name and shape, else a default by the
//! shape.
//!
//! The default is `min(base + wave * threads / threads_at_once, longest)`: the time of a kernel
//! that reads and writes 16 bytes a thread at an A100's memory rate. It is no prediction; tests
//! that depend on times bring a table.
//!
//! Draws (quantiles, jitter) depend on the seed and the number of earlier draws, never on a clock.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use weft_engine::Ns;
use weft_random::Random;

use crate::config::{Config, DefaultDuration, KernelRule};

/// Most names whose matching rules are remembered; then the map starts again.
const REMEMBERED: usize = 65_536;

/// The table, ready for look-ups.
#[derive(Debug)]
pub struct Durations {
    rules: Vec<KernelRule>,
    default: DefaultDuration,
    jitter: f64,
    random: Random,
    /// Rules whose names match a name: globs are tried once a name.
    matching: HashMap<u64, Vec<u32>>,
}

impl Durations {
    /// The table of a configuration.
    pub fn new(config: &Config) -> Durations {
        Durations {
            rules: config.kernel.clone(),
            default: config.default.clone(),
            jitter: config.device.jitter,
            random: Random::from_state(config.device.seed),
            matching: HashMap::new(),
        }
    }

    /// Time of this launch, ns. `key` identifies `name` (an interned id), so that globs are tried
    /// once.
    pub fn of(&mut self, key: u64, name: &str, grid: [u32; 3], block: [u32; 3]) -> Ns {
        let rules = &self.rules;
        if self.matching.len() >= REMEMBERED {
            self.matching.clear();
        }
        let matching = self.matching.entry(key).or_insert_with(|| {
            (0u32..)
                .zip(rules)
                .filter(|(_, rule)| glob(&rule.name, name))
                .map(|(index, _)| index)
                .collect()
        });
        let rule = matching
            .iter()
            .filter_map(|&index| self.rules.get(index as usize))
            .find(|rule| {
                rule.grid.is_none_or(|wanted| wanted == grid) && rule.block.is_none_or(|wanted| wanted == block)
            })
            .map(|rule| (rule.ns, rule.quantiles.clone()));
        let ns = match rule {
            Some((Some(ns), _)) => ns,
            Some((None, Some(points))) => {
                let share = self.random.unit();
                quantile(&points, share)
            }
            _ => self.default_of(grid, block),
        };
        self.jittered(ns)
    }

    fn default_of(&self, grid: [u32; 3], block: [u32; 3]) -> Ns {
        let threads = grid
            .iter()
            .chain(&block)
            .fold(1u128, |product, &side| product.saturating_mul(u128::from(side)));
        let waves =
            threads.saturating_mul(u128::from(self.default.wave_ns)) / u128::from(self.default.threads_at_once.max(1));
        let ns = u128::from(self.default.base_ns).saturating_add(waves);
        u64::try_from(ns).unwrap_or(u64::MAX).min(self.default.longest_ns)
    }

    fn jittered(&mut self, ns: Ns) -> Ns {
        if self.jitter == 0.0 {
            return ns;
        }
        let factor = 1.0 + self.jitter * (2.0 * self.random.unit() - 1.0);
        (ns as f64 * factor) as Ns
    }
}

/// The value at `share` on the line through rising points.
fn quantile(points: &[(f64, u64)], share: f64) -> Ns {
    for pair in points.windows(2) {
        if let [(a, low), (b, high)] = *pair
            && share <= b
        {
            let width = b - a;
            let part = if width > 0.0 { (share - a) / width } else { 1.0 };
            return low + ((high - low) as f64 * part) as u64;
        }
    }
    points.last().map_or(0, |(_, ns)| *ns)
}

/// Whether `text` fits `pattern`, in which `*` is any text and `?` any one byte. Linear, but each
/// star is tried again at most once a byte.
pub(crate) fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while let Some(byte) = text.get(t) {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(wanted) if *wanted == b'?' || wanted == byte => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    p = at + 1;
                    t = from + 1;
                    star = Some((at, from + 1));
                }
                None => return false,
            },
        }
    }
    pattern
        .get(p..)
        .is_some_and(|rest| rest.iter().all(|byte| *byte == b'*'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn table(text: &str) -> Durations {
        Durations::new(&Config::parse(text, Path::new("test.toml")).unwrap())
    }

    #[test]
    fn globs() {
        for (pattern, text, fits) in [
            ("", "", true),
            ("*", "", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*b", "aab", true),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abcd", false),
            ("?b", "ab", true),
            ("?", "", false),
            ("*aab", "aaaab", true),
            ("sgemm*", "ampere_sgemm", false),
        ] {
            assert_eq!(glob(pattern, text), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn the_first_rule_that_matches_name_and_shape_decides() {
        let mut table = table(
            "[[kernel]]\nname = 'k*'\ngrid = [2, 1, 1]\nns = 10\n[[kernel]]\nname = 'k1'\nns = 20\n[[kernel]]\nname = '*'\nblock = [7, 1, 1]\nns = 30\n",
        );
        assert_eq!(table.of(1, "k1", [2, 1, 1], [1, 1, 1]), 10);
        assert_eq!(table.of(1, "k1", [1, 1, 1], [1, 1, 1]), 20);
        assert_eq!(table.of(2, "x", [1, 1, 1], [7, 1, 1]), 30);
        assert_eq!(table.of(2, "x", [1, 1, 1], [1, 1, 1]), 2_500);
    }

    #[test]
    fn the_default_grows_with_the_launch_and_is_bounded() {
        let mut table = table("");
        assert_eq!(table.of(1, "k", [864, 1, 1], [256, 1, 1]), 2_500 + 5_000);
        assert_eq!(table.of(1, "k", [u32::MAX; 3], [1024, 1, 1]), 20_000_000);
        assert_eq!(table.of(1, "k", [0; 3], [0; 3]), 2_500);
    }

    #[test]
    fn draws_repeat_with_the_seed_and_stay_in_range() {
        let text = "[device]\njitter = 0.1\nseed = 5\n[[kernel]]\nname = 'q'\nquantiles = [[0.0, 1000], [0.5, 2000], [1.0, 10000]]\n[[kernel]]\nname='n'\nns = 1000";
        let draw = || {
            let mut table = table(text);
            let mut draws = Vec::new();
            for _ in 0..1000 {
                draws.push((table.of(1, "q", [1; 3], [1; 3]), table.of(2, "n", [1; 3], [1; 3])));
            }
            draws
        };
        let draws = draw();
        assert_eq!(draws, draw());
        assert!(
            draws
                .iter()
                .all(|(q, n)| (900..=11_000).contains(q) && (900..=1_100).contains(n))
        );
        let below = draws.iter().filter(|(q, _)| *q < 2_000).count();
        assert!((400..600).contains(&below), "{below} of 1000 below the median");
    }
}
