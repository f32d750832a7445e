//! Rows about the real driver and its devices.
#![forbid(unsafe_code)]

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::Row;
use crate::libraries::{self, Driver};
use crate::{probe, text};
use weft_daemon::mps;

/// A driver that takes longer hangs. The first start after boot takes a few seconds on real
/// machines.
const PATIENCE: Duration = Duration::from_secs(30);

/// Adds the rows. Returns the driver, if found.
pub fn rows(rows: &mut Vec<Row>) -> Option<Driver> {
    let weft = libraries::find_weft();
    let Some(driver) = libraries::find_driver(weft.as_deref()) else {
        rows.push(Row::fail(
            "driver",
            match std::env::var_os("WEFT_CUDA_LIBRARY") {
                Some(named) => format!("WEFT_CUDA_LIBRARY={} is no driver", named.display()),
                None => "no libcuda.so.1 on this machine".to_string(),
            },
            "install NVIDIA's driver, or name its libcuda.so.1 with WEFT_CUDA_LIBRARY",
        ));
        return None;
    };
    rows.push(Row::ok(
        "driver",
        format!("{} (by {})", driver.path.display(), driver.by),
    ));
    match ask(&driver.path) {
        Ok(told) => {
            devices(&told, rows);
            rows.push(mps_row(&told.devices));
        }
        Err(why) => rows.push(Row::fail(
            "driver version",
            why,
            "see whether nvidia-smi works; look into dmesg",
        )),
    }
    Some(driver)
}

fn devices(told: &probe::Driver, rows: &mut Vec<Row>) {
    if let Some(trouble) = &told.trouble {
        rows.push(Row::fail(
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
        Some(0) => rows.push(Row::ok("driver version", format!("{version}{own}"))),
        code => rows.push(Row::fail(
            "driver version",
            format!("{version}{own}, but cuInit says {}", code.unwrap_or(-1)),
            "100: no device; 803: driver and kernel module differ, reboot; 805: the MPS control daemon has no server for this job, see its logs or end it; \
             999: see dmesg",
        )),
    }
    if told.init == Some(0) && told.devices.is_empty() {
        rows.push(Row::fail(
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
        rows.push(Row::ok(&format!("device {number}"), found));
    }
    rows.push(match (&told.nvml.library, &told.nvml.trouble) {
        (Some(path), None) => Row::ok("nvml", path.display().to_string()),
        (_, trouble) => Row::warn(
            "nvml",
            trouble.clone().unwrap_or_else(|| "not found".to_string()),
            "weft runs without it; MIG and the driver's own version stay unknown",
        ),
    });
    for (number, gpu) in told.nvml.gpus.iter().enumerate().filter(|(_, gpu)| gpu.mig) {
        for instance in &gpu.instances {
            let found = format!("{}, {}, {}", instance.name, text::size(instance.memory), instance.uuid);
            rows.push(Row::ok(&format!("gpu {number}, instance"), found));
        }
    }
    rows.push(match told.nvml.mig {
        Some(true) => Row::ok("mig", "on: each instance is a device of its own"),
        Some(false) => Row::ok("mig", "off"),
        None => Row::ok("mig", "unknown or not supported"),
    });
}

/// Asks a separate process, which may hang or crash without harm.
pub fn ask(path: &Path) -> Result<probe::Driver, String> {
    let program = std::fs::read_link("/proc/self/exe").map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(["probe", "--device"]).arg(path).env_remove("LD_PRELOAD");
    answer(&mut command)
}

/// Runs a probe for at most [`PATIENCE`] and parses its one line, or returns how it failed.
pub fn answer<T: serde::de::DeserializeOwned>(command: &mut Command) -> Result<T, String> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("the probe did not start: {error}"))?;
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() > deadline => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("the driver did not answer within {} s", PATIENCE.as_secs()));
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(2)),
            Err(error) => return Err(format!("the probe was lost: {error}")),
        }
    };
    if !status.success() {
        return Err(format!("a process that opened the driver ended with {status}"));
    }
    // A pipe holds 64 KiB, far more than a probe prints, so waiting first cannot block. Only what
    // is already there is read, as a process that the driver started may hold the pipe open. A
    // probe that ended well has printed its line.
    let mut said = Vec::new();
    if let Some(mut out) = child.stdout.take() {
        let mut block = [0u8; 65536];
        if let Ok(length) = out.read(&mut block) {
            said.extend(&block[..length]);
        }
    }
    // The driver may print lines of its own; the probe's is the last.
    let text = String::from_utf8_lossy(&said);
    let line = text.lines().rev().find(|line| line.starts_with('{')).unwrap_or("");
    serde_json::from_str(line).map_err(|error| format!("the probe's answer is not understood: {error}"))
}

/// Row about MPS, under which processes share a device without turns. The driver reports it per
/// device; before CUDA 12.4 the daemon's process is looked for.
fn mps_row(devices: &[probe::Device]) -> Row {
    let under: Vec<String> = devices
        .iter()
        .enumerate()
        .filter(|(_, device)| device.mps == Some(true))
        .map(|(number, _)| number.to_string())
        .collect();
    let unknown = devices.iter().any(|device| device.mps.is_none());
    match (under.len(), mps::runs()) {
        (0, true) if devices.is_empty() => {
            Row::ok("mps", "the control daemon runs, and there is no device for it to serve")
        }
        (0, true) if unknown => Row::ok(
            "mps",
            "the control daemon runs, and this driver does not say of devices whether it serves them: jobs are taken to share them without turns",
        ),
        (0, true) => Row::ok(
            "mps",
            "a control daemon runs, but a job that starts as this command did would not use it: devices give their jobs turns",
        ),
        (0, false) => Row::ok("mps", "not running: devices give their jobs turns"),
        (some, _) if some == devices.len() => Row::ok("mps", "jobs share the device without taking turns"),
        _ => Row::ok(
            "mps",
            format!("jobs share device {} without taking turns", under.join(", ")),
        ),
    }
}
