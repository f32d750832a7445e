// SPDX-License-Identifier: MIT OR Apache-2.0
//! The GPUs of this node, from the administrator's list, NVIDIA's kernel module, or `weft doctor`.
//!
//! The module's files in `/proc` come before `weft doctor`. They name the UUID and the device node
//! of each GPU, and reading them creates no CUDA context. MIG instances are not distinguished.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::process::Command;

/// The longest `weft doctor` may take, s. It queries the driver in child processes, each bounded.
const DOCTOR_BOUND: Duration = Duration::from_secs(60);

/// A GPU of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeGpu {
    /// The UUID in the driver's form: `GPU-5e1f6d75-6753-...`.
    pub uuid: String,
    /// Name of its device node below `/dev`, if known.
    pub node: Option<String>,
    /// Its NUMA node, if it has one.
    pub numa: Option<i64>,
}

/// Where to look for GPUs.
#[derive(Debug, Clone)]
pub struct GpuSources {
    /// GPUs that the administrator listed. If there are any, no others are found.
    pub listed: Vec<NodeGpu>,
    /// The path of the node's `/proc`.
    pub proc: PathBuf,
    /// The path of the node's `/sys`.
    pub sys: PathBuf,
    /// The `weft` command.
    pub weft: PathBuf,
}

/// All GPUs of this node, sorted by UUID. The list is empty if the node has none.
pub async fn find(sources: &GpuSources) -> Result<Vec<NodeGpu>> {
    let module = of_module(&sources.proc, &sources.sys);
    let mut found = sources.listed.clone();
    for gpu in &mut found {
        match module.iter().find(|known| known.uuid == gpu.uuid) {
            Some(known) => {
                gpu.node = gpu.node.take().or_else(|| known.node.clone());
                gpu.numa = known.numa;
            }
            None if module.is_empty() => {}
            None => log::warn!("{}, named by --gpus, is none of this node's GPUs in /proc", gpu.uuid),
        }
    }
    if found.is_empty() {
        found = module;
    }
    if found.is_empty() {
        found = of_doctor(&sources.weft).await?;
    }
    found.sort_by(|one, other| one.uuid.cmp(&other.uuid));
    found.dedup_by(|one, other| one.uuid == other.uuid);
    check_nodes(&found)?;
    Ok(found)
}

/// Checks that no two GPUs have one device node: shares of both would be of one GPU.
pub fn check_nodes(gpus: &[NodeGpu]) -> Result<()> {
    let mut owners = BTreeMap::new();
    for NodeGpu { uuid, node, .. } in gpus {
        if let Some(node) = node
            && *owners.entry(node).or_insert(uuid) != uuid
        {
            bail!("--gpus: two GPUs have the device node {node}");
        }
    }
    Ok(())
}

/// A GPU as `--gpus` names it: `GPU-UUID` or `GPU-UUID=nvidia0`.
pub fn of_option(text: &str) -> Result<NodeGpu> {
    let (uuid, node) = match text.split_once('=') {
        Some((uuid, node)) => (uuid, Some(node.trim_start_matches("/dev/"))),
        None => (text, None),
    };
    let known = dashed(uuid.trim_start_matches("GPU-"));
    let plain = |name: &str| !name.is_empty() && !name.contains(['/', ',']) && name != "..";
    match (known, node) {
        (Some(uuid), None) => Ok(NodeGpu {
            uuid,
            node: None,
            numa: None,
        }),
        (Some(uuid), Some(node)) if plain(node) => Ok(NodeGpu {
            uuid,
            node: Some(node.to_string()),
            numa: None,
        }),
        _ => bail!("{text} is not a GPU: write GPU-UUID, or GPU-UUID=nvidia0 with its device node"),
    }
}

/// The GPUs that the module lists in `driver/nvidia/gpus/BUS/information`.
fn of_module(proc: &Path, sys: &Path) -> Vec<NodeGpu> {
    let Ok(folders) = fs::read_dir(proc.join("driver/nvidia/gpus")) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for folder in folders.flatten() {
        let Ok(text) = fs::read_to_string(folder.path().join("information")) else {
            continue;
        };
        let bus = folder.file_name().to_string_lossy().to_ascii_lowercase();
        let numa = fs::read_to_string(sys.join("bus/pci/devices").join(bus).join("numa_node"));
        found.extend(of_information(&text).map(|gpu| {
            NodeGpu {
                // The kernel writes -1 for "none".
                numa: numa
                    .ok()
                    .and_then(|text| text.trim().parse().ok())
                    .filter(|node| *node >= 0),
                ..gpu
            }
        }));
    }
    found
}

/// UUID and minor number, from lines like `GPU UUID:   GPU-...` and `Device Minor:   0`.
fn of_information(text: &str) -> Option<NodeGpu> {
    let said = |what: &str| {
        text.lines()
            .find_map(|line| Some(line.strip_prefix(what)?.strip_prefix(':')?.trim()))
    };
    let uuid = dashed(said("GPU UUID")?.strip_prefix("GPU-")?)?;
    let minor = said("Device Minor").and_then(|text| text.parse::<u32>().ok());
    Some(NodeGpu {
        uuid,
        node: minor.map(|minor| format!("nvidia{minor}")),
        numa: None,
    })
}

/// The GPUs that the driver lists. They have only UUIDs, since the driver's numbers are not those
/// of device nodes.
async fn of_doctor(weft: &Path) -> Result<Vec<NodeGpu>> {
    let plain = |uuid| NodeGpu {
        uuid,
        node: None,
        numa: None,
    };
    Ok(traits(weft).await?.into_keys().map(plain).collect())
}

/// Properties of a GPU that need its driver.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuTraits {
    /// The driver's name of the model.
    pub model: String,
    /// Device memory, MiB, in the precision that `weft doctor` prints.
    pub memory_mib: u64,
}

/// Properties of each GPU by its UUID, from `weft doctor`.
pub async fn traits(weft: &Path) -> Result<BTreeMap<String, GpuTraits>> {
    let mut command = Command::new(weft);
    command
        .args(["doctor", "--json"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let said = tokio::time::timeout(DOCTOR_BOUND, command.output())
        .await
        .with_context(|| format!("{} doctor took too long", weft.display()))?
        .with_context(|| format!("cannot run {}", weft.display()))?;
    // It exits with 1 if something is wrong, and lists the devices in either case.
    let report: serde_json::Value = serde_json::from_slice(&said.stdout)
        .with_context(|| format!("{} doctor --json printed no JSON", weft.display()))?;
    let rows = report["rows"].as_array().map_or(&[][..], Vec::as_slice);
    Ok(rows.iter().filter_map(of_row).collect())
}

/// A row about a device: `"what": "device 0"`, and `found`: its model, its memory, and its UUID
/// after the word `uuid`.
fn of_row(row: &serde_json::Value) -> Option<(String, GpuTraits)> {
    row["what"].as_str()?.strip_prefix("device ")?.parse::<u32>().ok()?;
    let (before, after) = row["found"].as_str()?.rsplit_once(", compute ")?;
    let (_, after) = after.rsplit_once("uuid ")?;
    let uuid = dashed(after.split([',', ' ']).next()?)?;
    let (model, memory) = before.rsplit_once(", ")?;
    let (number, unit) = memory.split_once(' ')?;
    let mib = match unit {
        "MiB" => 1.0,
        "GiB" => 1024.0,
        "TiB" => 1048576.0,
        _ => return None,
    };
    let traits = GpuTraits {
        model: model.to_string(),
        memory_mib: (number.parse::<f64>().ok()? * mib) as u64,
    };
    Some((uuid, traits))
}

/// The form `GPU-8-4-4-4-12` of 32 hexadecimal digits, given with or without dashes.
fn dashed(text: &str) -> Option<String> {
    let digits: String = text.chars().filter(|digit| *digit != '-').collect();
    if digits.len() != 32 || !digits.chars().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let part = |from: usize, to: usize| digits.get(from..to).unwrap_or_default();
    let parts = [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)];
    Some(format!("GPU-{}", parts.join("-").to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "GPU-5e1f6d75-6753-49e7-9a62-73696d670001";
    const DIGITS: &str = "5e1f6d75675349e79a6273696d670001";

    #[test]
    fn the_module_names_the_gpu_and_its_device_node() {
        let text = format!(
            "Model: \t\t NVIDIA A100\nIRQ:   \t\t 18\nGPU UUID: \t {UUID}\nDevice Minor: \t 3\n\
             GPU Excluded:\t No\n"
        );
        let gpu = of_information(&text).unwrap();
        assert_eq!((gpu.uuid.as_str(), gpu.node.as_deref()), (UUID, Some("nvidia3")));
        // The module prints question marks for the UUID of a GPU that it could not start.
        assert_eq!(
            of_information("GPU UUID: \t GPU-????????-????-????-????-????????????\n"),
            None
        );
    }

    #[tokio::test]
    async fn the_module_is_read_with_the_numa_node_of_the_bus() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let text = format!("GPU UUID: {UUID}\nDevice Minor: 0\n");
        write("proc/driver/nvidia/gpus/0000:3B:00.0/information", &text);
        write("sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
        let found = of_module(&root.path().join("proc"), &root.path().join("sys"));
        let gpu = NodeGpu {
            uuid: UUID.into(),
            node: Some("nvidia0".into()),
            numa: Some(1),
        };
        assert_eq!(found, [gpu]);
        // A listed GPU has the module's device node unless the list names another one.
        let other = UUID.replace('1', "2");
        let sources = |list: &[&str]| GpuSources {
            listed: list.iter().map(|text| of_option(text).unwrap()).collect(),
            proc: root.path().join("proc"),
            sys: root.path().join("sys"),
            weft: PathBuf::new(),
        };
        assert_eq!(find(&sources(&[UUID])).await.unwrap(), found);
        let named = find(&sources(&[&format!("{UUID}=nvidia7"), &other])).await.unwrap();
        let nodes: Vec<_> = named.iter().map(|gpu| (gpu.node.as_deref(), gpu.numa)).collect();
        assert_eq!(nodes, [(Some("nvidia7"), Some(1)), (None, None)]);
        let twice = find(&sources(&[UUID, &format!("{other}=nvidia0")])).await;
        assert_eq!(
            twice.unwrap_err().to_string(),
            "--gpus: two GPUs have the device node nvidia0"
        );
    }

    #[test]
    fn a_row_of_the_doctor_names_a_gpu() {
        let row = |what: &str, found: &str| serde_json::json!({"what": what, "found": found});
        let found = format!("NVIDIA A100 (simulated), 40.0 GiB, compute 8.0, uuid {DIGITS}");
        let traits = GpuTraits {
            model: "NVIDIA A100 (simulated)".into(),
            memory_mib: 40 << 10,
        };
        assert_eq!(of_row(&row("device 0", &found)).unwrap(), (UUID.into(), traits));
        let longer = format!("{found}, no managed memory while kernels run");
        assert_eq!(of_row(&row("device 1", &longer)).unwrap().0, UUID);
        assert_eq!(of_row(&row("device priorities", &found)), None);
        assert_eq!(of_row(&row("device 0", "uuid 12")), None);
    }

    #[test]
    fn the_option_names_a_gpu_and_perhaps_its_node() {
        assert_eq!(of_option(UUID).unwrap().node, None);
        assert_eq!(of_option(DIGITS).unwrap().uuid, UUID);
        let both = of_option(&format!("{UUID}=/dev/nvidia1")).unwrap();
        assert_eq!(both.node.as_deref(), Some("nvidia1"));
        for wrong in ["0", "GPU-1", &format!("{UUID}="), &format!("{UUID}=../sda")] {
            let said = of_option(wrong).unwrap_err().to_string();
            assert!(said.starts_with(wrong) && !said.contains('\n'), "{said}");
        }
    }
}
