// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device that the lab plays on: a calibration file of `tests/simgpu/calibration`, in which
//! single values may be changed.
//!
//! Invariant: the settings of every engine that a command plays on come from a
//! [`CalibratedDevice`]. A scenario's own `[device]` values then take their places.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use simgpu_calibration::{Calibration, STANDARD, Value};
use weft_engine::{Mode, Settings};
use weft_player::Hosts;

use crate::{Ns, US};

/// Keys of a calibration that the lab reads. Kernels and copies take the times of the recordings,
/// and events take no time: the lab submits none to the engine.
const READ: [&str; 5] = [
    "slice_ns",
    "switch_ns",
    "launch_latency_ns",
    "kernel_gap_ns",
    "wait_return_ns",
];

/// Options of every command that plays on the engine.
#[derive(Debug, Clone, Args)]
pub struct CalibrationOptions {
    /// The device's figures: a file of tests/simgpu/calibration by name, or a path. Several names:
    /// one block each, and a table of all. Kernels and copies take the times of the recordings
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',', default_value = STANDARD)]
    pub calibration: Vec<String>,
    /// Change a value of the calibration: switch_ns=50000. Several values (switch_ns=50000,92000):
    /// one block each
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<CalibrationChange>,
}

/// A key of a calibration and its values in turn, as `--set` takes them.
#[derive(Debug, Clone, PartialEq)]
pub struct CalibrationChange {
    key: String,
    values: Vec<f64>,
}

impl FromStr for CalibrationChange {
    type Err = String;

    fn from_str(given: &str) -> Result<CalibrationChange, String> {
        let form = || "not KEY=VALUE or KEY=VALUE,VALUE, such as switch_ns=50000".to_string();
        let (key, values) = given.split_once('=').ok_or_else(form)?;
        if !READ.contains(&key) {
            return Err(format!("the lab reads no {key}; it reads {}", READ.join(", ")));
        }
        let values: Result<Vec<f64>, _> = values.split(',').map(str::parse).collect();
        Ok(CalibrationChange {
            key: key.to_string(),
            values: values.map_err(|_| form())?,
        })
    }
}

impl CalibrationOptions {
    /// Each calibration with each combination of changed values. An error names the unknown name
    /// and the known ones.
    pub fn devices(&self) -> Result<Vec<CalibratedDevice>> {
        let mut changes = vec![BTreeMap::new()];
        for change in &self.set {
            let with = |changed: &BTreeMap<String, f64>, value| {
                let mut changed = changed.clone();
                changed.insert(change.key.clone(), value);
                changed
            };
            changes = changes
                .iter()
                .flat_map(|changed| change.values.iter().map(move |value| with(changed, *value)))
                .collect();
        }
        self.calibration
            .iter()
            .flat_map(|name| changes.iter().map(move |changed| CalibratedDevice::load(name, changed)))
            .collect()
    }
}

/// A device as a calibration describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct CalibratedDevice {
    /// Its calibration and the changed values: `h100-like switch_ns=50000`.
    pub name: String,
    /// The GPU of the calibration.
    pub gpu: String,
    changed: BTreeMap<String, f64>,
    engine: Settings,
    wait_return_ns: Ns,
}

impl CalibratedDevice {
    /// A file of `tests/simgpu/calibration` by name or any file by its path, with these values in
    /// place of its own.
    pub fn load(calibration: &str, changed: &BTreeMap<String, f64>) -> Result<CalibratedDevice> {
        let mut figures = Calibration::load(calibration).context("--calibration")?;
        let mut name = calibration.to_string();
        for (key, value) in changed {
            let value = Value {
                value: *value,
                source: "estimate: given by --set".to_string(),
                n: None,
                p10: None,
                p90: None,
            };
            name += &format!(" {key}={}", value.value);
            figures.set(key, value).context("--set")?;
        }
        let gpu = figures.gpu.clone();
        let figures = figures.figures().context("--calibration")?;
        Ok(CalibratedDevice {
            name,
            gpu,
            changed: changed.clone(),
            engine: figures.engine,
            wait_return_ns: figures.wait_return,
        })
    }

    /// Settings of the engine in this mode.
    pub fn settings(&self, mode: Mode) -> Settings {
        Settings { mode, ..self.engine }
    }

    /// The usual hosts, for a device that is `dilation` times slower than a real one. Their waits
    /// return no sooner than in the calibration.
    pub fn hosts(&self, dilation: f64) -> Hosts {
        let usual = Hosts {
            dilation,
            ..Hosts::default()
        };
        Hosts {
            sync_return: usual.sync_return.max(usual.slowed(self.wait_return_ns)),
            ..usual
        }
    }

    /// Whether `--set` gave this key another value.
    pub fn is_changed(&self, key: &str) -> bool {
        self.changed.contains_key(key)
    }
}

/// The device and the launch queue of some figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LabSetting {
    /// [`CalibratedDevice::name`].
    pub calibration: String,
    /// Capacity of the launch queue, if `--queue` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<usize>,
}

impl fmt::Display for LabSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.calibration)?;
        match self.queue {
            None => Ok(()),
            Some(0) => f.write_str(", queue off"),
            Some(launches) => write!(f, ", queue of {launches}"),
        }
    }
}

/// The device of a run, for people and programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlayedDevice {
    /// Calibration and launch queue.
    #[serde(flatten)]
    pub setting: LabSetting,
    /// The GPU of the calibration.
    pub gpu: String,
    /// See [`Settings::slice`].
    pub slice_ns: Ns,
    /// See [`Settings::switch`].
    pub switch_ns: Ns,
    /// See [`Settings::launch_latency`].
    pub launch_latency_ns: Ns,
    /// See [`Settings::kernel_gap`].
    pub kernel_gap_ns: Ns,
    /// See [`Hosts::sync_return`].
    pub sync_return_ns: Ns,
}

impl PlayedDevice {
    /// A device with these engine settings and these hosts.
    pub fn new(device: &CalibratedDevice, queue: Option<usize>, engine: &Settings, hosts: &Hosts) -> PlayedDevice {
        PlayedDevice {
            setting: LabSetting {
                calibration: device.name.clone(),
                queue,
            },
            gpu: device.gpu.clone(),
            slice_ns: engine.slice,
            switch_ns: engine.switch,
            launch_latency_ns: engine.launch_latency,
            kernel_gap_ns: engine.kernel_gap,
            sync_return_ns: hosts.sync_return,
        }
    }
}

impl fmt::Display for PlayedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |time: Ns| time as f64 / US as f64;
        write!(
            f,
            "{}: {}; slice {} us, switch {} us, launch latency {} us, between kernels {} us, a wait's return {} us",
            self.setting,
            self.gpu,
            us(self.slice_ns),
            us(self.switch_ns),
            us(self.launch_latency_ns),
            us(self.kernel_gap_ns),
            us(self.sync_return_ns)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(calibrations: &[&str], changes: &[&str]) -> CalibrationOptions {
        CalibrationOptions {
            calibration: calibrations.iter().map(ToString::to_string).collect(),
            set: changes.iter().map(|change| change.parse().expect("a change")).collect(),
        }
    }

    #[test]
    fn each_calibration_comes_with_each_combination_of_values() {
        let devices = options(
            &[STANDARD, "rtx3080-like"],
            &["switch_ns=50000,92000", "slice_ns=1024000"],
        )
        .devices();
        let devices = devices.expect("devices");
        let told: Vec<_> = devices
            .iter()
            .map(|one| (one.name.as_str(), one.engine.switch))
            .collect();
        let expected = [
            ("a100-like slice_ns=1024000 switch_ns=50000", 50_000),
            ("a100-like slice_ns=1024000 switch_ns=92000", 92_000),
            ("rtx3080-like slice_ns=1024000 switch_ns=50000", 50_000),
            ("rtx3080-like slice_ns=1024000 switch_ns=92000", 92_000),
        ];
        assert_eq!(told, expected);
        assert!(devices.iter().all(|one| one.engine.slice == 1_024_000));
    }

    #[test]
    fn each_key_that_the_lab_reads_changes_the_engine() {
        let plain = &options(&[STANDARD], &[]).devices().expect("a device")[0];
        for key in READ {
            let other = &options(&[STANDARD], &[&format!("{key}=7777")])
                .devices()
                .expect("a device")[0];
            let of = |device: &CalibratedDevice| (device.engine, device.hosts(1.0));
            assert_ne!(of(other), of(plain), "{key}");
            assert!(other.is_changed(key) && !plain.is_changed(key));
        }
        let played = PlayedDevice::new(plain, Some(0), &plain.settings(Mode::Mps), &plain.hosts(1.0));
        assert!(
            played.to_string().starts_with("a100-like, queue off: A100-like"),
            "{played}"
        );
        assert!(
            played
                .to_string()
                .ends_with("between kernels 0 us, a wait's return 2 us"),
            "{played}"
        );
    }

    #[test]
    fn what_is_unknown_is_refused_with_what_is_known() {
        let error = options(&["h200-like"], &[]).devices().expect_err("no such file");
        let said = format!("{error:#}");
        assert!(said.contains("h200-like: there are a100-like"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        for (change, told) in [
            ("switch_us=50", "it reads slice_ns, switch_ns"),
            ("memory_bytes=50", "the lab reads no memory_bytes"),
            ("switch_ns", "not KEY=VALUE"),
            ("switch_ns=a", "not KEY=VALUE"),
        ] {
            let said = change.parse::<CalibrationChange>().expect_err(change);
            assert!(said.contains(told), "{change}: {said}");
        }
        let error = options(&[STANDARD], &["slice_ns=0"]).devices().expect_err("no slice");
        assert!(format!("{error:#}").contains("slice_ns = 0"), "{error:#}");
    }
}
