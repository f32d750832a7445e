// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft run --gpu`: chooses the job's device.
//!
//! NVML lists the devices, and the driver lists those that `CUDA_VISIBLE_DEVICES` leaves; a
//! separate process asks both. The broker chooses. The job gets the UUID in `CUDA_VISIBLE_DEVICES`,
//! never a device that the variable excludes. Without answers the job runs unchanged.
#![forbid(unsafe_code)]

use super::environment::{BackingOption, Environment, Wishes};
use super::probe::{DriverReport, GpuPart};
use super::{libraries, probe_child, text};
use weft_admission::DurationClass;
use weft_api::admin::{self, AdminError, AdminQuestion, Answer};
use weft_api::paths::Places;
use weft_api::placement::{Offer, Seeker};
use weft_api::profile_path;
use weft_protocol::amount::MemoryNeed;
use weft_protocol::{host, priority};

/// Reason why a job gets no device.
#[derive(Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The argument names no device.
    Usage(String),
    /// The job fits on no device, with the broker's reason.
    Refused(String),
}

/// A device that a job may use.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FoundGpu {
    /// NVML's number of the GPU.
    gpu: usize,
    part: String,
    memory: u64,
    free: Option<u64>,
}

impl FoundGpu {
    /// The UUID as `cuDeviceGetUuid` gives it.
    fn hex(&self) -> String {
        text::uuid_digits(&self.part)
    }
}

/// Value for `CUDA_VISIBLE_DEVICES`; `None` leaves it unchanged.
pub fn choose(
    places: &Places,
    wanted: &str,
    wishes: &Wishes,
    environment: &Environment,
) -> Result<Option<String>, Trouble> {
    let weft = libraries::find_weft();
    let Some(driver) = libraries::find_driver(weft.as_deref()) else {
        return Ok(None);
    };
    let told = match probe_child::driver(&driver.path) {
        Ok(told) => told,
        Err(why) => {
            eprintln!("weft: --gpu {wanted}: {why}; the job chooses its device itself");
            return Ok(None);
        }
    };
    let variable = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let visible = visible(&told, variable.as_deref());
    let allowed = among(&visible, wanted)?;
    let [first, rest @ ..] = allowed.as_slice() else {
        return Ok(None);
    };
    let seeker = seeker(&allowed, wishes, environment);
    let place = match admin::ask(places, &AdminQuestion::Place(Box::new(seeker))) {
        Ok(Answer::Placed(place)) => place,
        Err(AdminError::Sorry(why)) => return Err(Trouble::Refused(why)),
        other => {
            // A single device needs no choice.
            let why = other
                .err()
                .map_or("an unexpected answer".to_string(), |error| error.to_string());
            eprintln!("weft: --gpu {wanted}: {why}; weft does not choose a device");
            return Ok(rest.is_empty().then(|| first.part.clone()));
        }
    };
    let Some(found) = allowed.iter().find(|found| found.hex() == place.uuid) else {
        return Ok(None);
    };
    if !rest.is_empty() {
        let how = match (place.left, place.begins_s) {
            (Some(left), _) => format!("{} are left on it", text::size(left)),
            (None, Some(wait)) => format!("the job is expected to begin there in {}", text::span(wait)),
            (None, None) => "the job will wait there".to_string(),
        };
        eprintln!("weft: gpu {} ({}): {how}", found.gpu, found.part);
    }
    Ok(Some(found.part.clone()))
}

/// Names of the devices that the environment leaves.
pub fn visible_parts(told: &DriverReport, variable: Option<&str>) -> Vec<String> {
    visible(told, variable).into_iter().map(|found| found.part).collect()
}

/// Devices that the environment leaves to the job.
fn visible(told: &DriverReport, variable: Option<&str>) -> Vec<FoundGpu> {
    let mut all = Vec::new();
    for (gpu, about) in told.nvml.gpus.iter().enumerate() {
        let parts = if about.mig {
            &about.instances[..]
        } else {
            std::slice::from_ref(&about.whole)
        };
        all.extend(parts.iter().map(|part| known(gpu, part)));
    }
    if all.is_empty() {
        // Without NVML, the driver's own list.
        let each = told.devices.iter().enumerate().map(|(gpu, device)| FoundGpu {
            gpu,
            part: dashed(&device.uuid),
            memory: device.memory,
            free: None,
        });
        return each.collect();
    }
    let Some(list) = variable else { return all };
    // The driver shows only one of several MIG instances.
    let instances: Vec<String> = list
        .split(',')
        .map(|entry| entry.trim().to_ascii_lowercase())
        .take_while(|entry| entry.starts_with("mig-"))
        .collect();
    if !instances.is_empty() {
        let named = |found: &FoundGpu| {
            instances
                .iter()
                .any(|entry| found.part.to_ascii_lowercase().starts_with(entry))
        };
        return all.into_iter().filter(named).collect();
    }
    let shown = |found: &FoundGpu| told.devices.iter().any(|device| device.uuid == found.hex());
    all.into_iter().filter(shown).collect()
}

fn known(gpu: usize, part: &GpuPart) -> FoundGpu {
    FoundGpu {
        gpu,
        part: part.uuid.clone(),
        memory: part.memory,
        free: Some(part.free),
    }
}

/// A UUID of the driver in the variable's format.
fn dashed(hex: &str) -> String {
    let part = |range: std::ops::Range<usize>| hex.get(range).unwrap_or_default();
    format!(
        "GPU-{}-{}-{}-{}-{}",
        part(0..8),
        part(8..12),
        part(12..16),
        part(16..20),
        part(20..32)
    )
}

/// The requested ones among the visible devices.
fn among(visible: &[FoundGpu], wanted: &str) -> Result<Vec<FoundGpu>, Trouble> {
    if wanted.trim().eq_ignore_ascii_case("any") {
        return Ok(visible.to_vec());
    }
    let mut chosen: Vec<FoundGpu> = Vec::new();
    for entry in wanted.split(',').map(str::trim) {
        let meant: Vec<&FoundGpu> = match entry.parse::<usize>() {
            Ok(number) => visible.iter().filter(|found| found.gpu == number).collect(),
            Err(_) if entry.len() > 4 => {
                let entry = entry.to_ascii_lowercase();
                let begins = |found: &&FoundGpu| found.part.to_ascii_lowercase().starts_with(&entry);
                visible.iter().filter(begins).collect()
            }
            Err(_) => Vec::new(),
        };
        if meant.is_empty() {
            let names: Vec<String> = visible.iter().map(|it| format!("{} ({})", it.gpu, it.part)).collect();
            let usable = match names.is_empty() {
                true => "none (CUDA_VISIBLE_DEVICES hides all)".to_string(),
                false => format!("{} (or: any)", names.join(", ")),
            };
            return Err(Trouble::Usage(format!(
                "{entry:?} is not a device that the job may use: {usable}"
            )));
        }
        for found in meant {
            if !chosen.contains(found) {
                chosen.push(found.clone());
            }
        }
    }
    Ok(chosen)
}

fn seeker(allowed: &[FoundGpu], wishes: &Wishes, environment: &Environment) -> Seeker {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let set = |name: &str| {
        // A later one replaces an earlier one.
        let found = environment.set.iter().rev().find(|(set, _)| *set == name);
        found.map_or_else(|| variable(name), |(_, value)| value.to_str().map(str::to_string))
    };
    let said = wishes.memory.or_else(|| variable("WEFT_MEMORY")?.parse().ok());
    let said = said.map(|need: MemoryNeed| need.request);
    let profile = set("WEFT_PROFILE").and_then(|called| profile_path::load(&called).ok());
    let ran = profile.as_ref().map(|profile| profile.ran).filter(|ran| *ran > 0);
    let peak = profile.map(|profile| profile.memory_peak).filter(|peak| *peak > 0);
    let duration = || ran.map(|ran| DurationClass::from_expected(ran).name().to_string());
    let backing = |asked, name: &str| match wishes.backing {
        Some(said) => said == asked,
        None => set("WEFT_BACKING").as_deref() == Some(name),
    };
    let priority = set("WEFT_PRIORITY").and_then(|text| priority::parse(&text));
    Seeker {
        unseen: false,
        pid: std::process::id(),
        gang: set("WEFT_GANG").unwrap_or_default(),
        user: set("WEFT_USER").unwrap_or_default(),
        priority: priority.unwrap_or(5),
        memory: said.or(peak),
        duration: set("WEFT_DURATION").or_else(duration),
        processes: variable("LOCAL_WORLD_SIZE")
            .and_then(|text| text.parse().ok())
            .unwrap_or(1),
        managed: backing(BackingOption::Managed, "managed"),
        // Memory beyond the limit of the job's control group has to be device memory.
        either: backing(BackingOption::Auto, "auto")
            && host::left_of_groups().is_none_or(|left| said.or(peak).unwrap_or(0) <= left),
        devices: allowed
            .iter()
            .map(|found| Offer {
                uuid: found.hex(),
                memory: found.memory,
                free: found.free,
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::{DeviceReport, GpuReport, NvmlReport};

    fn part(uuid: &str) -> GpuPart {
        GpuPart {
            uuid: uuid.to_string(),
            memory: 8,
            free: 7,
            ..GpuPart::default()
        }
    }

    fn told(shown: &[&str]) -> DriverReport {
        let gpu = |uuid: &str, instances: &[&str]| GpuReport {
            whole: part(uuid),
            instances: instances.iter().map(|uuid| part(uuid)).collect(),
            mig: !instances.is_empty(),
        };
        DriverReport {
            devices: shown
                .iter()
                .map(|uuid| DeviceReport {
                    uuid: text::uuid_digits(uuid),
                    memory: 8,
                    ..DeviceReport::default()
                })
                .collect(),
            nvml: NvmlReport {
                gpus: vec![
                    gpu("GPU-aa-1", &[]),
                    gpu("GPU-bb-2", &["MIG-cc-3", "MIG-dd-4"]),
                    gpu("GPU-ee-5", &[]),
                ],
                ..NvmlReport::default()
            },
            ..DriverReport::default()
        }
    }

    fn names(found: &[FoundGpu]) -> Vec<&str> {
        found.iter().map(|found| found.part.as_str()).collect()
    }

    #[test]
    fn what_a_job_may_use() {
        let all = ["GPU-aa-1", "MIG-cc-3", "MIG-dd-4", "GPU-ee-5"];
        assert_eq!(
            names(&visible(&told(&["MIG-cc-3"]), None)),
            all,
            "the driver alone would show one instance"
        );
        assert_eq!(
            names(&visible(&told(&["GPU-ee-5", "GPU-aa-1"]), Some("2,0"))),
            ["GPU-aa-1", "GPU-ee-5"]
        );
        assert_eq!(
            names(&visible(&told(&["MIG-dd-4"]), Some("MIG-dd,MIG-cc"))),
            ["MIG-cc-3", "MIG-dd-4"]
        );
        assert_eq!(names(&visible(&told(&[]), Some(""))), [""; 0]);
        let bare = DriverReport {
            nvml: NvmlReport::default(),
            devices: vec![DeviceReport {
                uuid: "5e1f6d7500004000800073696d670001".to_string(),
                ..DeviceReport::default()
            }],
            ..DriverReport::default()
        };
        assert_eq!(
            names(&visible(&bare, None)),
            ["GPU-5e1f6d75-0000-4000-8000-73696d670001"]
        );
    }

    #[test]
    fn what_was_asked_for() {
        let visible = visible(&told(&[]), None);
        assert_eq!(among(&visible, "any").map(|found| found.len()), Ok(4));
        assert_eq!(
            names(&among(&visible, "1").expect("an index")),
            ["MIG-cc-3", "MIG-dd-4"]
        );
        assert_eq!(
            names(&among(&visible, "gpu-ee,0,2").expect("a list")),
            ["GPU-ee-5", "GPU-aa-1"]
        );
        assert!(matches!(among(&visible, "7"), Err(Trouble::Usage(_))));
        assert!(matches!(among(&visible, "GPU-"), Err(Trouble::Usage(_))));
        assert!(matches!(among(&visible, ""), Err(Trouble::Usage(_))));
        assert!(matches!(among(&[], "0"), Err(Trouble::Usage(why)) if why.contains("may use: none")));
    }
}
