// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keys of a calibration file, from `keys.toml`, which scripts read too.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::Deserialize;

const TEXT: &str = include_str!("../keys.toml");

/// One key.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// Name in a file; ends with its unit.
    #[serde(skip)]
    pub name: String,
    /// Unit, as the probe prints it.
    pub unit: String,
    /// Meaning.
    pub meaning: String,
    /// Part of the simulated GPU that reads it: `engine`, `device`, or none yet.
    pub read_by: String,
    /// Probe that measures it.
    pub probe: Option<String>,
    /// Name on the probe's line.
    #[serde(rename = "name")]
    pub line: Option<String>,
    /// Whether zero is refused.
    #[serde(default)]
    pub positive: bool,
}

/// All keys, in the order of `keys.toml`.
pub fn keys() -> &'static [Key] {
    static KEYS: OnceLock<Vec<Key>> = OnceLock::new();
    KEYS.get_or_init(|| {
        let by_name: BTreeMap<String, Key> = toml::from_str(TEXT).expect("a test reads the same text");
        let mut keys: Vec<Key> = by_name.into_iter().map(|(name, key)| Key { name, ..key }).collect();
        keys.sort_by_key(|key| TEXT.find(&format!("\n[{}]\n", key.name)));
        keys
    })
}

/// The key of this name.
pub(crate) fn find(name: &str) -> Result<&'static Key, String> {
    keys().iter().find(|key| key.name == name).ok_or_else(|| {
        // Most likely meant: the key with the longest common beginning.
        let common = |key: &Key| key.name.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
        let near = keys().iter().max_by_key(|key| common(key)).map_or("", |key| &key.name);
        format!("no key {name} (did you mean {near}?); keys.toml lists them")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_named_after_their_units_and_in_order() {
        for key in keys() {
            let end = match key.unit.as_str() {
                "ns" => "_ns",
                "bytes/us" => "_bytes_per_us",
                "bytes" => "_bytes",
                "ratio" => "_ratio",
                "threads" => "threads_at_once",
                unit => panic!("{}: unit {unit}", key.name),
            };
            assert!(key.name.ends_with(end), "{} is in {}", key.name, key.unit);
            assert!(["engine", "device", ""].contains(&key.read_by.as_str()), "{}", key.name);
            assert_eq!(key.probe.is_some(), key.line.is_some(), "{}", key.name);
            assert!(!key.meaning.is_empty(), "{}", key.name);
        }
        assert_eq!(keys().first().map(|key| key.name.as_str()), Some("slice_ns"));
    }

    #[test]
    fn no_two_keys_are_measured_by_one_line() {
        let mut lines: Vec<_> = keys()
            .iter()
            .filter_map(|key| Some((key.probe.as_ref()?, key.line.as_ref()?)))
            .collect();
        let count = lines.len();
        lines.sort();
        lines.dedup();
        assert_eq!(lines.len(), count);
    }
}
