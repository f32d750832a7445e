// SPDX-License-Identifier: MIT OR Apache-2.0
//! A node's offer to claims, and the names in it.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::time::Duration;

use crate::api_server::ApiServer;
use crate::edits::ContainerSettings;
use crate::gpus::{GpuTraits, NodeGpu};

/// The driver's name, which is also the domain of its attributes.
pub const DRIVER: &str = "weft.dev";

/// Vendor and class of the devices of a claim's CDI file.
pub const CDI_KIND: &str = "weft.dev/claim";

/// The name of a GPU's device: its UUID, as a label of DNS.
pub fn device_name(gpu: &NodeGpu) -> String {
    gpu.uuid.to_ascii_lowercase()
}

/// A GPU with the properties that claims may select by.
#[derive(Debug, Clone)]
pub struct OfferedGpu {
    /// The GPU.
    pub gpu: NodeGpu,
    /// Its model and its memory.
    pub traits: GpuTraits,
}

/// A node with its GPUs, and the places that the driver uses.
#[derive(Debug)]
pub struct DraNode {
    /// The node's name, which is also that of its pool.
    pub name: String,
    /// Its GPUs.
    pub gpus: Vec<OfferedGpu>,
    /// Containers' settings.
    pub settings: ContainerSettings,
    /// The most claims that may use a GPU.
    pub shares: u32,
    /// The folder of CDI files that the container engine reads.
    pub cdi: PathBuf,
    /// The kubelet's folder.
    pub kubelet: PathBuf,
    /// The API server.
    pub api: ApiServer,
    /// Time between two checks of sockets and GPUs.
    pub period: Duration,
}

impl DraNode {
    /// The path of the driver's own socket, the same on the node.
    pub fn socket(&self) -> PathBuf {
        self.kubelet.join("plugins").join(DRIVER).join("dra.sock")
    }
}
