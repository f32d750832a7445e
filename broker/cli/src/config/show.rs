// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft config`: the files that are read, and each setting's value with its origin.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use serde::Serialize;
use weft_daemon::options::Constants;

use super::keys::{ConfigKey, KEYS};
use super::{ConfigOrigin, ConfigSources, LoadedConfig};
use crate::text::{self, TextTable};
use crate::users;

/// Show the settings in force, each with its value and origin
#[derive(Debug, clap::Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct ConfigArgs {
    #[command(subcommand)]
    action: ConfigAction,
}

#[derive(Debug, Subcommand)]
enum ConfigAction {
    /// Print every setting with its value and origin; exit code 2 if a file is wrong
    Show {
        /// As JSON
        #[arg(long)]
        json: bool,
        /// As a shared broker reads them: without the user's own file
        #[arg(long)]
        shared: bool,
    },
    /// Print the times and rates without options, as a file for weft broker --constants
    #[command(hide = true)]
    Constants,
    /// Print the paths of the settings files, the one that takes precedence first
    Path {
        /// The files of a shared broker
        #[arg(long)]
        shared: bool,
    },
}

/// Version of the JSON; a change that breaks readers increments it.
const SCHEMA: u32 = 1;

#[derive(Debug, Serialize)]
struct ConfigPage {
    schema: u32,
    settings: Vec<ConfigRow>,
    errors: Vec<String>,
}

/// A setting in force.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct ConfigRow {
    key: String,
    value: String,
    /// Unit of a plain number.
    unit: &'static str,
    /// `built in`, a variable, or `FILE:LINE`.
    from: String,
    /// The variable that overrides the files.
    variable: Option<&'static str>,
    /// Whether a running broker applies a change on SIGHUP.
    reload: bool,
}

/// Shows the settings or the files.
pub fn main(args: ConfigArgs) -> Result<ExitCode> {
    match args.action {
        ConfigAction::Show { json, shared } => {
            let loaded = ConfigSources::of_environment(shared).load();
            let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
            let page = ConfigPage {
                schema: SCHEMA,
                settings: rows(&loaded, &variable),
                errors: loaded.errors.iter().map(ToString::to_string).collect(),
            };
            text::show(&page, json, render)?;
            if !json {
                page.errors.iter().for_each(|line| eprintln!("weft: {line}"));
            }
            Ok(match page.errors.is_empty() {
                true => ExitCode::SUCCESS,
                false => ExitCode::from(2),
            })
        }
        ConfigAction::Constants => {
            text::print(&serde_json::to_string_pretty(&Constants::default())?);
            Ok(ExitCode::SUCCESS)
        }
        ConfigAction::Path { shared } => {
            let lines: Vec<String> = ConfigSources::of_environment(shared)
                .paths
                .iter()
                .map(|path| match state(&path.path) {
                    "" => path.path.display().to_string(),
                    state => format!("{} ({state})", path.path.display()),
                })
                .collect();
            text::print(&lines.join("\n"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn state(path: &Path) -> &'static str {
    match std::fs::metadata(path) {
        Ok(_) => "",
        Err(_) => "does not exist",
    }
}

fn rows(loaded: &LoadedConfig, variable: &dyn Fn(&str) -> Option<String>) -> Vec<ConfigRow> {
    let at = |origin: &ConfigOrigin| format!("{}:{}", origin.file.display(), origin.line);
    let row = |key: &ConfigKey| {
        let said = key.variable.and_then(|name| Some((name, variable(name)?)));
        let (value, from) = match (said, loaded.values.get(&(key.section, key.name))) {
            (Some((name, value)), _) => (key.of_variable(&value), name.to_string()),
            (None, Some(value)) => (value.text.clone(), at(&value.origin)),
            (None, None) => (key.built_in.to_string(), "built in".to_string()),
        };
        ConfigRow {
            key: key.path(),
            value,
            unit: key.unit,
            from,
            variable: key.variable,
            reload: key.reload,
        }
    };
    let user = |table: &str, uid: Option<u32>, value: String, origin: &ConfigOrigin| ConfigRow {
        key: format!("broker.{table}.{}", users::name_or_others(uid)),
        value,
        unit: "",
        from: at(origin),
        variable: None,
        reload: true,
    };
    let weights = loaded.weights.iter();
    let weights = weights.map(|(uid, (weight, origin))| user("weights", Some(*uid), weight.to_string(), origin));
    let priorities = loaded.priorities.iter();
    let priorities =
        priorities.map(|(uid, (priority, origin))| user("priorities", Some(*uid), priority.to_string(), origin));
    let jobs = loaded.jobs.iter();
    let jobs = jobs.map(|(uid, (jobs, origin))| user("jobs", *uid, jobs.to_string(), origin));
    let memory = loaded.memory.iter();
    let memory = memory.map(|(uid, (bytes, origin))| user("memory", *uid, text::size(*bytes), origin));
    let settings = KEYS.iter().map(row).chain(weights).chain(priorities);
    settings.chain(jobs).chain(memory).collect()
}

fn render(page: &ConfigPage) -> String {
    let mut table = TextTable::new(["setting", "value", "from"]);
    for row in &page.settings {
        let value = match row.value.parse::<u64>() {
            Ok(figure) => format!("{figure} {}", row.unit).trim_end().to_string(),
            Err(_) => row.value.clone(),
        };
        table.row([row.key.clone(), value, row.from.clone()]);
    }
    table.lines().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys::ConfigSection;
    use crate::config::{ConfigPath, ConfigValue, file};

    #[test]
    fn a_variable_goes_before_a_file_and_a_users_file_before_the_machines() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("written");
            ConfigPath {
                path,
                named: false,
                system: false,
            }
        };
        let mut loaded = LoadedConfig::default();
        file::read(
            &path(
                "system",
                "[broker]\ndelay-bound = 5\npolicy = 'fikit'\n[broker.weights]\nroot = 2\n",
            ),
            &mut loaded,
        );
        file::read(
            &path("own", "[broker]\ndelay-bound = 7\n[run]\npriority = 3\n"),
            &mut loaded,
        );
        assert_eq!(loaded.errors, []);
        let rows = rows(&loaded, &|name| (name == "WEFT_PRIORITY").then(|| "low".to_string()));
        let found = |key: &str| {
            let row = rows.iter().find(|row| row.key == key).expect("a row");
            let from = row.from.replace(&format!("{}/", folder.path().display()), "");
            format!("{} from {from}", row.value)
        };
        assert_eq!(found("broker.delay-bound"), "7 from own:2");
        let page = render(&ConfigPage {
            schema: SCHEMA,
            settings: super::rows(&loaded, &|_| None),
            errors: Vec::new(),
        });
        assert!(page.contains("  7 us  "), "{page}");
        assert_eq!(found("broker.policy"), "fikit from system:3");
        assert_eq!(found("broker.weights.root"), "2 from system:5");
        assert_eq!(found("run.priority"), "low from WEFT_PRIORITY");
        assert_eq!(found("run.duration"), "medium from built in");
        assert_eq!(rows.len(), KEYS.len() + 1);
        let value = ConfigValue {
            text: "5".to_string(),
            origin: ConfigOrigin {
                file: "x".into(),
                line: 1,
            },
        };
        loaded.values.insert((ConfigSection::Run, "priority"), value);
        assert_eq!(loaded.text(ConfigSection::Run, "priority"), Some("5"));
    }
}
