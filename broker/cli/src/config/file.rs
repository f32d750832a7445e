// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reader of one `weft.toml`. An error is reported in one line with file, line, key and reason, and
//! that part is ignored; the rest of the file counts.
#![forbid(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::{ConfigSection, KEYS, REMOVED, USER_TABLES};
use super::{ConfigOrigin, ConfigPath, ConfigValue, LoadedConfig};
use crate::users;
use weft_api::plain_text as clean;
use weft_protocol::variables::near;

/// Largest size of a settings file.
const MOST_BYTES: u64 = 1 << 20;

/// An error in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigMistake {
    /// The file.
    pub file: PathBuf,
    /// Its line, from 1; `None` if the whole file is wrong.
    pub line: Option<usize>,
    /// The key, and why it is wrong.
    pub why: String,
    /// Whether this user cannot correct it: the file belongs to the machine or another user.
    pub foreign: bool,
}

impl fmt::Display for ConfigMistake {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:", clean::page(&self.file.display().to_string()))?;
        if let Some(line) = self.line {
            write!(out, "{line}:")?;
        }
        write!(out, " {}", clean::page(&self.why))
    }
}

/// Reads a file into `loaded`, replacing values of the files read before.
pub fn read(path: &ConfigPath, loaded: &mut LoadedConfig) {
    let told = |line: Option<usize>, why: String| ConfigMistake {
        file: path.path.clone(),
        line,
        why,
        foreign: path.system || is_foreign(&path.path),
    };
    match content(&path.path) {
        Ok(Some(text)) => FileReading {
            text: &text,
            path: &path.path,
            told: &told,
            loaded,
        }
        .whole(),
        Ok(None) if path.named => loaded.errors.push(told(None, "does not exist".to_string())),
        Ok(None) => {}
        Err(why) => loaded.errors.push(told(None, why)),
    }
}

/// The file's text; `None` if the file does not exist.
fn content(path: &Path) -> Result<Option<String>, String> {
    if path == Path::new("/dev/null") {
        return Ok(Some(String::new()));
    }
    // Opens a pipe without waiting; the check below then rejects it.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = match File::options().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) => return Err(crate::text::why(&error)),
    };
    let facts = file.metadata().map_err(|error| crate::text::why(&error))?;
    if !facts.is_file() {
        return Err("is not a file".to_string());
    }
    if is_of_others(&facts) {
        return Err(format!(
            "belongs to user {}, who is neither root nor you; it is not read",
            users::name_of(facts.uid())
        ));
    }
    if facts.mode() & 0o002 != 0 {
        return Err("is writable by every user (chmod o-w); it is not read".to_string());
    }
    // Root chose the group of its own file. A user's own group usually contains only that user, and
    // files are often writable by it (umask 002).
    if facts.uid() != 0 && facts.mode() & 0o020 != 0 && ![0, rustix::process::getegid().as_raw()].contains(&facts.gid())
    {
        return Err(format!(
            "is writable by group {} (chmod g-w); it is not read",
            facts.gid()
        ));
    }
    let mut bytes = Vec::new();
    let read = file.take(MOST_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| crate::text::why(&error))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err("is larger than 1 MiB; it is not read".to_string());
    }
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| "is not UTF-8 text".to_string())
}

/// Whether the file is neither root's nor this user's.
fn is_foreign(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|facts| is_of_others(&facts))
}

fn is_of_others(facts: &std::fs::Metadata) -> bool {
    ![0, rustix::process::geteuid().as_raw()].contains(&facts.uid())
}

fn is_missing(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
    )
}

struct FileReading<'a> {
    text: &'a str,
    path: &'a Path,
    told: &'a dyn Fn(Option<usize>, String) -> ConfigMistake,
    loaded: &'a mut LoadedConfig,
}

impl FileReading<'_> {
    fn whole(&mut self) {
        let text = self.text;
        let table = match DeTable::parse(text) {
            Ok(table) => table,
            Err(error) => {
                let line = error.span().map(|span| self.line(span.start));
                let why = error.message().replace('\n', ", ");
                return self.wrong(line, &format!("{why}; the whole file is ignored"));
            }
        };
        for (name, value) in table.get_ref() {
            let (line, name) = (self.line(name.span().start), plain(name));
            let section = ConfigSection::ALL.into_iter().find(|section| section.name() == name);
            match (section, value.get_ref()) {
                (Some(section), DeValue::Table(table)) => self.section(section, table),
                (Some(_), _) => self.wrong(Some(line), &format!("{name}: must be a section: write [{name}]")),
                (None, _) => {
                    let known = ConfigSection::ALL.map(ConfigSection::name);
                    let sections = || format!("sections are {}", known.join(", "));
                    let homes = KEYS.iter().filter(|key| key.name == name);
                    let homes: Vec<_> = homes.map(|key| format!("[{}]", key.section.name())).collect();
                    let hint = match homes.is_empty() {
                        true => near(&name, known).map_or_else(sections, |near| format!("did you mean [{near}]?")),
                        false => format!("it belongs under {}", homes.join(" or ")),
                    };
                    self.wrong(Some(line), &format!("{name}: no such section; {hint}"));
                }
            }
        }
    }

    fn section(&mut self, section: ConfigSection, table: &DeTable<'_>) {
        for (name, value) in table {
            let (at, name) = (self.line(name.span().start), plain(name));
            let path = format!("{}.{name}", section.name());
            let users = USER_TABLES.iter().any(|(table, _)| *table == name);
            if users && section == ConfigSection::Broker {
                match value.get_ref() {
                    DeValue::Table(table) => self.users(&name, table),
                    _ => self.wrong(Some(at), &format!("{path}: must be a table of users: write [{path}]")),
                }
                continue;
            }
            let Some(key) = KEYS.iter().find(|key| key.section == section && key.name == name) else {
                self.unknown(section, &name, at);
                continue;
            };
            let checked = text_of(value.get_ref()).and_then(|text| {
                (key.check)(&text)?;
                Ok(text)
            });
            match checked {
                Ok(text) => {
                    let origin = self.origin(at);
                    let value = ConfigValue { text, origin };
                    self.loaded.values.insert((section, key.name), value);
                }
                Err(why) => self.wrong(Some(at), &format!("{path}: {why}")),
            }
        }
    }

    fn unknown(&mut self, section: ConfigSection, name: &str, at: usize) {
        let of = |wanted| KEYS.iter().filter(move |key| (key.section == section) == wanted);
        let mut known: Vec<&str> = of(true).map(|key| key.name).collect();
        if section == ConfigSection::Broker {
            known.extend(USER_TABLES.iter().map(|(table, _)| *table));
        }
        let other = of(false).find(|key| key.name == name);
        let of_broker = section == ConfigSection::Broker;
        let removed = REMOVED.iter().find(|(key, _)| of_broker && *key == name);
        let hint = match (removed, other, near(name, known)) {
            (Some((_, hint)), ..) => hint.to_string(),
            (None, Some(other), _) => format!("it belongs under [{}]", other.section.name()),
            (None, None, Some(near)) => format!("did you mean {near}?"),
            (None, None, None) => "weft config show lists all keys".to_string(),
        };
        self.wrong(Some(at), &format!("{}.{name}: no such key; {hint}", section.name()));
    }

    fn users(&mut self, table: &str, rows: &DeTable<'_>) {
        for (who, value) in rows {
            let (at, who) = (self.line(who.span().start), who.get_ref().to_string());
            let said = text_of(value.get_ref()).map(|figure| format!("{who}={figure}"));
            let origin = self.origin(at);
            let kept = said.and_then(|said| match table {
                "weights" => {
                    let (uid, weight) = users::weight(&said)?;
                    self.loaded.weights.insert(uid, (weight, origin));
                    Ok(())
                }
                "jobs" => {
                    let (uid, jobs) = users::jobs(&said)?;
                    self.loaded.jobs.insert(uid, (jobs, origin));
                    Ok(())
                }
                "memory" => {
                    let (uid, memory) = users::memory(&said)?;
                    self.loaded.memory.insert(uid, (memory, origin));
                    Ok(())
                }
                _ => {
                    let (uid, priority) = users::priority(&said)?;
                    self.loaded.priorities.insert(uid, (priority, origin));
                    Ok(())
                }
            });
            if let Err(why) = kept {
                self.wrong(Some(at), &format!("broker.{table}.{who}: {why}"));
            }
        }
    }

    fn wrong(&mut self, line: Option<usize>, why: &str) {
        let error = (self.told)(line, why.to_string());
        self.loaded.errors.push(error);
    }

    fn origin(&self, line: usize) -> ConfigOrigin {
        ConfigOrigin {
            file: self.path.to_path_buf(),
            line,
        }
    }

    /// The line of the byte at this offset, from 1.
    fn line(&self, at: usize) -> usize {
        let before = self.text.as_bytes().get(..at).unwrap_or_default();
        before.iter().filter(|byte| **byte == b'\n').count() + 1
    }
}

/// A key's name; `max_swapped_out` is `max-swapped-out`.
fn plain(name: &Spanned<toml::de::DeString<'_>>) -> String {
    name.get_ref().replace('_', "-")
}

/// A value in the form of its option.
fn text_of(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(figure) if figure.radix() == 10 => Ok(figure.as_str().replace('_', "")),
        DeValue::Float(figure) => Ok(figure.as_str().replace('_', "")),
        DeValue::Boolean(said) => Ok(said.to_string()),
        other => Err(format!("expected one value, found type {}", other.type_str())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn loaded(text: &str) -> (LoadedConfig, Vec<String>) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("weft.toml");
        fs::write(&path, text).expect("written");
        let mut loaded = LoadedConfig::default();
        let path = ConfigPath {
            path,
            named: true,
            system: false,
        };
        read(&path, &mut loaded);
        let before = format!("{}/", folder.path().display());
        let told = loaded.errors.iter().map(|error| error.to_string().replace(&before, ""));
        let told = told.collect();
        (loaded, told)
    }

    #[test]
    fn the_sample_of_the_packages_has_every_key_and_may_be_taken_as_it_is() {
        let sample = include_str!("../../../../deploy/weft.toml");
        assert_eq!(loaded(sample).1, [""; 0]);
        // With each example uncommented. An example is a line `# key = value`.
        let is_example = |line: &str| line.starts_with("# ") && line.contains(" = ");
        let taken = |line: &str| {
            if is_example(line) {
                line[2..].to_string()
            } else {
                line.to_string()
            }
        };
        let lines: Vec<String> = sample.lines().map(taken).collect();
        let (all, told) = loaded(&lines.join("\n"));
        assert_eq!(told, [""; 0]);
        let missing = KEYS.iter().filter(|key| all.text(key.section, key.name).is_none());
        assert_eq!(
            missing.map(super::super::keys::ConfigKey::path).collect::<Vec<_>>(),
            [""; 0]
        );
    }

    #[test]
    fn values_are_taken_as_options_take_them() {
        let (loaded, told) = loaded(
            "[broker]\npolicy = 'fikit'\nslowdown = 0.02\ndelay_bound = 1_000\n\
             [broker.weights]\nroot = 3\n[broker.priorities]\n0 = 'high'\n1001 = 2\n\
             [broker.jobs]\n'*' = 4\nroot = 9\n[broker.memory]\n'*' = '24GiB'\n\
             [run]\npriority = 'low'\nquiet = true\nqueue = false\nslo = '50ms'\n",
        );
        assert_eq!(told, [""; 0]);
        let text = |key| loaded.text(ConfigSection::Broker, key);
        assert_eq!(text("policy"), Some("fikit"));
        assert_eq!(text("slowdown"), Some("0.02"));
        assert_eq!(text("delay-bound"), Some("1000"));
        assert_eq!(loaded.weights[&0].0, 3);
        assert_eq!(loaded.priorities.keys().copied().collect::<Vec<_>>(), [0, 1001]);
        assert_eq!(loaded.weights[&0].1.line, 6);
        assert_eq!((loaded.jobs[&None].0, loaded.jobs[&Some(0)].0), (4, 9));
        assert_eq!(loaded.memory[&None].0, 24 << 30);
        let set = loaded.variables(|name| name == "WEFT_SLO");
        let shown: Vec<String> = set
            .iter()
            .map(|(name, value)| format!("{name}={}", value.display()))
            .collect();
        assert_eq!(shown, ["WEFT_PRIORITY=low", "WEFT_QUEUE=off", "WEFT_OUTCOME=off"]);
    }

    #[test]
    fn a_key_of_an_earlier_version_has_its_own_hint() {
        for (key, hint) in REMOVED {
            let (_, told) = loaded(&format!("[broker]\n{key} = 1\npolicy = 'fikit'\n"));
            assert_eq!(told, [format!("weft.toml:2: broker.{key}: no such key; {hint}")]);
            assert!(KEYS.iter().all(|known| known.name != key), "{key} is back");
        }
        let (_, told) = loaded("[run]\nspin = 1\n");
        assert!(!told[0].contains("removed"), "{told:?}");
    }

    #[test]
    fn a_mistake_is_a_line_with_its_place_and_the_rest_counts() {
        let (loaded, told) = loaded(
            "[broker]\npolcy = 'weft'\nslowdown = '200%'\nslo = '5ms'\npolicy = 'fikit'\n\
             [runs]\nx = 1\n[run]\npriority = 12\ndelay-bound = [1]\n[broker.weights]\nnobody-of-this-name = 3\nroot = 0\n",
        );
        let expected = [
            "weft.toml:2: broker.polcy: no such key; did you mean policy?",
            "weft.toml:3: broker.slowdown: \"200%\" is not a slowdown",
            "weft.toml:4: broker.slo: no such key; it belongs under [run]",
            "weft.toml:6: runs: no such section; did you mean [run]?",
            "weft.toml:9: run.priority: a priority is a whole number from 0",
            "weft.toml:10: run.delay-bound: no such key; it belongs under [broker]",
            "weft.toml:12: broker.weights.nobody-of-this-name: no user",
            "weft.toml:13: broker.weights.root: 0 is not between 1 and 100",
        ];
        assert_eq!(told.len(), expected.len(), "{told:#?}");
        for part in expected {
            assert!(told.iter().any(|line| line.starts_with(part)), "{part} in {told:#?}");
        }
        assert_eq!(loaded.text(ConfigSection::Broker, "policy"), Some("fikit"));
    }

    #[test]
    fn a_file_that_is_no_toml_is_told_with_its_line() {
        for (text, place) in [
            ("[broker]\npolicy = weft\n", "weft.toml:2: "),
            ("[broker]\ndelay-bound = 1\ndelay-bound = 2\n", "weft.toml:3: "),
            (
                "policy = 'weft'\n",
                "weft.toml:1: policy: no such section; it belongs under [broker]",
            ),
            ("broker = 3\n", "weft.toml:1: broker: must be a section"),
        ] {
            let (loaded, told) = loaded(text);
            assert_eq!(told.len(), 1, "{told:?}");
            assert!(told[0].starts_with(place) && !told[0].contains('\n'), "{told:?}");
            assert!(loaded.values.is_empty());
        }
    }

    #[test]
    fn what_is_no_file_of_its_users_is_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("weft.toml");
        let told = || content(&path).expect_err("not read");
        fs::create_dir(&path).expect("made");
        assert!(told().contains("not a file"), "{}", told());
        fs::remove_dir(&path).expect("removed");
        assert_eq!(content(&path), Ok(None));
        fs::write(&path, "").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("set");
        assert!(told().contains("every user"), "{}", told());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("set");
        fs::write(&path, vec![b' '; MOST_BYTES as usize + 1]).expect("written");
        assert!(told().contains("1 MiB"), "{}", told());
        assert_eq!(content(Path::new("/dev/null")), Ok(Some(String::new())));
    }

    #[test]
    fn a_mistake_in_the_machines_file_is_not_its_users() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("weft.toml");
        fs::write(&path, "[broker]\nturns = 3\n").expect("written");
        for system in [false, true] {
            let mut loaded = LoadedConfig::default();
            let path = ConfigPath {
                path: path.clone(),
                named: false,
                system,
            };
            read(&path, &mut loaded);
            let foreign: Vec<bool> = loaded.errors.iter().map(|wrong| wrong.foreign).collect();
            assert_eq!(foreign, [system]);
        }
    }
}
