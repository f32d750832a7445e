// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options that the plugin adds to Slurm's commands, and the check of their values.
#![forbid(unsafe_code)]

use std::ffi::CStr;

use super::weft::{amount, priority, slowdown};

/// The length limit of a value. Slurm passes values on in the job's environment.
const LONGEST_VALUE: usize = 4096;

/// An option of `sbatch`, `srun` and `salloc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobOption {
    /// `--gpu-priority`.
    Priority,
    /// `--gpu-mem`.
    Memory,
    /// `--gpu-slowdown`.
    Slowdown,
    /// `--gpu-profile`.
    Profile,
}

impl JobOption {
    /// All options. Slurm knows an option by its index in this array.
    pub const ALL: [JobOption; 4] = [
        JobOption::Priority,
        JobOption::Memory,
        JobOption::Slowdown,
        JobOption::Profile,
    ];

    /// Its name, without the dashes.
    pub fn name(self) -> &'static CStr {
        match self {
            JobOption::Priority => c"gpu-priority",
            JobOption::Memory => c"gpu-mem",
            JobOption::Slowdown => c"gpu-slowdown",
            JobOption::Profile => c"gpu-profile",
        }
    }

    /// The name of its value in the help text.
    pub fn value_name(self) -> &'static CStr {
        match self {
            JobOption::Priority => c"high|normal|low|idle",
            JobOption::Memory => c"20G",
            JobOption::Slowdown => c"2%",
            JobOption::Profile => c"NAME|FILE",
        }
    }

    /// Its line in the help text.
    pub fn help(self) -> &'static CStr {
        match self {
            JobOption::Priority => c"weft: priority on a shared GPU, a name or a number from 0 (first) to 9",
            JobOption::Memory => c"weft: GPU memory at the job's peak, on each of its nodes",
            JobOption::Slowdown => c"weft: the mean slowdown that background jobs may cause this one",
            JobOption::Profile => c"weft: the job's profile (weft profile)",
        }
    }

    /// The job's variable that the option sets.
    pub fn variable(self) -> &'static str {
        match self {
            JobOption::Priority => "WEFT_PRIORITY",
            JobOption::Memory => "WEFT_MEMORY",
            JobOption::Slowdown => "WEFT_SLOWDOWN",
            JobOption::Profile => "WEFT_PROFILE",
        }
    }

    /// The value of the variable, or one line with the mistake in the option's value.
    pub fn read(self, text: &str) -> Result<String, String> {
        let name = self.name().to_string_lossy();
        let wrong = |why: String| format!("--{name}: {}", one_line(&why));
        if text.len() > LONGEST_VALUE {
            return Err(wrong(format!("more than {LONGEST_VALUE} characters")));
        }
        match self {
            JobOption::Priority => match priority::parse(text) {
                Some(level) => Ok(level.to_string()),
                None => Err(wrong(format!("{text} is no priority: {}", priority::CHOICE))),
            },
            // weft refuses a small number without a unit.
            JobOption::Memory => amount::parse(text).map(|b| format!("{b}b")).map_err(wrong),
            JobOption::Slowdown => {
                let part = slowdown::parse_slowdown(text).map_err(wrong)?;
                Ok(slowdown::slowdown_text(part))
            }
            JobOption::Profile => {
                let trimmed = text.trim();
                match trimmed.is_empty() || trimmed.chars().any(char::is_control) {
                    true => Err(wrong("a name of a profile, or a file (with a slash)".to_string())),
                    false => Ok(trimmed.to_string()),
                }
            }
        }
    }
}

/// The text with each control character replaced by a blank.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_the_variables_of_weft_run() {
        for (option, text, value) in [
            (JobOption::Priority, "high", "0"),
            (JobOption::Priority, "Low", "7"),
            (JobOption::Priority, "3", "3"),
            (JobOption::Memory, "20G", "21474836480b"),
            (JobOption::Memory, "1.5GiB", "1610612736b"),
            (JobOption::Slowdown, "2%", "2%"),
            (JobOption::Slowdown, "0.02", "2%"),
            (JobOption::Profile, "resnet", "resnet"),
            (JobOption::Profile, "./resnet.profile", "./resnet.profile"),
        ] {
            assert_eq!(option.read(text).as_deref(), Ok(value), "{option:?} {text}");
        }
    }

    #[test]
    fn wrong_values_are_told_in_one_line_with_the_options_name() {
        let long = "x".repeat(LONGEST_VALUE + 1);
        for (option, text) in [
            (JobOption::Priority, "highest"),
            (JobOption::Priority, "10"),
            (JobOption::Priority, ""),
            (JobOption::Memory, "20"),
            (JobOption::Memory, "much\nmore"),
            (JobOption::Memory, "-1G"),
            (JobOption::Slowdown, "2"),
            (JobOption::Slowdown, "200%"),
            (JobOption::Profile, "  "),
            (JobOption::Profile, "a\nb"),
            (JobOption::Profile, &long),
        ] {
            let why = option.read(text).expect_err(text);
            let begin = format!("--{}: ", option.name().to_string_lossy());
            assert!(why.starts_with(&begin) && why.len() > begin.len(), "{why}");
            assert!(!why.contains('\n'), "{why}");
        }
    }
}
