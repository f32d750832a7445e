// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plugin's side of the protocol: the list of shares, and the edits to a container with one.
#![forbid(unsafe_code)]

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use crate::api::device_plugin_server::DevicePlugin;
use crate::api::{
    AllocateRequest, AllocateResponse, ContainerPreferredAllocationResponse, Device, DevicePluginOptions, Empty,
    ListAndWatchResponse, NumaNode, PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, TopologyInfo,
};
use crate::edits::ContainerSettings;
use crate::gpus::NodeGpu;
use crate::shares::SharePool;

/// The kubelet's word for a share that it may hand out.
pub const HEALTHY: &str = "Healthy";

/// The kubelet's word for a share that it may not hand out.
pub const UNHEALTHY: &str = "Unhealthy";

/// The shares that this node offers, and the settings of their containers.
#[derive(Debug)]
pub struct NodeOffer {
    gpus: Vec<NodeGpu>,
    pool: SharePool,
    settings: ContainerSettings,
}

impl NodeOffer {
    /// An offer of `each` shares of each of these GPUs. `several`: each share of a container is of
    /// another GPU.
    pub fn new(gpus: Vec<NodeGpu>, each: u32, several: bool, settings: ContainerSettings) -> Self {
        let pool = SharePool::new(gpus.iter().map(|gpu| gpu.uuid.clone()), each).of_several(several);
        Self { gpus, pool, settings }
    }

    /// Whether each GPU can be used now, in the offer's order. Without the broker no GPU can.
    pub fn usable(&self, broker: bool) -> Vec<bool> {
        self.gpus
            .iter()
            .map(|gpu| broker && self.settings.is_there(gpu))
            .collect()
    }

    /// All shares, in the form that the kubelet receives.
    fn list(&self, usable: &[bool]) -> Vec<Device> {
        let mut list = Vec::new();
        for (gpu, usable) in self.gpus.iter().zip(usable) {
            let health = if *usable { HEALTHY } else { UNHEALTHY };
            let topology = gpu.numa.map(|id| TopologyInfo {
                nodes: vec![NumaNode { id }],
            });
            list.extend(self.pool.ids(&gpu.uuid).map(|id| Device {
                id,
                health: health.to_string(),
                topology: topology.clone(),
            }));
        }
        list
    }
}

/// The service that answers the kubelet. Only the kubelet keeps state: the same request gets the
/// same answer.
#[derive(Debug, Clone)]
pub struct ShareService {
    offer: Arc<NodeOffer>,
    usable: watch::Receiver<Vec<bool>>,
}

impl ShareService {
    /// A service for this offer. `usable` has a flag for each GPU of the offer. The kubelet's list
    /// ends when the sender of `usable` is dropped.
    pub fn new(offer: Arc<NodeOffer>, usable: watch::Receiver<Vec<bool>>) -> Self {
        Self { offer, usable }
    }
}

type DeviceListStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl DevicePlugin for ShareService {
    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(options()))
    }

    type ListAndWatchStream = DeviceListStream;

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<DeviceListStream>, Status> {
        let offer = self.offer.clone();
        let lists = WatchStream::new(self.usable.clone()).map(move |usable| {
            Ok(ListAndWatchResponse {
                devices: offer.list(&usable),
            })
        });
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let mut container_responses = Vec::new();
        for wanted in request.into_inner().container_requests {
            let size = usize::try_from(wanted.allocation_size)
                .map_err(|_| Status::invalid_argument("a negative number of shares"))?;
            let device_i_ds = self
                .offer
                .pool
                .preferred(&wanted.available_device_i_ds, &wanted.must_include_device_i_ds, size)
                .map_err(|error| Status::invalid_argument(error.to_string()))?;
            container_responses.push(ContainerPreferredAllocationResponse { device_i_ds });
        }
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let mut container_responses = Vec::new();
        for wanted in request.into_inner().container_requests {
            let uuids = self
                .offer
                .pool
                .gpus_of_all(&wanted.devices_ids)
                .map_err(|error| Status::invalid_argument(error.to_string()))?;
            let usable = self.usable.borrow().clone();
            let named = self.offer.gpus.iter().zip(usable);
            let named = named.filter(|(gpu, _)| uuids.contains(gpu.uuid.as_str()));
            let mut gpus = Vec::new();
            for (gpu, usable) in named {
                // The broker may have gone since the last list. Without it weft cannot hold this
                // job back, and the job would slow the others down.
                if !usable {
                    return Err(Status::unavailable(format!(
                        "{} cannot give a share: weft's broker does not answer on this node, or the GPU is gone",
                        gpu.uuid
                    )));
                }
                gpus.push(gpu);
            }
            container_responses.push(self.offer.settings.answer(&gpus, wanted.devices_ids.len()));
        }
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

/// The plugin's options, which the kubelet receives when the plugin registers.
pub fn options() -> DevicePluginOptions {
    DevicePluginOptions {
        pre_start_required: false,
        get_preferred_allocation_available: true,
    }
}
