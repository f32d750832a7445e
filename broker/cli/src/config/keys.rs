// SPDX-License-Identifier: MIT OR Apache-2.0
//! The settings of `weft.toml`. Each has the name of its option without the leading dashes.
#![forbid(unsafe_code)]

use clap::ValueEnum;
use weft_api::metrics_address::MetricsAddress;
use weft_api::mps::MpsMode;
use weft_daemon::log_file;
use weft_protocol::{device_share, duration, latency_budget};
use weft_scheduler::PolicyName;

use crate::environment::BackingOption;
use crate::{text, users};

/// A section of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConfigSection {
    /// Options of `weft broker`.
    Broker,
    /// Options of `weft run`.
    Run,
}

impl ConfigSection {
    /// All sections.
    pub const ALL: [ConfigSection; 2] = [ConfigSection::Broker, ConfigSection::Run];

    /// The section's name.
    pub fn name(self) -> &'static str {
        match self {
            ConfigSection::Broker => "broker",
            ConfigSection::Run => "run",
        }
    }
}

/// A setting.
#[derive(Debug)]
pub struct ConfigKey {
    /// Its section.
    pub section: ConfigSection,
    /// Its name.
    pub name: &'static str,
    /// The variable that overrides the file.
    pub variable: Option<&'static str>,
    /// The default as text for people.
    pub built_in: &'static str,
    /// The unit of a plain number; empty if it has none or the value contains the unit.
    pub unit: &'static str,
    /// Whether a running broker applies a change (`reload` in the daemon).
    pub reload: bool,
    /// Checks a value.
    pub check: fn(&str) -> Result<(), String>,
}

impl ConfigKey {
    /// The name with its section.
    pub fn path(&self) -> String {
        format!("{}.{}", self.section.name(), self.name)
    }

    /// The value in the form of the setting's variable.
    pub fn in_variable(&self, value: &str) -> String {
        match (self.name, value) {
            // `quiet` is the opposite of WEFT_OUTCOME.
            ("quiet", "true") | ("device-priorities", "false") => "off".to_string(),
            ("quiet", "false") | ("device-priorities", "true") => "on".to_string(),
            ("queue", "true") => "on".to_string(),
            ("queue", "false") => "off".to_string(),
            _ => value.to_string(),
        }
    }

    /// The variable's value in the form of the setting.
    pub fn of_variable(&self, value: &str) -> String {
        match (self.name, value) {
            ("quiet", "off") => "true".to_string(),
            ("quiet", "on") => "false".to_string(),
            _ => value.to_string(),
        }
    }
}

/// The tables of users in `[broker]`, each with its option.
pub const USER_TABLES: [(&str, &str); 4] = [
    ("weights", "--weight-of"),
    ("priorities", "--priority-of"),
    ("jobs", "--jobs-of"),
    ("memory", "--memory-of"),
];

/// Settings of `[broker]` that name a path or address which only one broker can use. In the
/// machine's file they apply to the shared broker.
pub const OF_ONE_BROKER: [&str; 2] = ["metrics", "trace"];

/// The settings, in the order of `weft config show`.
pub const KEYS: &[ConfigKey] = &[
    broker_key("policy", "weft", |text| drop_value(text.parse::<PolicyName>())),
    reloaded(broker_key("slowdown", "1%", |text| {
        drop_value(latency_budget::parse_slowdown(text))
    })),
    figure("us", broker_key("delay-bound", "500", whole)),
    figure("ms", broker_key("longest-wait", "1000", whole)),
    figure("ms", broker_key("max-swapped-out", "500", whole)),
    figure("ms", broker_key("swapped-out-limit", "turns stay too short", whole)),
    figure("us", broker_key("switch-cost", "100; 0 under MPS", whole)),
    broker_key("mps", "off", |text| drop_value(text.parse::<MpsMode>())),
    broker_key("checkpoint", "off", |text| drop_value(text::checkpoint(text))),
    reloaded(figure(
        "s",
        broker_key("idle-exit", "never; 60 or 30 if a job starts it", |text| {
            drop_value(idle_exit(text))
        }),
    )),
    broker_key("trace", "none", |text| match text.starts_with('/') {
        true => Ok(()),
        false => Err("expected an absolute path".to_string()),
    }),
    broker_key("metrics", "a unix socket next to the broker's", |text| {
        drop_value(text.parse::<MetricsAddress>())
    }),
    broker_key("group", "all users", |text| drop_value(users::group(text))),
    reloaded(ConfigKey {
        variable: Some("WEFT_LOG"),
        ..broker_key("log", "info", log_level)
    }),
    run_key("priority", "WEFT_PRIORITY", "5", |text| {
        drop_value(text::priority(text))
    }),
    run_key("slowdown", "WEFT_SLOWDOWN", "the broker's", |text| {
        drop_value(latency_budget::parse_slowdown(text))
    }),
    run_key("slo", "WEFT_SLO", "no limit", |text| {
        drop_value(latency_budget::parse_slo(text))
    }),
    run_key("at-least", "WEFT_AT_LEAST", "none", |text| {
        drop_value(latency_budget::parse_at_least(text))
    }),
    run_key("memory", "WEFT_MEMORY", "it grows as memory is free", |text| {
        drop_value(text::memory(text))
    }),
    run_key("duration", "WEFT_DURATION", "medium", |text| {
        one_of(text, &["short", "medium", "long"])
    }),
    figure(
        "s",
        run_key("wait", "WEFT_WAIT", "no limit to begin", |text| match text {
            "no" => Ok(()),
            _ => whole(text).map_err(|why| format!("{why}, or no")),
        }),
    ),
    run_key("backing", "WEFT_BACKING", "device", |text| {
        drop_value(BackingOption::from_str(text, false))
    }),
    run_key("evict-idle", "WEFT_EVICT_IDLE", "never", |text| {
        drop_value(duration::parse_some(text))
    }),
    run_key("longest-evicted", "WEFT_LONGEST_EVICTED", "no limit", |text| {
        drop_value(duration::parse_some(text))
    }),
    run_key("gpu", "WEFT_GPU", "the job chooses", |_| Ok(())),
    run_key("queue", "WEFT_QUEUE", "on", |text| {
        one_of(text, &["on", "off", "always", "true", "false"])
    }),
    run_key("device-priorities", device_share::SWITCH, "on", |text| {
        one_of(text, &["on", "off", "true", "false"])
    }),
    run_key("quiet", "WEFT_OUTCOME", "false", yes_or_no),
];

const fn broker_key(name: &'static str, built_in: &'static str, check: fn(&str) -> Result<(), String>) -> ConfigKey {
    ConfigKey {
        section: ConfigSection::Broker,
        name,
        variable: None,
        built_in,
        unit: "",
        reload: false,
        check,
    }
}

const fn run_key(
    name: &'static str,
    variable: &'static str,
    built_in: &'static str,
    check: fn(&str) -> Result<(), String>,
) -> ConfigKey {
    ConfigKey {
        section: ConfigSection::Run,
        variable: Some(variable),
        ..broker_key(name, built_in, check)
    }
}

const fn figure(unit: &'static str, key: ConfigKey) -> ConfigKey {
    ConfigKey { unit, ..key }
}

const fn reloaded(key: ConfigKey) -> ConfigKey {
    ConfigKey { reload: true, ..key }
}

fn drop_value<T>(parsed: Result<T, impl std::fmt::Display>) -> Result<(), String> {
    parsed.map(drop).map_err(|why| why.to_string())
}

fn whole(text: &str) -> Result<(), String> {
    drop_value(text::whole::<u64>(text))
}

fn yes_or_no(text: &str) -> Result<(), String> {
    one_of(text, &["true", "false"])
}

fn one_of(text: &str, known: &[&str]) -> Result<(), String> {
    match known.contains(&text) {
        true => Ok(()),
        false => Err(format!("{text} is not one of {}", known.join(", "))),
    }
}

fn log_level(text: &str) -> Result<(), String> {
    match log_file::level(text) {
        Some(_) => Ok(()),
        None => Err(format!("{text} is not one of off, error, warn, info, debug, trace")),
    }
}

/// Seconds without clients after which a broker ends; `None` for `never`.
pub fn idle_exit(text: &str) -> Result<Option<u64>, String> {
    match text {
        "never" => Ok(None),
        _ => text
            .parse()
            .map(Some)
            .map_err(|_| "expected whole seconds, or never".to_string()),
    }
}

/// Keys of `[broker]` in earlier versions, each with a hint.
pub const REMOVED: [(&str, &str); 5] = [
    (
        "admission",
        "removed in 0.2.0: jobs are admitted by the one order that is left; delete the line",
    ),
    ("dilation", "removed: weft knows no simulated GPU; delete the line"),
    ("refine", "removed: profiles keep their times; delete the line"),
    (
        "spin",
        "removed in 0.2.0: weft spins if the machine has more than two cores; delete the line",
    ),
    ("turn", "removed in 0.2.0 with the policy timeslice; delete the line"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// Options that no file sets: they choose the action, not its parameters.
    const NOT_IN_FILES: &[&str] = &[
        "background",
        "detached",
        "constants",
        "replace",
        "shared",
        "socket",
        "weight-of",
        "priority-of",
        "jobs-of",
        "memory-of",
        "help",
        // These belong to one job.
        "check",
        "profile",
        "memory",
        "no-wait",
        "sm-share",
        "name",
    ];

    #[test]
    fn every_option_is_a_key_or_said_to_be_none() {
        let command = crate::Cli::command();
        for section in [ConfigSection::Broker, ConfigSection::Run] {
            let found = command.find_subcommand(section.name()).expect("a command");
            for option in found.get_arguments().filter_map(clap::Arg::get_long) {
                let hidden = section == ConfigSection::Broker && option == "quiet";
                let known = KEYS.iter().any(|key| key.section == section && key.name == option);
                assert!(
                    known
                        || hidden
                        || (section == ConfigSection::Run && option == "mps")
                        || NOT_IN_FILES.contains(&option),
                    "{}: --{option}",
                    section.name()
                );
            }
        }
    }

    #[test]
    fn built_in_values_of_the_switches_are_valid() {
        for name in ["policy", "slowdown", "delay-bound", "log"] {
            let key = KEYS.iter().find(|key| key.name == name).expect("a key");
            assert_eq!((key.check)(key.built_in), Ok(()), "{name}");
        }
        for (key, wrong) in [
            ("priority", "hgih"),
            ("wait", "soon"),
            ("idle-exit", "later"),
            ("quiet", "1"),
        ] {
            let key = KEYS.iter().find(|known| known.name == key).expect("a key");
            assert!((key.check)(wrong).is_err(), "{wrong}");
        }
    }
}
