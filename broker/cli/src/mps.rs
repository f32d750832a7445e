// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--mps`: the devices of a broker's MPS daemon, and the variables of a job under it.
//!
//! The preloaded library does not set these variables: other threads of the job may read the
//! environment, and the driver reads it at `cuInit`, before weft knows a broker.
#![forbid(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::time::{Duration, Instant};

use super::{gpus, libraries, probe_child, text};
use weft_api::admin::{self, AdminQuestion, Answer};
use weft_api::mps::{Joining, MpsMode, MpsState, MpsStatus};
use weft_api::paths::Places;
use weft_daemon::options::MpsDevices;
use weft_protocol::device_share::PIPES;

/// Longest wait for a daemon that starts. A driver's first start after boot takes seconds.
const START_LIMIT: Duration = Duration::from_secs(15);

/// Polling interval.
const STEP: Duration = Duration::from_millis(5);

/// The devices of a daemon that this process starts, or the reason why they cannot have one.
pub fn devices() -> Result<MpsDevices, String> {
    let weft = libraries::find_weft();
    let driver = libraries::find_driver(weft.as_deref()).ok_or("no NVIDIA driver (libcuda.so.1) was found")?;
    let told = probe_child::driver(&driver.path)?;
    if told.devices.is_empty() {
        return Err("the driver shows no device".to_string());
    }
    if told.devices.iter().any(|device| device.compute_mode != 0) {
        return Err("a device is not in the default compute mode (nvidia-smi -c DEFAULT)".to_string());
    }
    let visible = env::var("CUDA_VISIBLE_DEVICES").ok();
    let parts = gpus::visible_parts(&told, visible.as_deref());
    if parts.iter().any(|part| part.starts_with("MIG-")) {
        return Err("a device is a MIG instance".to_string());
    }
    // With numbers, the server and its clients would each count anew.
    let uuids = visible.is_some().then(|| parts.join(","));
    Ok(MpsDevices { visible, uuids })
}

/// The option of a broker that is started for a job with this `--mps`.
pub fn broker_option(wanted: Option<MpsMode>) -> impl Iterator<Item = String> {
    wanted
        .into_iter()
        .flat_map(|mode| ["--mps".to_string(), mode.to_string()])
}

/// Whether a job with this `--mps` may join the broker's MPS.
fn joins(wanted: Option<MpsMode>) -> bool {
    // A daemon that the user names stays.
    wanted != Some(MpsMode::Off) && env::var_os(PIPES).is_none_or(|pipes| pipes.is_empty())
}

/// Asks the broker for the facts that a job needs to begin. Waits for a daemon that starts. `None`:
/// no answer, as from a broker of another build.
pub fn joining(places: &Places, wanted: Option<MpsMode>) -> Option<Joining> {
    let question = AdminQuestion::Joining { mps: joins(wanted) };
    let deadline = Instant::now() + START_LIMIT;
    loop {
        match admin::ask(places, &question) {
            Ok(Answer::Joining(joining)) if joining.mps.state != MpsState::Starting || Instant::now() > deadline => {
                return Some(joining);
            }
            Ok(Answer::Joining(_)) => std::thread::sleep(STEP),
            _ => return None,
        }
    }
}

/// The variables that put a job under the broker's MPS, and lines for the user. `wanted`: the job's
/// `--mps`; `visible`: its `CUDA_VISIBLE_DEVICES`.
pub fn variables(
    joining: &Joining,
    wanted: Option<MpsMode>,
    visible: Option<&str>,
) -> (Vec<(&'static str, OsString)>, Option<String>) {
    let nothing = |line: Option<String>| (Vec::new(), line);
    if !joins(wanted) {
        return nothing(None);
    }
    let mps = &joining.mps;
    // The broker decides for `auto` whether there is a daemon; one without MPS never does.
    let unheard = wanted == Some(MpsMode::Auto) && mps.mode == MpsMode::Off;
    let demanded = unheard || wanted.unwrap_or(mps.mode) == MpsMode::On;
    let without =
        |why: &str| nothing(demanded.then(|| format!("this job takes turns on the device, without MPS: {why}")));
    let pipes =
        match (mps.state, &mps.pipes) {
            (MpsState::On, Some(pipes)) => pipes,
            (MpsState::Starting, _) => return without("its daemon has not started yet"),
            _ => {
                return without(mps.why.as_deref().unwrap_or(
                    "its broker has --mps off (weft broker --replace --mps on changes a broker of your own)",
                ));
            }
        };
    if !pipes.join("control").exists() {
        return without(&format!("{} is not visible here", pipes.display()));
    }
    let mut set = vec![(PIPES, pipes.clone().into_os_string())];
    match served(mps, visible) {
        Some(Some(devices)) => set.push(("CUDA_VISIBLE_DEVICES", devices.into())),
        Some(None) => {}
        None if visible.is_none() => {
            return without("the broker's has only the devices of its CUDA_VISIBLE_DEVICES, and this job has all");
        }
        None => return without("its CUDA_VISIBLE_DEVICES is not within the broker's; name devices by UUID"),
    }
    let risk = joining.first.then(|| {
        "jobs share the device under MPS: a fatal fault of one ends all of them (--mps off: none)".to_string()
    });
    (set, risk)
}

/// Whether the daemon has a job's devices, and their names if the job must use others. A daemon of
/// some devices numbers them anew.
fn served(mps: &MpsStatus, visible: Option<&str>) -> Option<Option<String>> {
    let Some(devices) = &mps.devices else { return Some(None) };
    if visible == mps.visible.as_deref() {
        return Some(Some(devices.clone()));
    }
    let mut wanted = visible?.split(',').map(str::trim);
    let known = |name: &str| name.starts_with("GPU-") && devices.split(',').any(|device| device.starts_with(name));
    wanted.all(known).then_some(None)
}

/// Lines of `weft status` about the broker's MPS.
pub fn line(mps: &MpsStatus) -> Option<String> {
    match (mps.mode, mps.state) {
        (MpsMode::Off, _) => None,
        (_, MpsState::On) => Some(format!(
            "MPS: daemon {} at {}",
            mps.process.unwrap_or_default(),
            mps.pipes.as_deref().unwrap_or("?".as_ref()).display()
        )),
        (_, MpsState::Starting) => Some("MPS: its daemon starts".to_string()),
        (mode, MpsState::Off) => Some(format!(
            "no MPS (--mps {mode}): {}",
            mps.why.as_deref().unwrap_or("unknown")
        )),
    }
}

/// Prints a line about the job, if any.
pub fn print(line: Option<String>) {
    if let Some(line) = line {
        text::warn(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_keeps_its_devices() {
        let all = MpsStatus::default();
        assert_eq!(
            served(&all, Some("1")),
            Some(None),
            "a daemon of all devices numbers none anew"
        );
        let some = MpsStatus {
            visible: Some("1,2".to_string()),
            devices: Some("GPU-aa-1,GPU-bb-2".to_string()),
            ..MpsStatus::default()
        };
        assert_eq!(served(&some, Some("1,2")), Some(some.devices.clone()));
        assert_eq!(served(&some, Some("GPU-bb")), Some(None));
        assert_eq!(served(&some, Some("GPU-bb-2, GPU-aa-1")), Some(None));
        for other in [None, Some("1"), Some("GPU-cc"), Some("GPU-aa-1,GPU-cc"), Some("")] {
            assert_eq!(served(&some, other), None, "{other:?}");
        }
    }
}
