// SPDX-License-Identifier: MIT OR Apache-2.0
//! The environment of a task: the variables that weft sets, and those that it removes again.
//!
//! Environments are inherited. A step inherits that of its batch script, and a job that another job
//! submits inherits all of that job's. So the plugin marks its variables with the number of the job
//! that they were set for.
#![forbid(unsafe_code)]

use super::options::JobOption;
use super::settings::PluginSettings;
use super::weft::priority;

/// The variable with the number of the job that the others were set for.
pub const OF_JOB: &str = "WEFT_SLURM_JOB";

/// The variable that processes of one job on a node have in common.
pub const GANG: &str = "WEFT_GANG";

/// Variables that the plugin sets, some of which a batch script may set as well.
const OURS: [&str; 8] = [
    OF_JOB,
    GANG,
    "WEFT_NAME",
    "WEFT_PRIORITY",
    "WEFT_MEMORY",
    "WEFT_SLOWDOWN",
    "WEFT_PROFILE",
    CLIENT_PRIORITY,
];

/// The driver's variable for an MPS client's rank, the lower rank, and the first priority that gets
/// it. `weft run` sets the same.
const CLIENT_PRIORITY: &str = "CUDA_MPS_CLIENT_PRIORITY";
const BELOW_NORMAL: &str = "1";
const FIRST_BELOW_NORMAL: u8 = 5;

/// The most characters of a job's name in weft.
const LONGEST_NAME: usize = 64;

/// The environment of a task that is about to begin.
pub trait Variables {
    /// The variable's value, if it is set and can be read.
    fn get(&self, name: &str) -> Option<String>;
    /// Whether it is set, even to a value that cannot be read (too long, or not UTF-8).
    fn is_set(&self, name: &str) -> bool {
        self.get(name).is_some()
    }
    /// Sets it, replacing any other value.
    fn set(&mut self, name: &str, value: &str);
    /// Removes it.
    fn remove(&mut self, name: &str);

    /// Sets it if it is not set or is empty.
    fn set_default(&mut self, name: &str, value: &str) {
        if self.get(name).map_or(!self.is_set(name), |old| old.is_empty()) {
            self.set(name, value);
        }
    }
}

/// A job's numbers in Slurm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlurmJob {
    /// The job's number. Each job of an array has its own.
    pub id: u32,
    /// The array's number, and the job's index in it.
    pub array: Option<(u32, u32)>,
}

impl SlurmJob {
    /// The gang of the job's processes.
    pub fn gang(self) -> String {
        format!("slurm-{}", self.id)
    }

    /// Its number in Slurm's commands. For the last job of an array, `id` means the whole array.
    pub fn number(self) -> String {
        match self.array {
            Some((array, place)) => format!("{array}_{place}"),
            None => self.id.to_string(),
        }
    }

    /// The job's title in weft: its name, and its number in the form of `squeue`.
    pub fn title(self, name: &str) -> String {
        let number = format!("[{}]", self.number());
        let room = LONGEST_NAME.saturating_sub(number.len());
        let short: String = name.trim().chars().take(room).collect();
        format!("{short}{number}")
    }
}

/// Puts a task under weft if its step holds a GPU, and otherwise removes weft's library from it.
/// `chosen` has the values of the options that were given. Returns a line for each error.
pub fn prepare(
    task: &mut dyn Variables,
    job: SlurmJob,
    settings: &PluginSettings,
    chosen: &[(JobOption, String)],
) -> Vec<String> {
    let of = task.get(OF_JOB);
    let own = of.as_deref() == Some(job.id.to_string().as_str());
    if of.is_some() && !own {
        OURS.iter().for_each(|name| task.remove(name));
    }
    if !holds_gpu(task) {
        unload(task, &settings.library);
        return Vec::new();
    }
    if task.is_set("LD_PRELOAD") && task.get("LD_PRELOAD").is_none() {
        return vec!["LD_PRELOAD is too long or not UTF-8: the task runs without weft".to_string()];
    }
    let mut wrong = Vec::new();
    for (option, text) in chosen {
        match option.read(text) {
            Ok(value) => {
                let value = match option {
                    JobOption::Profile => from_submit_folder(task, value),
                    JobOption::Priority | JobOption::Memory | JobOption::Slowdown => value,
                };
                task.set(option.variable(), &value);
            }
            // The user's command refused this value already, unless it loaded another plugin.
            Err(why) => wrong.push(why),
        }
    }
    if let Some(level) = settings.default_priority {
        task.set_default("WEFT_PRIORITY", &level.to_string());
    }
    if let Some(bytes) = shards(task).zip(settings.shard_bytes) {
        task.set_default("WEFT_MEMORY", &format!("{}b", bytes.0.saturating_mul(bytes.1)));
    }
    let said = task.get("WEFT_PRIORITY").and_then(|text| priority::parse(&text));
    if said.is_none_or(|level| level >= FIRST_BELOW_NORMAL)
        && task.get("WEFT_DEVICE_PRIORITIES").as_deref() != Some("off")
    {
        task.set_default(CLIENT_PRIORITY, BELOW_NORMAL);
    }
    let name = task.get("SLURM_JOB_NAME").unwrap_or_default();
    task.set_default("WEFT_NAME", &job.title(&name));
    task.set(GANG, &job.gang());
    task.set(OF_JOB, &job.id.to_string());
    task.set_default("WEFT_SOCKET", &settings.socket);
    // A broker that a job started would end with the job, and other jobs would lose it.
    task.set_default("WEFT_AUTOSTART", "0");
    let preload = task.get("LD_PRELOAD").unwrap_or_default();
    let mut parts = others(&preload, &settings.library);
    parts.push(&settings.library);
    task.set("LD_PRELOAD", &parts.join(":"));
    wrong
}

/// The folder that the job was submitted from.
const SUBMIT_FOLDER: &str = "SLURM_SUBMIT_DIR";

/// The path of a file that the user named. A relative path starts at the folder that the job was
/// submitted from. A process of the job may be in another folder when it first requests a GPU
/// (`--chdir`, `cd`).
fn from_submit_folder(task: &dyn Variables, file: String) -> String {
    let folder = task.get(SUBMIT_FOLDER).filter(|folder| folder.starts_with('/'));
    match folder {
        Some(folder) if file.contains('/') && !file.starts_with('/') => {
            let below = file.strip_prefix("./").unwrap_or(&file);
            format!("{}/{below}", folder.trim_end_matches('/'))
        }
        _ => file,
    }
}

/// Whether the step holds a GPU, or a part of one. Slurm removes its variables from a step without
/// a GPU. `CUDA_VISIBLE_DEVICES` is not enough, since the user may have set it.
pub fn holds_gpu(task: &dyn Variables) -> bool {
    let slurms = ["SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE", "SLURM_SHARDS_ON_NODE"];
    let said = |name: &str| task.get(name).is_some_and(|value| !value.is_empty());
    let visible = task.get("CUDA_VISIBLE_DEVICES");
    let some = visible.is_some_and(|list| !list.is_empty() && list != "NoDevFiles");
    some && slurms.iter().any(|name| said(name))
}

/// Number of shards that the step holds on this node.
fn shards(task: &dyn Variables) -> Option<u64> {
    task.get("SLURM_SHARDS_ON_NODE")?
        .parse()
        .ok()
        .filter(|shards| *shards > 0)
}

/// Removes the library from `LD_PRELOAD` of a task that inherited it.
fn unload(task: &mut dyn Variables, library: &str) {
    let Some(preload) = task.get("LD_PRELOAD") else {
        return;
    };
    let parts = others(&preload, library);
    match parts.is_empty() {
        _ if !preload.contains(library) => {}
        true => task.remove("LD_PRELOAD"),
        false => task.set("LD_PRELOAD", &parts.join(":")),
    }
}

/// The other entries of `LD_PRELOAD`.
fn others<'a>(preload: &'a str, library: &str) -> Vec<&'a str> {
    let parts = preload.split([':', ' ']);
    parts.filter(|part| !part.is_empty() && *part != library).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const LIBRARY: &str = "/usr/lib/weft/libweft.so";

    impl Variables for BTreeMap<String, String> {
        fn get(&self, name: &str) -> Option<String> {
            BTreeMap::get(self, name).cloned()
        }
        fn set(&mut self, name: &str, value: &str) {
            self.insert(name.to_string(), value.to_string());
        }
        fn remove(&mut self, name: &str) {
            BTreeMap::remove(self, name);
        }
    }

    fn environment(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect()
    }

    fn sharing() -> BTreeMap<String, String> {
        environment(&[
            ("CUDA_VISIBLE_DEVICES", "0"),
            ("SLURM_GPUS_ON_NODE", "1"),
            ("SLURM_SHARDS_ON_NODE", "20"),
            ("SLURM_JOB_NAME", "train"),
        ])
    }

    fn job(id: u32) -> SlurmJob {
        SlurmJob { id, array: None }
    }

    fn prepared(task: &mut BTreeMap<String, String>, id: u32, chosen: &[(JobOption, &str)]) {
        let chosen: Vec<_> = chosen
            .iter()
            .map(|(option, text)| (*option, text.to_string()))
            .collect();
        let wrong = prepare(task, job(id), &PluginSettings::default(), &chosen);
        assert_eq!(wrong, [""; 0]);
    }

    fn value<'a>(task: &'a BTreeMap<String, String>, name: &str) -> &'a str {
        task.get(name).map_or("", |value| value.as_str())
    }

    #[test]
    fn a_step_with_a_gpu_is_under_weft() {
        let mut task = sharing();
        task.set("LD_PRELOAD", "/a.so");
        prepared(
            &mut task,
            7,
            &[(JobOption::Priority, "high"), (JobOption::Slowdown, "2%")],
        );
        for (name, expected) in [
            ("LD_PRELOAD", "/a.so:/usr/lib/weft/libweft.so"),
            ("WEFT_PRIORITY", "0"),
            ("WEFT_SLOWDOWN", "2%"),
            ("WEFT_MEMORY", "21474836480b"),
            ("WEFT_NAME", "train[7]"),
            ("WEFT_GANG", "slurm-7"),
            ("WEFT_SOCKET", "/run/weft/broker.sock"),
            ("WEFT_AUTOSTART", "0"),
            ("CUDA_MPS_CLIENT_PRIORITY", ""),
        ] {
            assert_eq!(value(&task, name), expected, "{name}");
        }
    }

    #[test]
    fn twice_is_as_once_and_a_steps_own_option_goes_first() {
        let mut batch = sharing();
        prepared(&mut batch, 7, &[(JobOption::Priority, "low")]);
        assert_eq!(value(&batch, "CUDA_MPS_CLIENT_PRIORITY"), "1");
        let mut step = batch.clone();
        prepared(&mut step, 7, &[]);
        assert_eq!(step, batch);
        prepared(
            &mut step,
            7,
            &[(JobOption::Priority, "high"), (JobOption::Memory, "5G")],
        );
        assert_eq!(
            (value(&step, "WEFT_PRIORITY"), value(&step, "WEFT_MEMORY")),
            ("0", "5368709120b")
        );
    }

    #[test]
    fn a_step_without_a_gpu_has_nothing_preloaded() {
        let plain = environment(&[("HOME", "/h"), ("CUDA_VISIBLE_DEVICES", "0")]);
        let mut task = plain.clone();
        prepared(&mut task, 7, &[(JobOption::Priority, "high")]);
        assert_eq!(task, plain, "what a login shell says of devices is no GPU of the step");
        for (before, after) in [
            (LIBRARY, ""),
            ("/a.so:/usr/lib/weft/libweft.so", "/a.so"),
            ("/a.so /b.so", "/a.so /b.so"),
        ] {
            let mut task = environment(&[("LD_PRELOAD", before)]);
            prepared(&mut task, 7, &[]);
            assert_eq!(value(&task, "LD_PRELOAD"), after);
        }
    }

    #[test]
    fn what_cannot_be_read_is_left_alone() {
        /// An environment with a variable that cannot be read.
        struct Unreadable(BTreeMap<String, String>, &'static str);
        impl Variables for Unreadable {
            fn get(&self, name: &str) -> Option<String> {
                self.0.get(name).filter(|_| name != self.1).cloned()
            }
            fn is_set(&self, name: &str) -> bool {
                self.0.contains_key(name)
            }
            fn set(&mut self, name: &str, value: &str) {
                assert_ne!(name, self.1, "to {value}");
                self.0.insert(name.to_string(), value.to_string());
            }
            fn remove(&mut self, name: &str) {
                assert_ne!(name, self.1);
                self.0.remove(name);
            }
        }
        let settings = PluginSettings::default();
        for (name, lines) in [("WEFT_NAME", 0), ("LD_PRELOAD", 1)] {
            let mut task = Unreadable(sharing(), name);
            task.0.set(name, "long");
            let told = prepare(&mut task, job(7), &settings, &[]);
            assert_eq!((told.len(), value(&task.0, name)), (lines, "long"), "{told:?}");
            assert_eq!(task.0.contains_key(OF_JOB), lines == 0);
        }
    }

    #[test]
    fn a_job_that_another_one_submits_begins_anew() {
        let mut task = sharing();
        prepared(
            &mut task,
            7,
            &[(JobOption::Priority, "high"), (JobOption::Profile, "resnet")],
        );
        task.set("SLURM_JOB_NAME", "inner");
        task.set("SLURM_SHARDS_ON_NODE", "1");
        prepared(&mut task, 8, &[]);
        for (name, expected) in [
            ("WEFT_NAME", "inner[8]"),
            ("WEFT_PRIORITY", ""),
            ("WEFT_PROFILE", ""),
            ("WEFT_MEMORY", "1073741824b"),
            ("WEFT_GANG", "slurm-8"),
        ] {
            assert_eq!(value(&task, name), expected, "{name}");
        }
    }

    #[test]
    fn what_the_user_says_stays_and_the_administrators_default_fills_in() {
        let settings = PluginSettings {
            default_priority: Some(7),
            shard_bytes: None,
            ..PluginSettings::default()
        };
        let mut task = sharing();
        prepare(&mut task, job(7), &settings, &[]);
        assert_eq!((value(&task, "WEFT_PRIORITY"), value(&task, "WEFT_MEMORY")), ("7", ""));
        let mut task = sharing();
        task.set("WEFT_PRIORITY", "3");
        task.set("WEFT_NAME", "mine");
        prepare(&mut task, job(7), &settings, &[]);
        assert_eq!(
            (value(&task, "WEFT_PRIORITY"), value(&task, "WEFT_NAME")),
            ("3", "mine")
        );
    }

    #[test]
    fn a_relative_file_is_of_the_folder_where_the_job_was_submitted() {
        for (given, folder, expected) in [
            ("./a.profile", "/home/ann", "/home/ann/a.profile"),
            ("runs/a.profile", "/home/ann/", "/home/ann/runs/a.profile"),
            ("../a.profile", "/home/ann", "/home/ann/../a.profile"),
            ("./a.profile", "/", "/a.profile"),
            ("/b/a.profile", "/home/ann", "/b/a.profile"),
            ("resnet", "/home/ann", "resnet"),
            ("./a.profile", "", "./a.profile"),
        ] {
            let mut task = sharing();
            task.set(SUBMIT_FOLDER, folder);
            prepared(&mut task, 7, &[(JobOption::Profile, given)]);
            assert_eq!(value(&task, "WEFT_PROFILE"), expected, "{given} in {folder}");
            // A step inherits the path.
            prepared(&mut task, 7, &[]);
            assert_eq!(value(&task, "WEFT_PROFILE"), expected, "{given} in {folder}");
        }
    }

    #[test]
    fn a_value_that_another_plugin_let_pass_is_told_and_left_out() {
        let mut task = sharing();
        let chosen = [(JobOption::Priority, "urgent".to_string())];
        let wrong = prepare(&mut task, job(7), &PluginSettings::default(), &chosen);
        assert_eq!((wrong.len(), value(&task, "WEFT_PRIORITY")), (1, ""));
        assert_eq!(value(&task, "WEFT_GANG"), "slurm-7");
    }

    #[test]
    fn names_are_bounded_and_keep_the_number_that_squeue_shows() {
        let array = SlurmJob {
            id: 130,
            array: Some((123, 4)),
        };
        assert_eq!(array.title("train"), "train[123_4]");
        assert_eq!(job(9).title(" a b "), "a b[9]");
        assert_eq!(job(9).title(""), "[9]");
        let long = job(4_000_000_000).title(&"\u{f6}".repeat(100));
        assert_eq!(long.chars().count(), LONGEST_NAME);
        assert!(long.ends_with("[4000000000]"));
    }
}
