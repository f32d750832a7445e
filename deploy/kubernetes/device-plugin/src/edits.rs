// SPDX-License-Identifier: MIT OR Apache-2.0
//! The edits to a container with a share: variables, mounts, device nodes. Pure, except that they
//! check which device nodes exist.
//!
//! The plugin sends the edits to the kubelet, or writes them to a CDI file and sends only the name
//! of a device in it.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::api::{CdiDevice, ContainerAllocateResponse, DeviceSpec, Mount};
use crate::gpus::NodeGpu;

/// Vendor and class of the devices of the CDI file.
pub const CDI_KIND: &str = "weft.dev/gpu";

/// Name of the CDI file in its folder.
pub const CDI_FILE: &str = "weft.dev-gpu.json";

/// The first version of the CDI specification that has all the fields used here.
const CDI_VERSION: &str = "0.5.0";

/// Device nodes that every CUDA job opens in addition to its GPU's own.
const COMMON_NODES: [&str; 4] = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"];

/// Variables whose values are those of the node or the container's GPUs.
pub const OWN_VARIABLES: [&str; 5] = [
    "LD_PRELOAD",
    "WEFT_SOCKET",
    "WEFT_AUTOSTART",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
];

/// How containers are put under weft.
#[derive(Debug, Clone)]
pub struct ContainerSettings {
    /// weft's folder on the node and in containers. It contains `libweft.so`.
    pub weft_folder: PathBuf,
    /// The broker's socket, on the node and in containers.
    pub socket: PathBuf,
    /// Device memory that a share stands for, MiB. It sets the job's `WEFT_MEMORY`.
    pub share_mib: Option<u64>,
    /// Further variables of containers.
    pub variables: BTreeMap<String, String>,
    /// The node's `/dev`, as this process sees it.
    pub dev: PathBuf,
    /// Whether containers get GPUs by their names in the CDI file.
    pub cdi: bool,
}

/// A device of a CDI file: the edits to a container that is given it.
#[derive(Debug, Clone)]
pub struct CdiEntry<'a> {
    /// Its name in the file.
    pub name: String,
    /// Its GPUs.
    pub gpus: Vec<&'a NodeGpu>,
    /// Variables in addition to those that select the GPUs.
    pub variables: BTreeMap<String, String>,
}

impl ContainerSettings {
    /// The response to the kubelet for a container with `count` shares of these GPUs.
    pub fn answer(&self, gpus: &[&NodeGpu], count: usize) -> ContainerAllocateResponse {
        // A pod's own variable comes after these, and counts.
        let mut envs = BTreeMap::from([("WEFT_OUTCOME".to_string(), "on".to_string())]);
        if let Some(mib) = self.share_mib {
            envs.insert(
                "WEFT_MEMORY".to_string(),
                format!("{}MiB", mib.saturating_mul(count as u64)),
            );
        }
        if self.cdi {
            let name = |gpu: &&NodeGpu| CdiDevice {
                name: format!("{CDI_KIND}={}", gpu.uuid),
            };
            return ContainerAllocateResponse {
                envs: envs.into_iter().collect(),
                cdi_devices: gpus.iter().map(name).collect(),
                ..Default::default()
            };
        }
        envs.extend(self.variables_of_all());
        envs.extend(variables_of(gpus));
        let own = gpus.iter().flat_map(|gpu| self.nodes_of(gpu));
        let nodes = own.chain(self.common_nodes());
        ContainerAllocateResponse {
            envs: envs.into_iter().collect(),
            mounts: self.mounts().into_iter().map(mount).collect(),
            devices: nodes.map(device).collect(),
            ..Default::default()
        }
    }

    /// The content of a CDI file with these devices.
    pub fn cdi(&self, kind: &str, devices: &[CdiEntry]) -> Value {
        let pairs = |found: BTreeMap<String, String>| -> Vec<String> {
            found
                .into_iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect()
        };
        let nodes = |found: Vec<String>| -> Vec<Value> {
            found
                .into_iter()
                .map(|path| json!({"path": path, "permissions": "rw"}))
                .collect()
        };
        let devices = devices.iter().map(|device| {
            let mut variables = variables_of(&device.gpus);
            variables.extend(device.variables.clone());
            let mut edits = json!({"env": pairs(variables)});
            let own = nodes(device.gpus.iter().flat_map(|gpu| self.nodes_of(gpu)).collect());
            if !own.is_empty() {
                edits["deviceNodes"] = own.into();
            }
            json!({"name": device.name, "containerEdits": edits})
        });
        let mounts = self.mounts().into_iter().map(|path| {
            json!({
                "hostPath": path,
                "containerPath": path,
                "options": ["ro", "nosuid", "nodev", "rbind"],
            })
        });
        let mut edits = json!({
            "env": pairs(self.variables_of_all()),
            "mounts": mounts.collect::<Vec<_>>(),
        });
        let common = nodes(self.common_nodes());
        if !common.is_empty() {
            edits["deviceNodes"] = common.into();
        }
        json!({
            "cdiVersion": CDI_VERSION,
            "kind": kind,
            "devices": devices.collect::<Vec<_>>(),
            "containerEdits": edits,
        })
    }

    /// Writes a CDI file with a device for each of these GPUs into this folder. Returns its path.
    pub fn write_cdi(&self, folder: &Path, gpus: &[NodeGpu]) -> Result<PathBuf> {
        let devices = gpus.iter().map(|gpu| CdiEntry {
            name: gpu.uuid.clone(),
            gpus: vec![gpu],
            variables: BTreeMap::new(),
        });
        let devices: Vec<CdiEntry> = devices.collect();
        let path = folder.join(CDI_FILE);
        write_file(&path, &self.cdi(CDI_KIND, &devices))?;
        Ok(path)
    }

    /// Whether the GPU can be used: its device node exists, or is not known.
    pub fn is_there(&self, gpu: &NodeGpu) -> bool {
        gpu.node.as_ref().is_none_or(|node| self.dev.join(node).exists())
    }

    fn variables_of_all(&self) -> BTreeMap<String, String> {
        let library = self.weft_folder.join("libweft.so");
        let mut all = BTreeMap::from([
            ("LD_PRELOAD".to_string(), library.to_string_lossy().into_owned()),
            ("WEFT_SOCKET".to_string(), self.socket.to_string_lossy().into_owned()),
            // A broker that a container starts would not know the jobs of other containers.
            ("WEFT_AUTOSTART".to_string(), "0".to_string()),
        ]);
        all.extend(self.variables.clone());
        all
    }

    /// Folders that a container sees at the node's paths. A read-only mount is enough for a socket.
    fn mounts(&self) -> Vec<String> {
        let folders = [Some(self.weft_folder.as_path()), self.socket.parent()];
        let mut paths: Vec<String> = folders
            .into_iter()
            .flatten()
            .map(|path| path.to_string_lossy().into_owned())
            .collect();
        paths.dedup();
        paths
    }

    fn nodes_of(&self, gpu: &NodeGpu) -> Vec<String> {
        gpu.node.iter().filter_map(|node| self.existing(node)).collect()
    }

    fn common_nodes(&self) -> Vec<String> {
        COMMON_NODES.iter().filter_map(|node| self.existing(node)).collect()
    }

    /// The path of a device node on the node, if it exists.
    fn existing(&self, node: &str) -> Option<String> {
        self.dev.join(node).exists().then(|| format!("/dev/{node}"))
    }
}

/// Writes a file as JSON, atomically. Makes its folder if it is missing.
pub fn write_file(path: &Path, content: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(content)?;
    let write = || -> std::io::Result<()> {
        let (folder, name) = (path.parent(), path.file_name());
        let (Some(folder), Some(name)) = (folder, name) else {
            return Err(std::io::ErrorKind::InvalidInput.into());
        };
        // Container engines read only names that end with .json or .yaml.
        let new = folder.join(format!(".{}.new", name.to_string_lossy()));
        fs::create_dir_all(folder)?;
        let mut file = fs::File::create(&new)?;
        writeln!(file, "{text}")?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// The variables that select the GPUs: NVIDIA's container runtime reads the first, CUDA the second.
fn variables_of(gpus: &[&NodeGpu]) -> BTreeMap<String, String> {
    let uuids: Vec<&str> = gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
    ["NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"]
        .into_iter()
        .map(|name| (name.to_string(), uuids.join(",")))
        .collect()
}

fn mount(path: String) -> Mount {
    Mount {
        container_path: path.clone(),
        host_path: path,
        read_only: true,
    }
}

fn device(path: String) -> DeviceSpec {
    DeviceSpec {
        container_path: path.clone(),
        host_path: path,
        permissions: "rw".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn gpu() -> NodeGpu {
        NodeGpu {
            uuid: "GPU-a".into(),
            node: Some("nvidia0".into()),
            numa: None,
        }
    }

    /// Settings with a `dev` folder that has these nodes.
    fn settings(dev: &Path, nodes: &[&str]) -> ContainerSettings {
        for node in nodes {
            fs::write(dev.join(node), "").unwrap();
        }
        ContainerSettings {
            weft_folder: "/opt/weft".into(),
            socket: "/run/weft/broker.sock".into(),
            share_mib: None,
            variables: BTreeMap::new(),
            dev: dev.to_path_buf(),
            cdi: false,
        }
    }

    #[test]
    fn a_container_gets_variables_mounts_and_the_nodes_that_are_there() {
        let dev = tempfile::tempdir().unwrap();
        let answer = settings(dev.path(), &["nvidia0", "nvidia1", "nvidiactl"]).answer(&[&gpu()], 1);
        assert_eq!(answer.envs["LD_PRELOAD"], "/opt/weft/libweft.so");
        assert_eq!(answer.envs["WEFT_SOCKET"], "/run/weft/broker.sock");
        assert_eq!(answer.envs["WEFT_AUTOSTART"], "0");
        assert_eq!(answer.envs["WEFT_OUTCOME"], "on");
        assert_eq!(answer.envs["NVIDIA_VISIBLE_DEVICES"], "GPU-a");
        assert_eq!(answer.envs["CUDA_VISIBLE_DEVICES"], "GPU-a");
        assert!(!answer.envs.contains_key("WEFT_MEMORY"));
        let nodes: Vec<&str> = answer.devices.iter().map(|spec| spec.host_path.as_str()).collect();
        assert_eq!(nodes, ["/dev/nvidia0", "/dev/nvidiactl"]);
        let mounts: Vec<&str> = answer.mounts.iter().map(|one| one.container_path.as_str()).collect();
        assert_eq!(mounts, ["/opt/weft", "/run/weft"]);
        assert!(
            answer
                .mounts
                .iter()
                .all(|one| one.read_only && one.host_path == one.container_path)
        );
    }

    #[test]
    fn a_container_with_two_gpus_gets_both() {
        let dev = tempfile::tempdir().unwrap();
        let other = NodeGpu {
            uuid: "GPU-b".into(),
            node: Some("nvidia1".into()),
            numa: None,
        };
        let answer = settings(dev.path(), &["nvidia0", "nvidia1", "nvidiactl"]).answer(&[&gpu(), &other], 2);
        assert_eq!(answer.envs["CUDA_VISIBLE_DEVICES"], "GPU-a,GPU-b");
        assert_eq!(answer.envs["NVIDIA_VISIBLE_DEVICES"], "GPU-a,GPU-b");
        let nodes: Vec<&str> = answer.devices.iter().map(|spec| spec.host_path.as_str()).collect();
        assert_eq!(nodes, ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"]);
    }

    #[test]
    fn shares_that_stand_for_memory_say_so() {
        let dev = tempfile::tempdir().unwrap();
        let settings = ContainerSettings {
            share_mib: Some(1024),
            ..settings(dev.path(), &[])
        };
        assert_eq!(settings.answer(&[&gpu()], 12).envs["WEFT_MEMORY"], "12288MiB");
    }

    #[test]
    fn with_cdi_the_answer_is_a_name_that_the_file_has() {
        let dev = tempfile::tempdir().unwrap();
        let settings = ContainerSettings {
            cdi: true,
            variables: BTreeMap::from([("A".into(), "b=c".into())]),
            ..settings(dev.path(), &["nvidia0", "nvidia-uvm"])
        };
        let answer = settings.answer(&[&gpu()], 1);
        assert_eq!(answer.cdi_devices[0].name, "weft.dev/gpu=GPU-a");
        assert!(answer.mounts.is_empty() && answer.devices.is_empty());
        // CDI would set a variable over the pod's own one, and this one is the pod's to change.
        assert_eq!(answer.envs, HashMap::from([("WEFT_OUTCOME".into(), "on".into())]));
        let file = settings.write_cdi(&dev.path().join("cdi"), &[gpu()]).unwrap();
        let written: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        assert_eq!(written["kind"], "weft.dev/gpu");
        assert_eq!(written["devices"][0]["name"], "GPU-a");
        let own = &written["devices"][0]["containerEdits"];
        assert_eq!(own["deviceNodes"][0]["path"], "/dev/nvidia0");
        assert_eq!(written["containerEdits"]["deviceNodes"][0]["path"], "/dev/nvidia-uvm");
        let env = written["containerEdits"]["env"].as_array().unwrap();
        assert!(!env.contains(&json!("WEFT_OUTCOME=on")));
        assert!(env.contains(&json!("LD_PRELOAD=/opt/weft/libweft.so")) && env.contains(&json!("A=b=c")));
        assert_eq!(written["containerEdits"]["mounts"][1]["hostPath"], "/run/weft");
    }

    #[test]
    fn a_gpu_whose_node_went_is_not_there() {
        let dev = tempfile::tempdir().unwrap();
        let settings = settings(dev.path(), &["nvidia0"]);
        assert!(settings.is_there(&gpu()));
        fs::remove_file(dev.path().join("nvidia0")).unwrap();
        assert!(!settings.is_there(&gpu()));
        assert!(settings.is_there(&NodeGpu { node: None, ..gpu() }));
    }
}
