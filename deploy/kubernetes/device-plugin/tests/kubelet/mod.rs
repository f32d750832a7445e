// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stand-in for the kubelet. It listens at a socket and calls the plugins that register.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server, Uri};
use tonic::{Request, Response, Status, Streaming};
use weft_device_plugin::api::device_plugin_client::DevicePluginClient;
use weft_device_plugin::api::registration_server::{Registration, RegistrationServer};
use weft_device_plugin::api::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse, ContainerPreferredAllocationRequest, Empty,
    ListAndWatchResponse, PreferredAllocationRequest, RegisterRequest,
};

/// Time limit of any step, s. Each takes a moment on an idle machine.
pub const BOUND: Duration = Duration::from_secs(60);

struct Registry {
    told: mpsc::UnboundedSender<RegisterRequest>,
    refuse: bool,
}

#[tonic::async_trait]
impl Registration for Registry {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let _ = self.told.send(request.into_inner());
        if self.refuse {
            return Err(Status::failed_precondition("not now"));
        }
        Ok(Response::new(Empty {}))
    }
}

/// A running kubelet. Dropping it ends it and closes its socket.
pub struct FakeKubelet {
    folder: PathBuf,
    registrations: mpsc::UnboundedReceiver<RegisterRequest>,
    close: Option<oneshot::Sender<()>>,
}

impl FakeKubelet {
    /// Starts like a kubelet: it empties the folder, then listens. With `refuse` it registers no
    /// plugin.
    pub fn start(folder: &Path, refuse: bool) -> Self {
        for old in std::fs::read_dir(folder).unwrap() {
            std::fs::remove_file(old.unwrap().path()).unwrap();
        }
        let listener = UnixListener::bind(folder.join("kubelet.sock")).unwrap();
        let (told, registrations) = mpsc::unbounded_channel();
        let (close, closed) = oneshot::channel::<()>();
        let serving = Server::builder()
            .add_service(RegistrationServer::new(Registry { told, refuse }))
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), async {
                let _ = closed.await;
            });
        tokio::spawn(serving);
        Self {
            folder: folder.to_path_buf(),
            registrations,
            close: Some(close),
        }
    }

    /// The next registration.
    pub async fn registration(&mut self) -> RegisterRequest {
        within("a registration", self.registrations.recv()).await.unwrap()
    }

    /// Whether no registration has arrived since the last one read.
    pub fn heard_nothing(&mut self) -> bool {
        self.registrations.try_recv().is_err()
    }

    /// The plugin behind a registration.
    pub async fn plugin(&self, registered: &RegisterRequest) -> Plugin {
        let path = self.folder.join(&registered.endpoint);
        let connect = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
        });
        let channel = Endpoint::from_static("http://plugin")
            .connect_with_connector(connect)
            .await
            .unwrap();
        Plugin {
            client: DevicePluginClient::new(channel),
        }
    }
}

impl Drop for FakeKubelet {
    fn drop(&mut self) {
        drop(self.close.take());
    }
}

/// A plugin that registered.
pub struct Plugin {
    pub client: DevicePluginClient<Channel>,
}

impl Plugin {
    /// The lists of shares that the plugin sends.
    pub async fn lists(&mut self) -> Streaming<ListAndWatchResponse> {
        self.client.list_and_watch(Empty {}).await.unwrap().into_inner()
    }

    /// Waits for a list in which every share whose id contains `of` has this health. Returns all
    /// ids of the list.
    pub async fn wait(lists: &mut Streaming<ListAndWatchResponse>, of: &str, health: &str) -> Vec<String> {
        loop {
            let list = within(health, lists.message()).await.unwrap().expect("the list ended");
            let mut mine = list.devices.iter().filter(|one| one.id.contains(of)).peekable();
            if mine.peek().is_some() && mine.all(|one| one.health == health) {
                return list.devices.into_iter().map(|one| one.id).collect();
            }
        }
    }

    /// The edits to a container with these shares.
    pub async fn allocate(&mut self, ids: &[String]) -> Result<ContainerAllocateResponse, Status> {
        let container_requests = vec![ContainerAllocateRequest {
            devices_ids: ids.to_vec(),
        }];
        let answer = self.client.allocate(AllocateRequest { container_requests }).await?;
        Ok(answer.into_inner().container_responses.remove(0))
    }

    /// The `size` of these shares that the plugin prefers.
    pub async fn preferred(&mut self, available: &[String], size: i32) -> Result<Vec<String>, Status> {
        let container_requests = vec![ContainerPreferredAllocationRequest {
            available_device_i_ds: available.to_vec(),
            must_include_device_i_ds: vec![],
            allocation_size: size,
        }];
        let asked = PreferredAllocationRequest { container_requests };
        let answer = self.client.get_preferred_allocation(asked).await?;
        Ok(answer.into_inner().container_responses.remove(0).device_i_ds)
    }
}

/// The result of `coming`, or a panic that names it if it takes longer than [`BOUND`].
pub async fn within<T>(what: &str, coming: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, coming)
        .await
        .unwrap_or_else(|_| panic!("{what} did not come"))
}
