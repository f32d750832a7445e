// SPDX-License-Identifier: MIT OR Apache-2.0
//! A driver of Dynamic Resource Allocation: each GPU is a device whose shares and memory claims
//! consume.
//!
//! `slice` describes the devices and `publish` keeps that description at the API server. The
//! scheduler allocates them to claims. `service` prepares a claim when the kubelet asks for it: it
//! writes a CDI file with the edits to containers. `claims` and `parameters` decide them and are
//! pure. The files are the only state, so a driver that starts anew needs no other.
#![forbid(unsafe_code)]

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::{Notify, oneshot, watch};
use tonic::service::Routes;

use crate::api_server::ApiServer;
use crate::edits::ContainerSettings;
use crate::gpus::NodeGpu;
use crate::registration::{LONGEST_PAUSE, ServedSocket};

pub mod claims;
pub mod parameters;
pub mod publish;
pub mod service;
pub mod slice;

/// The protocols with the kubelet, generated from `proto/dra.proto` and
/// `proto/pluginregistration.proto`.
pub mod api {
    #![allow(missing_docs, clippy::all)]
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
    /// How the kubelet registers the driver.
    pub mod registration {
        tonic::include_proto!("pluginregistration");
    }
}

/// The driver's name, which is also the domain of its attributes.
pub const DRIVER: &str = "weft.dev";

/// Vendor and class of the devices of a claim's CDI file.
pub const CDI_KIND: &str = "weft.dev/claim";

/// The name of a GPU's device: its UUID, as a label of DNS.
pub fn device_name(gpu: &NodeGpu) -> String {
    gpu.uuid.to_ascii_lowercase()
}

/// A node with its GPUs, and the places that the driver uses.
#[derive(Debug)]
pub struct DraNode {
    /// The node's name, which is also that of its pool.
    pub name: String,
    /// Its GPUs.
    pub gpus: Vec<slice::OfferedGpu>,
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

/// Serves the kubelet and keeps the API server's description until `end` receives a message or its
/// sender is dropped.
pub async fn run(node: &'static DraNode, broker: watch::Receiver<bool>, end: oneshot::Receiver<()>) -> Result<()> {
    let registered: &'static Notify = Box::leak(Box::default());
    tokio::select! {
        _ = end => Ok(()),
        end = publish::run(node, broker.clone(), registered) => end,
        end = serve(node, broker, registered) => end,
    }
}

/// Serves both sockets, again if one of them was taken away.
async fn serve(node: &'static DraNode, broker: watch::Receiver<bool>, registered: &'static Notify) -> Result<()> {
    let mut pause = node.period;
    loop {
        // The kubelet watches this folder, and calls the driver as soon as the socket is there.
        let registry = node.kubelet.join("plugins_registry").join(format!("{DRIVER}-reg.sock"));
        let started = || -> Result<[ServedSocket; 2]> {
            if let Some(folder) = node.socket().parent() {
                fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
            }
            let own = Routes::new(service::claims(node, broker.clone()));
            let register = Routes::new(service::registration(node, registered));
            Ok([
                ServedSocket::start(node.socket(), own)?,
                ServedSocket::start(registry, register)?,
            ])
        };
        match started() {
            Ok(sockets) => {
                pause = node.period;
                while sockets.iter().all(ServedSocket::is_there) {
                    tokio::time::sleep(node.period).await;
                }
                log::warn!("a socket for the kubelet was taken away: serving both again");
                for socket in sockets {
                    socket.stop().await;
                }
            }
            Err(error) => {
                log::warn!("{error:#}; trying again in {} s", pause.as_secs_f32());
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}
