// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine's devices: one, or those that `SIMGPU_DEVICES` lists.
//!
//! ```text
//! SIMGPU_DEVICES=40GiB,16GiB                  # two GPUs
//! # The first is divided into two MIG instances, of 2 and of 1 sevenths of its multiprocessors.
//! SIMGPU_DEVICES=40GiB:10GiB@2+5GiB@1,16GiB
//! ```
//!
//! Each device and each instance is a process with a socket of its own, so none delays another. All
//! have the configuration, but for memory. An instance also has fewer multiprocessors, and less
//! bandwidth within the device in proportion. The first device is the one without the variable.
//!
//! A divided GPU has no process: work runs on its instances.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use crate::config::{ConfigError, bytes};
use crate::link::{beside, default_socket};
use crate::model::model;

/// The variable that lists the devices.
pub const VARIABLE: &str = "SIMGPU_DEVICES";

/// More than a machine has. Four bits of a driver's handles name the device.
pub const MOST: usize = 15;

/// Sevenths of a divided GPU (NVIDIA's MIG user guide).
const SLICES: u32 = 7;

/// A GPU of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// NVML's index, from 0.
    pub index: usize,
    /// The GPU itself.
    pub whole: Device,
    /// Its instances, if it is divided.
    pub instances: Vec<Device>,
}

/// A GPU, or a MIG instance of one, on which a process can run work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The GPU's index.
    pub gpu: usize,
    /// Number of the instance, from 0.
    pub instance: Option<usize>,
    /// Name that clients print.
    pub name: String,
    /// UUID by the driver.
    pub uuid: [u8; 16],
    /// PCI domain, bus and device.
    pub pci: (i32, i32, i32),
    /// Memory, bytes; `None`: by the configuration.
    pub memory: Option<u64>,
    /// Multiprocessors.
    pub processors: u32,
}

/// The first device's UUID.
const FIRST: [u8; 16] = *b"\x5e\x1f\x6d\x75\x00\x00\x40\x00\x80\x00simg\x00\x01";

impl Device {
    fn whole(gpu: usize, memory: Option<u64>) -> Device {
        let mut uuid = FIRST;
        // Machines that run side by side in folders of their own differ; a UUID has 42 bits to
        // spare besides version and variant.
        let seed = std::env::var_os("SIMGPU_SOCKET").map_or(0, |socket| seed(socket.as_encoded_bytes()));
        let [a, b, c, d, e, f, ..] = seed.to_le_bytes();
        (uuid[4], uuid[5], uuid[7], uuid[9]) = (a, b, c, d);
        uuid[6] |= e & 0x0f;
        uuid[8] |= f & 0x3f;
        let step = u8::try_from(gpu).unwrap_or(u8::MAX);
        // Also in the first byte, so that a prefix identifies a device, as with real ones.
        uuid[0] = uuid[0].wrapping_add(step.wrapping_mul(0x11));
        uuid[15] += step;
        Device {
            gpu,
            instance: None,
            name: model().name.to_owned(),
            uuid,
            pci: (0, 7 + 16 * i32::from(step), 0),
            memory,
            processors: model().processors,
        }
    }

    fn instance(whole: &Device, at: usize, memory: u64, slices: u32) -> Device {
        let mut uuid = whole.uuid;
        let step = u8::try_from(at + 1).unwrap_or(u8::MAX);
        uuid[1] = uuid[1].wrapping_add(step.wrapping_mul(0x21));
        uuid[14] = step;
        Device {
            instance: Some(at),
            name: format!("{} MIG {slices}g.{}gb", whole.name, memory >> 30),
            uuid,
            memory: Some(memory),
            processors: slices * model().slice_processors,
            ..whole.clone()
        }
    }

    /// The UUID as people and variables write it: `GPU-...`, or `MIG-...` of an instance.
    pub fn uuid_text(&self) -> String {
        let hex: Vec<String> = self.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let kind = if self.instance.is_some() { "MIG" } else { "GPU" };
        let parts = [&hex[..4], &hex[4..6], &hex[6..8], &hex[8..10], &hex[10..]].map(|part| part.concat());
        format!("{kind}-{}", parts.join("-"))
    }

    /// Suffix of the socket's and the log's name; `None` for the first device.
    fn suffix(&self) -> Option<String> {
        match (self.gpu, self.instance) {
            (0, None) => None,
            (gpu, None) => Some(gpu.to_string()),
            (gpu, Some(instance)) => Some(format!("{gpu}-{instance}")),
        }
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.at(&default_socket())
    }

    fn at(&self, path: &Path) -> PathBuf {
        self.suffix()
            .map_or_else(|| path.to_owned(), |suffix| beside(path, &suffix))
    }

    /// The variables that make a device process this device.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        if let Some(memory) = self.memory {
            all.push(("SIMGPU_MEMORY", memory.to_string()));
        }
        if self.instance.is_some() {
            all.push(("SIMGPU_PROCESSORS", self.processors.to_string()));
        }
        let log = std::env::var_os("SIMGPU_LOG").filter(|path| !path.is_empty());
        if let (Some(log), Some(_)) = (log, self.suffix()) {
            all.push(("SIMGPU_LOG", self.at(Path::new(&log)).to_string_lossy().into_owned()));
        }
        all
    }
}

/// A hash that differs between sockets (FNV-1a); 0 without one.
fn seed(socket: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    match socket {
        [] => 0,
        _ => socket.iter().fold(0xcbf2_9ce4_8422_2325, step),
    }
}

impl Gpu {
    /// Whether the GPU is divided.
    pub fn mig(&self) -> bool {
        !self.instances.is_empty()
    }
}

/// The machine's GPUs by the environment.
pub fn gpus() -> Result<Vec<Gpu>, ConfigError> {
    crate::model::check()?;
    match std::env::var(VARIABLE).ok().filter(|list| !list.trim().is_empty()) {
        Some(list) => parse(&list).ok_or(ConfigError::Variable(VARIABLE, list)),
        None => Ok(vec![Gpu {
            index: 0,
            whole: Device::whole(0, None),
            instances: Vec::new(),
        }]),
    }
}

/// The GPUs of a list; `None` if it is invalid.
pub fn parse(list: &str) -> Option<Vec<Gpu>> {
    let gpus: Option<Vec<Gpu>> = list
        .split(',')
        .enumerate()
        .map(|(index, one)| gpu(index, one.trim()))
        .collect();
    let gpus = gpus?;
    let devices: usize = gpus.iter().map(|gpu| gpu.instances.len().max(1)).sum();
    (devices <= MOST).then_some(gpus)
}

fn gpu(index: usize, text: &str) -> Option<Gpu> {
    let (memory, division) = match text.split_once(':') {
        Some((memory, division)) => (memory, Some(division)),
        None => (text, None),
    };
    let whole = Device::whole(index, Some(bytes(memory)?));
    let mut instances = Vec::new();
    let mut slices = 0;
    for (at, part) in division
        .into_iter()
        .flat_map(|division| division.split('+'))
        .enumerate()
    {
        let (memory, share) = part.split_once('@')?;
        let share: u32 = share.trim().parse().ok().filter(|share| *share > 0)?;
        slices += share;
        instances.push(Device::instance(&whole, at, bytes(memory)?, share));
    }
    let taken: u64 = instances.iter().filter_map(|instance| instance.memory).sum();
    (slices <= SLICES && Some(taken) <= whole.memory).then_some(Gpu {
        index,
        whole,
        instances,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_devices() {
        let two = parse("40GiB, 16384MiB").expect("two GPUs");
        assert_eq!(two.len(), 2);
        assert_eq!(two[0].whole.memory, Some(40 << 30));
        assert_eq!(two[1].whole.memory, Some(16 << 30));
        assert_eq!(two[0].whole.uuid_text(), "GPU-5e1f6d75-0000-4000-8000-73696d670001");
        assert_eq!(two[1].whole.uuid_text(), "GPU-6f1f6d75-0000-4000-8000-73696d670002");
        assert_eq!(
            two[0].whole.at(Path::new("/x/device.sock")),
            Path::new("/x/device.sock")
        );
        assert_eq!(
            two[1].whole.at(Path::new("/x/device.sock")),
            Path::new("/x/device.sock.1")
        );
        assert_ne!(two[0].whole.pci, two[1].whole.pci);
    }

    #[test]
    fn machines_with_sockets_of_their_own_are_different_ones() {
        assert_eq!(seed(b""), 0);
        assert_ne!(seed(b"/a/device.sock"), seed(b"/b/device.sock"));
    }

    #[test]
    fn divided_gpus() {
        let gpus = parse("40GiB:10GiB@2+5GiB@1,16GiB").expect("a divided one and a whole one");
        assert!(gpus[0].mig() && !gpus[1].mig());
        let [first, second] = gpus[0].instances.as_slice() else {
            panic!("two instances");
        };
        assert_eq!((first.memory, first.processors), (Some(10 << 30), 28));
        assert_eq!((second.memory, second.processors), (Some(5 << 30), 14));
        assert!(second.uuid_text().starts_with("MIG-"), "{}", second.uuid_text());
        assert_ne!(first.uuid, second.uuid);
        assert_ne!(first.uuid, gpus[0].whole.uuid);
        assert_eq!(second.at(Path::new("/x/s")), Path::new("/x/s.0-1"));
    }

    #[test]
    fn what_makes_no_sense() {
        for bad in [
            "",
            "0",
            "40GB",
            "40GiB,",
            "40GiB:10GiB",
            "40GiB:50GiB@1",
            "40GiB:5GiB@4+5GiB@4",
            "40GiB:5GiB@0",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert_eq!(parse(&["1GiB"; MOST + 1].join(",")), None);
        assert!(parse(&["1GiB"; MOST].join(",")).is_some());
    }
}
