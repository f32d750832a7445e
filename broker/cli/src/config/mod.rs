// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft.toml`: settings of the broker and `weft run` that neither option nor variable gives.
//!
//! [`keys`] lists all settings, [`file`] reads one file, `show` prints the values in force. A value
//! is kept as the text of its option, so that one parser checks both.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub mod file;
pub mod keys;
mod show;

pub use file::ConfigMistake;
use keys::ConfigSection;
pub use show::{ConfigArgs, main};

/// Variable that names one file instead of the system's and the user's.
pub const VARIABLE: &str = "WEFT_CONFIG";

/// Path of the machine's file.
pub const SYSTEM: &str = "/etc/weft/weft.toml";

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigOrigin {
    /// The file.
    pub file: PathBuf,
    /// Its line, from 1.
    pub line: usize,
}

/// A value of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigValue {
    /// The value in the form of its option.
    pub text: String,
    /// Its origin.
    pub origin: ConfigOrigin,
}

/// A file that is read if it exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigPath {
    /// Its absolute path.
    pub path: PathBuf,
    /// Whether the user named it, so that it must exist.
    pub named: bool,
    /// Whether it is the machine's file, which users cannot correct.
    pub system: bool,
}

/// The files that count here, by precedence: values override those of later files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigSources {
    /// The files.
    pub paths: Vec<ConfigPath>,
    /// Whether a shared broker reads them.
    pub shared: bool,
}

impl ConfigSources {
    /// The files of this process. A shared broker reads only the machine's file, or the file that
    /// [`VARIABLE`] names.
    pub fn of_environment(shared: bool) -> ConfigSources {
        ConfigSources::new(shared, |name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn new(shared: bool, variable: impl Fn(&str) -> Option<OsString>) -> ConfigSources {
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        if let Some(named) = variable(VARIABLE) {
            let path = absolute(PathBuf::from(named));
            let system = false;
            return ConfigSources {
                paths: vec![ConfigPath {
                    path,
                    named: true,
                    system,
                }],
                shared,
            };
        }
        let home = || variable("HOME").map(|home| PathBuf::from(home).join(".config"));
        // The XDG specification requires that relative paths are ignored.
        let folder = variable("XDG_CONFIG_HOME")
            .map(PathBuf::from)
            .filter(|folder| folder.is_absolute())
            .or_else(home);
        let own = folder.filter(|_| !shared).map(|folder| ConfigPath {
            path: absolute(folder.join("weft/weft.toml")),
            named: false,
            system: false,
        });
        let system = ConfigPath {
            path: PathBuf::from(SYSTEM),
            named: false,
            system: true,
        };
        ConfigSources {
            paths: own.into_iter().chain([system]).collect(),
            shared,
        }
    }

    /// The file that the user named, as an absolute path.
    pub fn named(&self) -> Option<&Path> {
        self.paths
            .iter()
            .find(|path| path.named)
            .map(|path| path.path.as_path())
    }

    /// Reads the files. Errors are collected, and their values left out.
    pub fn load(&self) -> LoadedConfig {
        let mut loaded = LoadedConfig::default();
        for path in self.paths.iter().rev() {
            file::read(path, &mut loaded);
            if path.system && !self.shared {
                // The machine's file is read first, so these values come only from it.
                let taken = |key: &str| keys::OF_ONE_BROKER.contains(&key);
                loaded.values.retain(|(_, key), _| !taken(key));
            }
        }
        loaded
    }
}

/// Contents of the files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadedConfig {
    /// Values by section and key.
    pub values: BTreeMap<(ConfigSection, &'static str), ConfigValue>,
    /// `[broker.weights]`: weights by uid.
    pub weights: BTreeMap<u32, (u32, ConfigOrigin)>,
    /// `[broker.priorities]`: most important priorities by uid.
    pub priorities: BTreeMap<u32, (u8, ConfigOrigin)>,
    /// `[broker.jobs]`: most jobs at once by uid; `None` is all others.
    pub jobs: BTreeMap<Option<u32>, (u32, ConfigOrigin)>,
    /// `[broker.memory]`: most device memory at once by uid, bytes; `None` is all others.
    pub memory: BTreeMap<Option<u32>, (u64, ConfigOrigin)>,
    /// Errors in the files.
    pub errors: Vec<ConfigMistake>,
}

impl LoadedConfig {
    /// The text of a setting, if a file sets it.
    pub fn text(&self, section: ConfigSection, key: &str) -> Option<&str> {
        let mut found = self
            .values
            .iter()
            .filter(|((of, name), _)| *of == section && *name == key);
        found.next().map(|(_, value)| value.text.as_str())
    }

    /// `[run]` as variables of the job, without those for which `is_set` is true.
    pub fn variables(&self, is_set: impl Fn(&str) -> bool) -> Vec<(&'static str, OsString)> {
        let keys = keys::KEYS.iter().filter(|key| key.section == ConfigSection::Run);
        let said = keys.filter_map(|key| Some((key, key.variable?, self.text(key.section, key.name)?)));
        said.filter(|(_, variable, _)| !is_set(variable))
            .map(|(key, variable, text)| (variable, key.in_variable(text).into()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(shared: bool, variables: &[(&str, &str)]) -> Vec<String> {
        let sources = ConfigSources::new(shared, |name| {
            let found = variables.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| OsString::from(value))
        });
        let shown = sources.paths.iter().map(|path| path.path.display().to_string());
        shown.collect()
    }

    #[test]
    fn the_machines_place_for_metrics_is_the_shared_brokers_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let (system, own) = (folder.path().join("system.toml"), folder.path().join("own.toml"));
        let text = "[broker]\nmetrics = '127.0.0.1:9431'\ntrace = '/t'\npolicy = 'fikit'\n";
        std::fs::write(&system, text).expect("written");
        let said = |shared, own_text: &str, key| {
            std::fs::write(&own, own_text).expect("written");
            let path = |path: &Path, system| ConfigPath {
                path: path.to_path_buf(),
                named: false,
                system,
            };
            let paths = vec![path(&own, false), path(&system, true)];
            let loaded = ConfigSources { paths, shared }.load();
            assert_eq!(loaded.errors, []);
            loaded.text(ConfigSection::Broker, key).map(str::to_string)
        };
        for (key, place) in [("metrics", "127.0.0.1:9431"), ("trace", "/t")] {
            assert_eq!(said(true, "", key).as_deref(), Some(place));
            assert_eq!(said(false, "", key), None, "a broker of one user: {key}");
        }
        assert_eq!(said(false, "", "policy").as_deref(), Some("fikit"));
        let own = said(false, "[broker]\nmetrics = '127.0.0.1:9'\n", "metrics");
        assert_eq!(own.as_deref(), Some("127.0.0.1:9"), "a user's own file counts");
    }

    #[test]
    fn a_users_file_goes_before_the_machines_and_a_named_one_before_both() {
        let home = ("HOME", "/home/ann");
        assert_eq!(sources(false, &[home]), ["/home/ann/.config/weft/weft.toml", SYSTEM]);
        assert_eq!(
            sources(false, &[home, ("XDG_CONFIG_HOME", "/cfg")]),
            ["/cfg/weft/weft.toml", SYSTEM]
        );
        assert_eq!(
            sources(false, &[home, ("XDG_CONFIG_HOME", "cfg")]),
            ["/home/ann/.config/weft/weft.toml", SYSTEM]
        );
        assert_eq!(sources(true, &[home]), [SYSTEM], "a shared broker is nobody's own");
        assert_eq!(sources(false, &[]), [SYSTEM]);
        for shared in [false, true] {
            assert_eq!(sources(shared, &[home, (VARIABLE, "/x.toml")]), ["/x.toml"]);
        }
    }
}
