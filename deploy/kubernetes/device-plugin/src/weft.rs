// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules for the values of a job's variables. weft's own parsers are included by file, because
//! their package depends on some forty others.
#![forbid(unsafe_code)]

/// Number of priorities.
pub const PRIORITIES: usize = 10;

#[path = "../../../../broker/protocol/src/amount.rs"]
pub mod amount;
#[path = "../../../../broker/protocol/src/duration.rs"]
pub mod duration;
#[path = "../../../../broker/protocol/src/priority.rs"]
pub mod priority;
#[path = "../../../../broker/protocol/src/slowdown.rs"]
pub mod slowdown;
#[path = "../../../../broker/protocol/src/variables.rs"]
pub mod variables;

/// Checks the name and the value of a job's variable. A variable without a rule may have any value.
pub fn check(variable: &str, value: &str) -> Result<(), String> {
    let one_of = |known: &[&str]| match known.contains(&value) {
        true => Ok(()),
        false => Err(format!("{value} is not one of {}", known.join(", "))),
    };
    match variable {
        "WEFT_PRIORITY" => {
            let found = priority::parse(value).map(drop);
            found.ok_or_else(|| format!("{value} is no priority: {}", priority::CHOICE))
        }
        "WEFT_SLOWDOWN" => slowdown::parse_slowdown(value).map(drop),
        "WEFT_AT_LEAST" => slowdown::parse_at_least(value).map(drop),
        "WEFT_SLO" => duration::parse_slo(value).map(drop),
        "WEFT_MEMORY" => value.parse::<amount::MemoryNeed>().map(drop),
        "WEFT_EVICT_IDLE" | "WEFT_LONGEST_EVICTED" => duration::parse_some(value).map(drop),
        "WEFT_WAIT" if value == "no" => Ok(()),
        "WEFT_WAIT" => {
            let seconds = value.parse::<u64>().map(drop);
            seconds.map_err(|_| format!("{value} is neither a whole number of seconds nor no"))
        }
        "WEFT_DURATION" => one_of(&["short", "medium", "long"]),
        "WEFT_BACKING" => one_of(&["device", "managed", "auto", "movable"]),
        "WEFT_QUEUE" => one_of(&["on", "off", "0", "always"]),
        "WEFT_OUTCOME" | "WEFT_DEVICE_PRIORITIES" => one_of(&["on", "off"]),
        "WEFT_LOG" => one_of(&["off", "error", "warn", "info", "debug", "trace"]),
        "WEFT_PROFILE" if value.is_empty() || value.contains(char::is_control) => {
            Err("a profile is a name, or a file in the container".to_string())
        }
        "WEFT_MODE" => one_of(&["serve", "profile", "trace", "off"]),
        _ => variables::mistyped(variable).map_or(Ok(()), Err),
    }
}
