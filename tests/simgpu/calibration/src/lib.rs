// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calibration files: the figures of one GPU, each with its source. This package's `README.md` has
//! the format, `keys.toml` the keys.
//!
//! Invariant: a [`Calibration`] was checked whole (keys, sources, numbers, base), so its readers
//! need no checks. The program contains all files of this folder.
#![forbid(unsafe_code)]

mod file;
mod keys;
mod settings;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use keys::{Key, keys};
pub use settings::Figures;

mod embedded {
    include!(concat!(env!("OUT_DIR"), "/files.rs"));
}

/// Calibration if no file is named.
pub const STANDARD: &str = "a100-like";

/// Reason for which a calibration cannot be used, one line.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// The file cannot be read.
    #[error("cannot read calibration {0}: {1}")]
    Unreadable(PathBuf, std::io::Error),
    /// There is no file of that name.
    #[error("no calibration {name}: there are {}; a path to a file works too", known.join(", "))]
    NoSuchName {
        /// Name that was asked for.
        name: String,
        /// Names that exist.
        known: Vec<&'static str>,
    },
    /// The file is no calibration.
    #[error("calibration {origin}: {what}")]
    Malformed {
        /// The file.
        origin: String,
        /// The mistake, and the remedy.
        what: String,
    },
}

/// One value.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// Value, in the key's unit.
    pub value: f64,
    /// Source.
    pub source: String,
    /// Number of samples.
    pub n: Option<u64>,
    /// Tenth percentile of the samples.
    pub p10: Option<f64>,
    /// Ninetieth percentile of the samples.
    pub p90: Option<f64>,
}

/// A checked file.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    /// The GPU that was measured.
    pub gpu: String,
    /// File of values that are missing here.
    pub base: Option<String>,
    /// Values by key.
    values: BTreeMap<&'static str, Value>,
}

/// The names of the files in this folder.
pub fn names() -> Vec<&'static str> {
    embedded::FILES.iter().map(|(name, _)| *name).collect()
}

impl Calibration {
    /// An empty calibration on a base.
    pub fn new(gpu: &str, base: Option<&str>) -> Calibration {
        Calibration {
            gpu: gpu.to_owned(),
            base: base.map(str::to_owned),
            values: BTreeMap::new(),
        }
    }

    /// A file of this folder by name, or any file by its path (a text with a slash or with the end
    /// `.toml`).
    pub fn load(name_or_path: &str) -> Result<Calibration, CalibrationError> {
        if name_or_path.contains('/') || name_or_path.ends_with(".toml") {
            let path = Path::new(name_or_path);
            let text =
                std::fs::read_to_string(path).map_err(|error| CalibrationError::Unreadable(path.to_owned(), error))?;
            return Calibration::parse(&text, name_or_path);
        }
        Calibration::parse(embedded(name_or_path)?, name_or_path)
    }

    /// Reads a calibration from TOML text. Errors name `origin`.
    pub fn parse(text: &str, origin: &str) -> Result<Calibration, CalibrationError> {
        let calibration = file::read(text, origin)?;
        if let Some(base) = &calibration.base {
            let base = file::read(embedded(base)?, base)?;
            if base.base.is_some() {
                return Err(CalibrationError::Malformed {
                    origin: origin.to_owned(),
                    what: "its base has a base itself: name that one".to_owned(),
                });
            }
        }
        Ok(calibration)
    }

    /// The text of a file; keys in the order of `keys.toml`.
    pub fn text(&self) -> String {
        file::write(self)
    }

    /// Its own value of a key, not its base's.
    pub fn own(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// The value of a key, or its base's.
    pub fn value(&self, key: &str) -> Option<Value> {
        self.own(key).cloned().or_else(|| {
            let base = embedded(self.base.as_deref()?).ok()?;
            file::read(base, STANDARD).ok()?.values.remove(key)
        })
    }

    /// Sets a value. Refuses one that a file may not hold.
    pub fn set(&mut self, key: &str, value: Value) -> Result<(), CalibrationError> {
        let malformed = |what| CalibrationError::Malformed {
            origin: self.gpu.clone(),
            what,
        };
        let key = keys::find(key).map_err(malformed)?;
        file::check(key, &value).map_err(malformed)?;
        self.values.insert(&key.name, value);
        Ok(())
    }
}

fn embedded(name: &str) -> Result<&'static str, CalibrationError> {
    embedded::FILES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, text)| *text)
        .ok_or_else(|| CalibrationError::NoSuchName {
            name: name.to_owned(),
            known: names(),
        })
}
