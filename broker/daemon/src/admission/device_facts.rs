// SPDX-License-Identifier: MIT OR Apache-2.0
//! Facts that outlive brokers and restarts: context sizes and observed usage, in a file in the
//! folder of the profiles.
//!
//! A broker ends after a minute without clients. An unreadable file counts as empty.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ledger::Ledger;
use weft_admission::{Device, DeviceId};
use weft_api::peak_usage::PeakUsage;

/// The file's name; no profile can have it.
pub const FILE: &str = "known.json";

/// Version of the format. Other versions are not read.
const FORMAT: u32 = 1;

/// Largest file; real ones have some dozens of devices and jobs.
const LONGEST_BYTES: u64 = 4 << 20;

/// Most devices whose contexts are kept.
const KEPT_DEVICES: usize = 256;

#[derive(Debug, Default, Serialize, Deserialize)]
struct Facts {
    format: u32,
    contexts: BTreeMap<String, u64>,
    learnt: Vec<PeakUsage>,
}

/// The file and its content.
#[derive(Debug, Default)]
pub struct DeviceFacts {
    page: Facts,
    writer: Option<Ledger>,
    /// Whether contexts of unknown size are measured; otherwise they count as 0 bytes.
    measures: bool,
}

impl DeviceFacts {
    /// Reads the file and starts its writer.
    pub fn begin(file: PathBuf) -> DeviceFacts {
        DeviceFacts {
            page: read(&file).unwrap_or_default(),
            writer: Ledger::begin(file).ok(),
            measures: true,
        }
    }

    #[cfg(test)]
    pub fn set_measures(&mut self) {
        self.measures = true;
    }

    /// A device of `bytes` without jobs, with its context size if that is known.
    pub fn device(&self, id: DeviceId, uuid: &str, bytes: u64) -> Device {
        let context = self.context_on(uuid);
        Device {
            context: context.unwrap_or(0),
            measured: context.is_some() || !self.measures,
            ..Device::new(id, bytes)
        }
    }

    /// Context size on a device, bytes.
    pub fn context_on(&self, uuid: &str) -> Option<u64> {
        self.page.contexts.get(uuid).copied()
    }

    /// Observed usage, the latest last.
    pub fn learnt(&self) -> Vec<PeakUsage> {
        self.page.learnt.clone()
    }

    /// Stores a context's size. Beyond the bound, a device that is not in `there` is forgotten.
    pub fn context(&mut self, uuid: &str, bytes: u64, there: &[String]) {
        let contexts = &mut self.page.contexts;
        if contexts.len() >= KEPT_DEVICES && !contexts.contains_key(uuid) {
            let Some(old) = contexts.keys().find(|known| !there.contains(known)).cloned() else {
                return;
            };
            contexts.remove(&old);
        }
        if self.page.contexts.insert(uuid.to_string(), bytes) != Some(bytes) {
            self.write();
        }
    }

    /// Stores observed usage.
    pub fn took(&mut self, learnt: Vec<PeakUsage>) {
        self.page.learnt = learnt;
        self.write();
    }

    fn write(&mut self) {
        self.page.format = FORMAT;
        if let Some(writer) = &self.writer {
            writer.write(serde_json::to_vec(&self.page).ok(), LONGEST_BYTES);
        }
    }

    /// Waits for the last write, for a bounded time.
    pub fn close(&self) {
        if let Some(writer) = &self.writer {
            writer.finish();
        }
    }
}

fn read(file: &Path) -> Option<Facts> {
    let about = std::fs::metadata(file).ok()?;
    let text = (about.is_file() && about.len() <= LONGEST_BYTES).then(|| std::fs::read(file).ok())??;
    match serde_json::from_slice::<Facts>(&text) {
        Ok(page) if page.format == FORMAT => Some(page),
        Ok(_) => None,
        Err(error) => {
            log::warn!("{}: {error}: the file is written again", file.display());
            None
        }
    }
}

/// The jobs in a file's text, as `read` accepts it.
pub(super) fn understood(text: &[u8]) -> Option<Vec<PeakUsage>> {
    serde_json::from_slice::<Facts>(text).ok().map(|page| page.learnt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_admission::Job;

    #[test]
    fn what_was_learnt_is_known_to_the_next_and_what_is_broken_is_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        // The profiles' folder may be missing.
        let file = folder.path().join("profiles").join(FILE);
        let mut first = DeviceFacts::begin(file.clone());
        assert_eq!(first.context_on("a"), None);
        first.context("a", 7, &[]);
        let took = PeakUsage {
            name: String::new(),
            family: Job(3),
            pid: 5,
            command: "python train.py".into(),
            user: "ann".into(),
            uid: 7,
            gpu: None,
            peak: 11,
            ran: 13,
            denied: true,
        };
        first.took(vec![took]);
        first.close();
        let next = DeviceFacts::begin(file.clone());
        assert_eq!(next.context_on("a"), Some(7));
        let learnt = next.learnt();
        assert_eq!(learnt.iter().map(|it| (it.pid, it.peak)).collect::<Vec<_>>(), [(5, 11)]);
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&file).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "it says what jobs of the user's were called");
        for bad in ["", "{", "[]", "{\"format\":9,\"contexts\":{\"a\":7},\"learnt\":[]}"] {
            std::fs::write(&file, bad).expect("a file");
            assert_eq!(DeviceFacts::begin(file.clone()).context_on("a"), None, "{bad}");
        }
    }

    #[test]
    fn what_is_kept_of_devices_is_bounded_and_those_that_are_there_stay() {
        let mut known = DeviceFacts::default();
        let there = ["here".to_string()];
        known.context("here", 1, &there);
        for number in 0..10 * KEPT_DEVICES {
            known.context(&format!("{number:032x}"), 2, &there);
        }
        assert_eq!(known.page.contexts.len(), KEPT_DEVICES);
        assert_eq!(known.context_on("here"), Some(1));
        assert_eq!(
            known.context_on(&format!("{:032x}", 10 * KEPT_DEVICES - 1)),
            Some(2),
            "the last one"
        );
    }
}
