//! Rows about the real driver and its devices.
#![forbid(unsafe_code)]

use super::row::ReportRow;
use crate::libraries::{self, DriverLibrary};
use crate::probe::{DeviceReport, DriverReport};
use crate::{probe_child, text};
use weft_daemon::mps;

/// Adds the rows. Returns the driver, if found.
pub fn rows(rows: &mut Vec<ReportRow>) -> Option<DriverLibrary> {
    let weft = libraries::find_weft();
    let Some(driver) = libraries::find_driver(weft.as_deref()) else {
        rows.push(ReportRow::fail(
            "driver",
            match std::env::var_os("WEFT_CUDA_LIBRARY") {
                Some(named) => format!("WEFT_CUDA_LIBRARY={} is no driver", named.display()),
                None => "no libcuda.so.1 on this machine".to_string(),
            },
            "install NVIDIA's driver, or name its libcuda.so.1 with WEFT_CUDA_LIBRARY",
        ));
        return None;
    };
    rows.push(ReportRow::ok(
        "driver",
        format!("{} (by {})", driver.path.display(), driver.by),
    ));
    match probe_child::driver(&driver.path) {
        Ok(told) => {
            devices(&told, rows);
            rows.push(mps_row(&told.devices));
        }
        Err(why) => rows.push(ReportRow::fail(
            "driver version",
            why,
            "see whether nvidia-smi works; look into dmesg",
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
            format!("{version}{own}, but cuInit says {}", code.unwrap_or(-1)),
            "100: no device; 803: driver and kernel module differ, reboot; 805: the MPS control daemon has no server for this job, see its logs or end it; \
             999: see dmesg",
        )),
    }
    if told.init == Some(0) && told.devices.is_empty() {
        rows.push(ReportRow::fail(
            "device",
            "none visible",
            "is CUDA_VISIBLE_DEVICES set to something that is not there?",
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
            "weft runs without it; MIG and the driver's own version stay unknown",
        ),
    });
    for (number, gpu) in told.nvml.gpus.iter().enumerate().filter(|(_, gpu)| gpu.mig) {
        for instance in &gpu.instances {
            let found = format!("{}, {}, {}", instance.name, text::size(instance.memory), instance.uuid);
            rows.push(ReportRow::ok(&format!("gpu {number}, instance"), found));
        }
    }
    rows.push(match told.nvml.mig {
        Some(true) => ReportRow::ok("mig", "on: each instance is a device of its own"),
        Some(false) => ReportRow::ok("mig", "off"),
        None => ReportRow::ok("mig", "unknown or not supported"),
    });
}

/// Row about MPS. Before CUDA 12.4 the driver does not report it per device: then the daemon's
/// process counts.
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
            ReportRow::ok("mps", "the control daemon runs, and there is no device for it to serve")
        }
        (0, true) if unknown => ReportRow::ok(
            "mps",
            "the control daemon runs, and this driver does not say of devices whether it serves them: jobs are taken to share them without turns",
        ),
        (0, true) => ReportRow::ok(
            "mps",
            "a control daemon runs, but a job that starts as this command did would not use it: devices give their jobs turns",
        ),
        (0, false) => ReportRow::ok("mps", "not running: devices give their jobs turns"),
        (some, _) if some == devices.len() => ReportRow::ok("mps", "jobs share the device without taking turns"),
        _ => ReportRow::ok(
            "mps",
            format!("jobs share device {} without taking turns", under.join(", ")),
        ),
    }
}
