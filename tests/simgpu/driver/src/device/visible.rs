// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which devices a process sees, and in which order: `CUDA_VISIBLE_DEVICES`, which the driver
//! honours, not the runtime.
//!
//! By the programming guide: an entry is a number, or a UUID or a part of one that begins no other;
//! a list is read up to the first entry that names no device; a device that is named twice makes it
//! invalid; an empty one hides all. By NVIDIA's MIG user guide: a GPU that is divided stands for
//! its first instance, an instance is named by its own UUID (`MIG-...`), and a process sees one
//! instance only, with no undivided GPU in addition.
//!
//! `CUDA_DEVICE_ORDER` changes nothing: numbers follow the PCI bus, and as all GPUs are equally
//! fast the fastest-first order is the same. An invalid value is no error, as with the real driver.
#![forbid(unsafe_code)]

use simgpu_device::machine::{Device, Gpu};

/// The devices that a process with this value of the variable sees.
pub(crate) fn devices(variable: Option<&str>, gpus: &[Gpu]) -> Vec<Device> {
    let seen = match variable {
        None => gpus.iter().map(first).collect(),
        Some(list) => listed(list, gpus),
    };
    // One instance, and nothing else.
    match seen.iter().find(|device| device.instance.is_some()) {
        Some(instance) => vec![instance.clone()],
        None => seen,
    }
}

/// The device that a GPU stands for.
fn first(gpu: &Gpu) -> Device {
    gpu.instances.first().unwrap_or(&gpu.whole).clone()
}

fn listed(list: &str, gpus: &[Gpu]) -> Vec<Device> {
    let mut seen: Vec<Device> = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let Some(device) = named(entry, gpus) else { break };
        if seen.contains(&device) {
            return Vec::new();
        }
        seen.push(device);
    }
    seen
}

fn named(entry: &str, gpus: &[Gpu]) -> Option<Device> {
    if let Ok(number) = entry.parse::<usize>() {
        return gpus.get(number).map(first);
    }
    // Shorter than "GPU-" or "MIG-" it would begin every UUID.
    if entry.len() < 4 {
        return None;
    }
    let wanted = entry.to_ascii_lowercase();
    let begins = |device: &Device| device.uuid_text().to_ascii_lowercase().starts_with(&wanted);
    let wholes = gpus.iter().filter(|gpu| begins(&gpu.whole)).map(first);
    let instances = gpus
        .iter()
        .flat_map(|gpu| &gpu.instances)
        .filter(|one| begins(one))
        .cloned();
    let mut found = wholes.chain(instances);
    match (found.next(), found.next()) {
        (Some(device), None) => Some(device),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::devices;
    use simgpu_device::machine;

    const FIRST: &str = "GPU-5e1f6d75-0000-4000-8000-73696d670001";
    const SECOND: &str = "GPU-6f1f6d75-0000-4000-8000-73696d670002";

    fn seen(list: Option<&str>, of: &str) -> Vec<String> {
        let gpus = machine::parse(of).expect("a list of devices");
        devices(list, &gpus).iter().map(machine::Device::uuid_text).collect()
    }

    #[test]
    fn one_device() {
        let seen = |list| !seen(Some(list), "40GiB").is_empty();
        assert!(seen("0"));
        assert!(seen("0,1"));
        assert!(seen(FIRST));
        assert!(seen("GPU-5e1f"));
        assert!(!seen(""));
        assert!(!seen("-1"));
        assert!(!seen("1,0"));
        assert!(!seen("0,0"));
        assert!(!seen("GPU-ffff"));
        assert!(!seen("MIG-5e1f"));
        assert!(!seen("none"));
    }

    #[test]
    fn two_devices() {
        let seen = |list| seen(list, "40GiB,16GiB");
        assert_eq!(seen(None), [FIRST, SECOND]);
        assert_eq!(seen(Some("1,0")), [SECOND, FIRST]);
        assert_eq!(seen(Some("1")), [SECOND]);
        assert_eq!(seen(Some("1,7,0")), [SECOND], "read up to the first that is none");
        assert_eq!(seen(Some("GPU-6F,0")), [SECOND, FIRST]);
        assert_eq!(seen(Some("0,gpu-5e")), [""; 0], "named twice");
        assert_eq!(seen(Some("GPU-")), [""; 0], "begins both");
        assert_eq!(seen(Some("")), [""; 0]);
    }

    #[test]
    fn instances() {
        let of = "40GiB:10GiB@2+5GiB@1,16GiB";
        let gpus = machine::parse(of).expect("a list of devices");
        let instances: Vec<String> = gpus[0].instances.iter().map(machine::Device::uuid_text).collect();
        assert_eq!(
            seen(None, of),
            instances[..1],
            "the first instance, and nothing beside it"
        );
        assert_eq!(seen(Some("0"), of), instances[..1]);
        assert_eq!(seen(Some(&instances[1]), of), instances[1..]);
        assert_eq!(seen(Some(&instances.join(",")), of), instances[..1], "one only");
        assert_eq!(seen(Some("1"), of), [SECOND]);
        assert_eq!(seen(Some(FIRST), of), instances[..1]);
    }
}
