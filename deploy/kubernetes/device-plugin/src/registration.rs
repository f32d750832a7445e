// SPDX-License-Identifier: MIT OR Apache-2.0
//! Serves the plugin's socket and registers it, again each time the kubelet restarts.
//!
//! A kubelet that starts recreates its socket and empties the folder of plugin sockets. The plugin
//! watches for both.
#![forbid(unsafe_code)]

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::Routes;
use tonic::transport::{Endpoint, Server, Uri};

use crate::api::RegisterRequest;
use crate::api::device_plugin_server::DevicePluginServer;
use crate::api::registration_client::RegistrationClient;
use crate::service::{NodeOffer, ShareService, options};

/// The protocol version that the plugin sends to the kubelet.
pub const VERSION: &str = "v1beta1";

/// Name of the kubelet's socket in its folder.
pub const KUBELET_SOCKET: &str = "kubelet.sock";

/// The longest time that registering may take, s. A kubelet normally answers at once.
const REGISTER_BOUND: Duration = Duration::from_secs(10);

/// The longest pause after a failure, s: about the time that a kubelet takes to start.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The time that open calls have to end after the socket is closed, s.
const END_BOUND: Duration = Duration::from_secs(2);

/// The socket and the resource to register.
#[derive(Debug, Clone)]
pub struct RegistrationSettings {
    /// The kubelet's folder of plugin sockets.
    pub folder: PathBuf,
    /// Name of the plugin's socket in that folder.
    pub endpoint: String,
    /// Name of the resource that pods request.
    pub resource: String,
    /// Time between two checks of the sockets.
    pub period: Duration,
}

/// Device, inode and change time of a socket. They differ for a new socket at the same path.
type SocketIdentity = (u64, u64, i64, i64);

fn identity(path: &Path) -> Option<SocketIdentity> {
    let about = fs::symlink_metadata(path).ok()?;
    Some((about.dev(), about.ino(), about.ctime(), about.ctime_nsec()))
}

/// Serves and registers until `end` receives a message or its sender is dropped.
pub async fn run(
    settings: &RegistrationSettings,
    offer: Arc<NodeOffer>,
    broker: watch::Receiver<bool>,
    mut end: oneshot::Receiver<()>,
) -> Result<()> {
    let mut pause = settings.period;
    loop {
        let step = tokio::select! {
            _ = &mut end => return Ok(()),
            step = serve_once(settings, offer.clone(), broker.clone()) => step,
        };
        match step {
            Ok(()) => {
                log::info!("the kubelet restarted: registering again");
                pause = settings.period;
            }
            Err(error) => {
                log::warn!("{error:#}; trying again in {} s", pause.as_secs_f32());
                tokio::select! {
                    _ = &mut end => return Ok(()),
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// Serves one kubelet. Returns when the kubelet's socket is a new one, or the plugin's is gone.
async fn serve_once(
    settings: &RegistrationSettings,
    offer: Arc<NodeOffer>,
    mut broker: watch::Receiver<bool>,
) -> Result<()> {
    let kubelet = settings.folder.join(KUBELET_SOCKET);
    let Some(registered) = identity(&kubelet) else {
        anyhow::bail!("no kubelet at {}", kubelet.display());
    };
    let (told, usable) = watch::channel(offer.usable(*broker.borrow_and_update()));
    let service = DevicePluginServer::new(ShareService::new(offer.clone(), usable));
    let serving = ServedSocket::start(settings.folder.join(&settings.endpoint), Routes::new(service))?;
    register(settings, &kubelet).await?;
    log::info!(
        "registered {} with the kubelet at {}",
        settings.resource,
        kubelet.display()
    );
    loop {
        tokio::select! {
            changed = broker.changed() => changed.context("the broker check has ended")?,
            () = tokio::time::sleep(settings.period) => {}
        }
        let now = offer.usable(*broker.borrow_and_update());
        told.send_if_modified(|was| {
            let changed = *was != now;
            *was = now;
            changed
        });
        let other = identity(&kubelet).is_some_and(|now| now != registered);
        if other || !serving.is_there() {
            // The lists end when their sender is dropped, which ends the calls of the old kubelet.
            drop(told);
            serving.stop().await;
            return Ok(());
        }
    }
}

async fn register(settings: &RegistrationSettings, kubelet: &Path) -> Result<()> {
    let path = kubelet.to_path_buf();
    let connect = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    let ask = async {
        // The address is unused: the connector has the path.
        let channel = Endpoint::from_static("http://kubelet")
            .connect_with_connector(connect)
            .await?;
        let request = RegisterRequest {
            version: VERSION.to_string(),
            endpoint: settings.endpoint.clone(),
            resource_name: settings.resource.clone(),
            options: Some(options()),
        };
        RegistrationClient::new(channel).register(request).await?;
        anyhow::Ok(())
    };
    tokio::time::timeout(REGISTER_BOUND, ask)
        .await
        .map_err(|_| anyhow::anyhow!("it did not answer within {} s", REGISTER_BOUND.as_secs()))
        .and_then(|done| done)
        .with_context(|| format!("cannot register with the kubelet at {}", kubelet.display()))
}

/// A socket for the kubelet, and the task that serves it. Dropping it removes both.
pub(crate) struct ServedSocket {
    path: PathBuf,
    identity: SocketIdentity,
    close: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl ServedSocket {
    pub(crate) fn start(path: PathBuf, routes: Routes) -> Result<Self> {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", path.display()));
            }
            _ => {}
        }
        let listener = UnixListener::bind(&path).with_context(|| format!("cannot listen at {}", path.display()))?;
        let identity = identity(&path).with_context(|| format!("{} was removed at once", path.display()))?;
        let (close, closed) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let serving = Server::builder().add_routes(routes).serve_with_incoming_shutdown(
                UnixListenerStream::new(listener),
                async {
                    let _ = closed.await;
                },
            );
            if let Err(error) = serving.await {
                log::error!("a socket for the kubelet: {error}");
            }
        });
        Ok(Self {
            path,
            identity,
            close: Some(close),
            task,
        })
    }

    /// Whether its path still leads to this socket.
    pub(crate) fn is_there(&self) -> bool {
        identity(&self.path) == Some(self.identity)
    }

    pub(crate) async fn stop(mut self) {
        drop(self.close.take());
        if tokio::time::timeout(END_BOUND, &mut self.task).await.is_err() {
            log::warn!("calls of the old kubelet did not end; they are dropped");
        }
    }
}

impl Drop for ServedSocket {
    fn drop(&mut self) {
        self.task.abort();
        // The path may belong to another plugin by now.
        if self.is_there() {
            let _ = fs::remove_file(&self.path);
        }
    }
}
