// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's side of the protocol: the kubelet registers it, and asks it to prepare claims.
//!
//! Each call may come again, also to a driver that started anew: the claim's allocation decides,
//! and the same allocation gives the same file.
#![forbid(unsafe_code)]

use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use tokio::sync::{Mutex, Notify, watch};
use tonic::{Request, Response, Status};

use super::api::dra_plugin_server::{DraPlugin, DraPluginServer};
use super::api::registration::registration_server::{Registration, RegistrationServer};
use super::api::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use super::api::{
    Claim, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use super::claims;
use super::node::{CDI_KIND, DRIVER, DraNode, device_name};
use crate::edits::{self, CdiEntry};
use crate::gpus::NodeGpu;

/// The service's name in the kubelet's list of versions, for Kubernetes 1.34 and newer.
const VERSION: &str = "v1.DRAPlugin";

/// The most characters of a claim's uid. It becomes part of a file's name.
const LONGEST_UID: usize = 63;

/// The service that prepares claims.
pub fn claims(node: &'static DraNode, broker: watch::Receiver<bool>) -> DraPluginServer<impl DraPlugin> {
    DraPluginServer::new(ClaimService {
        node,
        broker,
        turn: Mutex::new(()),
    })
}

/// The service by which the kubelet registers the driver. `registered` gets a permit each time.
pub fn registration(node: &'static DraNode, registered: &'static Notify) -> RegistrationServer<impl Registration> {
    RegistrationServer::new(DriverRegistration { node, registered })
}

struct DriverRegistration {
    node: &'static DraNode,
    registered: &'static Notify,
}

#[tonic::async_trait]
impl Registration for DriverRegistration {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "DRAPlugin".to_string(),
            name: DRIVER.to_string(),
            endpoint: self.node.socket().to_string_lossy().into_owned(),
            supported_versions: vec![VERSION.to_string()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            log::info!("the kubelet registered {DRIVER}");
            self.registered.notify_one();
        } else {
            log::error!("the kubelet refuses {DRIVER}: {}", status.error);
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

struct ClaimService {
    node: &'static DraNode,
    broker: watch::Receiver<bool>,
    /// One call at a time: a claim that is removed while it is prepared leaves no file.
    turn: Mutex<()>,
}

#[tonic::async_trait]
impl DraPlugin for ClaimService {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let _turn = self.turn.lock().await;
        let mut answer = NodePrepareResourcesResponse::default();
        for claim in request.into_inner().claims {
            let (devices, error) = match self.prepare(&claim).await {
                Ok(devices) => (devices, String::new()),
                Err(error) => (Vec::new(), failed(&claim, &error)),
            };
            let prepared = NodePrepareResourceResponse { devices, error };
            answer.claims.insert(claim.uid, prepared);
        }
        Ok(Response::new(answer))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let _turn = self.turn.lock().await;
        let mut answer = NodeUnprepareResourcesResponse::default();
        for claim in request.into_inner().claims {
            let error = self
                .unprepare(&claim)
                .map_or_else(|error| failed(&claim, &error), |()| String::new());
            let undone = NodeUnprepareResourceResponse { error };
            answer.claims.insert(claim.uid, undone);
        }
        Ok(Response::new(answer))
    }
}

/// The line for the kubelet, which shows it as an event of the pod.
fn failed(claim: &Claim, error: &anyhow::Error) -> String {
    let line = format!("claim {}/{}: {error:#}", claim.namespace, claim.name);
    log::warn!("{line}");
    line
}

impl ClaimService {
    async fn prepare(&self, asked: &Claim) -> Result<Vec<Device>> {
        let file = self.file(&asked.uid)?;
        let path = format!(
            "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims/{}",
            asked.namespace, asked.name
        );
        let claim = self.node.api.get(&path).await?.context("there is no such claim")?;
        let uid = claim["metadata"]["uid"].as_str().unwrap_or_default();
        ensure!(uid == asked.uid, "it has the uid {uid}, not {}", asked.uid);
        let gpus: Vec<NodeGpu> = self.node.gpus.iter().map(|one| one.gpu.clone()).collect();
        let requests = claims::requests(&claim, &self.node.name, &gpus)?;
        // A claim that was prepared stays so: its containers run, and may start again.
        if !file.exists() {
            let missing = |gpu: &&&NodeGpu| !self.node.settings.is_there(gpu);
            if let Some(gpu) = requests.iter().flat_map(|one| &one.gpus).find(missing) {
                anyhow::bail!("{} is gone", gpu.uuid);
            }
            ensure!(*self.broker.borrow(), "weft's broker does not answer on this node");
        }
        let cdi_name = |request: &str| format!("{}-{request}", asked.uid);
        let entries = requests.iter().map(|request| CdiEntry {
            name: cdi_name(&request.name),
            gpus: request.gpus.clone(),
            variables: request.variables.clone(),
        });
        let entries: Vec<CdiEntry> = entries.collect();
        edits::write_file(&file, &self.node.settings.cdi(CDI_KIND, &entries))?;
        let devices = requests.iter().flat_map(|request| {
            // The first device of a request stands for all its edits.
            let edits = Some(format!("{CDI_KIND}={}", cdi_name(&request.name)));
            let edits = edits.into_iter().map(Some).chain(std::iter::repeat(None));
            request.gpus.iter().zip(edits).map(move |(gpu, edits)| Device {
                request_names: vec![request.name.clone()],
                pool_name: self.node.name.clone(),
                device_name: device_name(gpu),
                cdi_device_ids: edits.into_iter().collect(),
            })
        });
        Ok(devices.collect())
    }

    fn unprepare(&self, asked: &Claim) -> Result<()> {
        let file = self.file(&asked.uid)?;
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", file.display()))
            }
            _ => Ok(()),
        }
    }

    /// The claim's CDI file.
    fn file(&self, uid: &str) -> Result<PathBuf> {
        let plain = |one: char| one.is_ascii_alphanumeric() || one == '-';
        ensure!(
            !uid.is_empty() && uid.len() <= LONGEST_UID && uid.chars().all(plain),
            "{uid:?} is not a uid"
        );
        Ok(self.node.cdi.join(format!("weft.dev-claim_{uid}.json")))
    }
}
