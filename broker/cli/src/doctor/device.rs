// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows about the real driver and its devices.
#![forbid(unsafe_code)]

use super::row::ReportRow;
use crate::device_share;
use crate::libraries::{self, DriverLibrary};
use crate::probe::{DeviceReport, DriverReport};
use crate::{probe_child, text};
use weft_api::mps;
use weft_protocol::device_share::{SWITCH, SmMechanism, SmOffer, SmVerdict};

/// Adds a row about the driver's file. Returns the driver, if found.
pub fn found(rows: &mut Vec<ReportRow>) -> Option<DriverLibrary> {
    let weft = libraries::find_weft();
    let Some(driver) = libraries::find_driver(weft.as_deref()) else {
        let (what, advice) = match libraries::misnamed_driver() {
            Some(misnamed) => (misnamed, "unset or correct WEFT_CUDA_LIBRARY: no other path is tried"),
            None => (
                "no libcuda.so.1 on this machine".to_string(),
                "install NVIDIA's driver, or set WEFT_CUDA_LIBRARY to its libcuda.so.1",
            ),
        };
        rows.push(ReportRow::fail("driver", what, advice));
        return None;
    };
    rows.push(ReportRow::ok(
        "driver",
        format!("{} (by {})", driver.path.display(), driver.by),
    ));
    Some(driver)
}

/// Adds the rows. Returns the driver, if found.
pub fn rows(rows: &mut Vec<ReportRow>) -> Option<DriverLibrary> {
    let driver = found(rows)?;
    match probe_child::driver(&driver.path) {
        Ok(told) => {
            devices(&told, rows);
            rows.push(mps_row(&told.devices));
            rows.extend(share_rows(&told));
        }
        Err(why) => rows.push(ReportRow::fail(
            "driver version",
            why,
            "check that nvidia-smi works, and read dmesg",
        )),
    }
    Some(driver)
}

fn devices(told: &DriverReport, rows: &mut Vec<ReportRow>) {
    if let Some(trouble) = &told.trouble {
        rows.push(ReportRow::fail(
            "driver version",
            trouble.clone(),
            "the library is broken: reinstall the driver",
        ));
        return;
    }
    let version = told.version.map_or("unknown".to_string(), |number| {
        format!("CUDA {}.{}", number / 1000, number % 1000 / 10)
    });
    let own = told
        .nvml
        .driver
        .as_deref()
        .map_or(String::new(), |own| format!(", driver {own}"));
    match told.init {
        Some(0) => rows.push(ReportRow::ok("driver version", format!("{version}{own}"))),
        code => rows.push(ReportRow::fail(
            "driver version",
            format!("{version}{own}, but cuInit returns {}", code.unwrap_or(-1)),
            "100: no device; 803: driver and kernel module differ, reboot; 805: the MPS control daemon has no server for this job, read its logs or end it; \
             999: read dmesg",
        )),
    }
    if told.init == Some(0) && told.devices.is_empty() {
        rows.push(ReportRow::fail(
            "device",
            "none visible",
            "check that CUDA_VISIBLE_DEVICES names devices that exist",
        ));
    }
    for (number, device) in told.devices.iter().enumerate() {
        let (major, minor) = device.capability;
        let found = format!(
            "{}, {}, compute {major}.{minor}, uuid {}{}",
            device.name,
            text::size(device.memory),
            device.uuid,
            if device.managed {
                ""
            } else {
                ", no managed memory while kernels run"
            }
        );
        rows.push(ReportRow::ok(&format!("device {number}"), found));
    }
    rows.push(match (&told.nvml.library, &told.nvml.trouble) {
        (Some(path), None) => ReportRow::ok("nvml", path.display().to_string()),
        (_, trouble) => ReportRow::warn(
            "nvml",
            trouble.clone().unwrap_or_else(|| "not found".to_string()),
            "weft runs without it; MIG and the driver's version are unknown",
        ),
    });
    for (number, gpu) in told.nvml.gpus.iter().enumerate().filter(|(_, gpu)| gpu.mig) {
        for instance in &gpu.instances {
            let found = format!("{}, {}, {}", instance.name, text::size(instance.memory), instance.uuid);
            rows.push(ReportRow::ok(&format!("gpu {number}, instance"), found));
        }
    }
    rows.push(match told.nvml.mig {
        Some(true) => ReportRow::ok("mig", "on: each instance is a separate device"),
        Some(false) => ReportRow::ok("mig", "off"),
        None => ReportRow::ok("mig", "unknown or not supported"),
    });
}

/// Row about MPS. Before CUDA 12.4 the driver does not report MPS per device; then a running
/// control daemon counts.
fn mps_row(devices: &[DeviceReport]) -> ReportRow {
    let under: Vec<String> = devices
        .iter()
        .enumerate()
        .filter(|(_, device)| device.mps == Some(true))
        .map(|(number, _)| number.to_string())
        .collect();
    let unknown = devices.iter().any(|device| device.mps.is_none());
    match (under.len(), mps::runs()) {
        (0, true) if devices.is_empty() => {
            ReportRow::ok("mps", "the control daemon runs, but there is no device to serve")
        }
        (0, true) if unknown => ReportRow::ok(
            "mps",
            "the control daemon runs, and this driver does not report which devices it serves: weft assumes that jobs share them without turns",
        ),
        (0, true) => ReportRow::ok(
            "mps",
            "a control daemon runs, but a job started like this command would not use it: jobs take turns on the devices, unless weft run gives them the MPS of the broker, or they have the daemon's folder (row mps servers) in CUDA_MPS_PIPE_DIRECTORY",
        ),
        (0, false) => ReportRow::ok("mps", "not running: jobs take turns on the devices"),
        (some, _) if some == devices.len() => ReportRow::ok("mps", "jobs share the device without taking turns"),
        _ => ReportRow::ok(
            "mps",
            format!("jobs share device {} without taking turns", under.join(", ")),
        ),
    }
}

/// Rows about priorities and SM shares that jobs can request from a device. None without a device.
fn share_rows(told: &DriverReport) -> Vec<ReportRow> {
    if told.devices.is_empty() {
        return Vec::new();
    }
    let switch = device_share::check(&|name| std::env::var_os(name).unwrap_or_default());
    let offers: Vec<SmOffer> = told.devices.iter().map(offer).collect();
    let mut rows = vec![priorities_row(switch, &offers)];
    rows.extend(SmMechanism::ALL.map(|mechanism| share_row(mechanism, &offers, &told.devices)));
    rows
}

/// Sharing mechanisms that a driver offers on a device.
fn offer(device: &DeviceReport) -> SmOffer {
    SmOffer {
        mps: device.mps.or_else(|| (!mps::runs()).then_some(false)),
        green_contexts: Some(device.green_sms > 0),
    }
}

fn priorities_row(switch: Result<bool, String>, offers: &[SmOffer]) -> ReportRow {
    const WHAT: &str = "device priorities";
    match switch {
        Err(wrong) => ReportRow::warn(WHAT, wrong, "weft run starts no job with this value: set on or off"),
        Ok(false) => ReportRow::ok(WHAT, format!("off ({SWITCH}): the device treats all jobs alike")),
        Ok(true) if offers.iter().all(|offer| offer.mps == Some(false)) => ReportRow::ok(
            WHAT,
            "on, but of no effect on jobs without MPS, which take turns on the device",
        ),
        Ok(true) if offers.iter().any(|offer| offer.mps.is_none()) => ReportRow::ok(
            WHAT,
            "on under MPS: jobs of priority 5 to 9 are below normal; their streams keep their priorities, because this driver does not report MPS to jobs",
        ),
        Ok(true) => ReportRow::ok(
            WHAT,
            "on: under MPS jobs of priority 5 to 9 are below normal, and their streams get the lowest priorities that keep their order",
        ),
    }
}

/// Row about weft's use of a mechanism on these devices. The best verdict counts.
fn share_row(mechanism: SmMechanism, offers: &[SmOffer], devices: &[DeviceReport]) -> ReportRow {
    let verdicts: Vec<SmVerdict> = offers.iter().map(|offer| mechanism.verdict(*offer)).collect();
    let has = |verdict| verdicts.contains(&verdict);
    match mechanism {
        SmMechanism::ActiveThreads => ReportRow::ok(
            "sm share: active threads",
            if has(SmVerdict::Used) {
                "available under MPS: weft run --sm-share limits a job"
            } else if has(SmVerdict::Unknown) {
                "unknown: weft run --sm-share limits a job if MPS serves it"
            } else {
                "not available without MPS: weft run --sm-share limits only jobs that MPS serves"
            },
        ),
        SmMechanism::GreenContexts if has(SmVerdict::LeftAlone) => {
            let sms: Vec<String> = devices.iter().map(|device| device.green_sms.to_string()).collect();
            ReportRow::ok(
                "sm share: green contexts",
                format!(
                    "the driver has them ({} SMs); weft leaves them to the job (docs/limits.md has the reason)",
                    sms.join(", ")
                ),
            )
        }
        SmMechanism::GreenContexts => ReportRow::ok(
            "sm share: green contexts",
            "none in this driver, or none on this device",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(mps: Option<bool>, green_sms: u32) -> DeviceReport {
        DeviceReport {
            mps,
            green_sms,
            ..DeviceReport::default()
        }
    }

    /// Findings of the three rows with device priorities on.
    fn found(devices: &[DeviceReport]) -> [String; 3] {
        let offers: Vec<SmOffer> = devices.iter().map(offer).collect();
        let row = |mechanism| share_row(mechanism, &offers, devices).found;
        [
            priorities_row(Ok(true), &offers).found,
            row(SmMechanism::ActiveThreads),
            row(SmMechanism::GreenContexts),
        ]
    }

    #[test]
    fn what_a_driver_offers_is_told_and_what_weft_makes_of_it() {
        let [priorities, threads, green] = found(&[device(Some(true), 132)]);
        assert!(priorities.starts_with("on: under MPS"), "{priorities}");
        assert!(threads.contains("limits a job"), "{threads}");
        assert!(green.contains("132 SMs") && green.contains("leaves them"), "{green}");
        let [priorities, threads, green] = found(&[device(Some(false), 0)]);
        assert!(priorities.contains("of no effect"), "{priorities}");
        assert!(threads.contains("only jobs that MPS serves"), "{threads}");
        assert!(green.starts_with("none"), "{green}");
        // One of two devices is under MPS.
        let [priorities, threads, _] = found(&[device(Some(false), 0), device(Some(true), 0)]);
        assert!(priorities.starts_with("on: under MPS") && threads.contains("limits a job"));
    }

    #[test]
    fn the_switch_is_told() {
        let offers = [offer(&device(Some(true), 0))];
        let off = priorities_row(Ok(false), &offers);
        assert!(off.found.contains("WEFT_DEVICE_PRIORITIES"), "{}", off.found);
        let wrong = priorities_row(Err("X=1 is neither".to_string()), &offers);
        assert_eq!((wrong.found.as_str(), wrong.advice.is_some()), ("X=1 is neither", true));
    }
}
