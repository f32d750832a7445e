//! Serves the plugin's socket and registers it, again after each start of the kubelet.
//!
//! A kubelet that starts makes a new socket and empties the folder of plugins' sockets. This module
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
use tonic::transport::{Endpoint, Server, Uri};

use crate::api::RegisterRequest;
use crate::api::device_plugin_server::DevicePluginServer;
use crate::api::registration_client::RegistrationClient;
use crate::service::{NodeOffer, ShareService, options};

/// The version of the protocol that is sent to the kubelet.
pub const VERSION: &str = "v1beta1";

/// Name of the kubelet's socket in its folder.
pub const KUBELET_SOCKET: &str = "kubelet.sock";

/// Bound of a registration, s. The kubelet answers at once.
const REGISTER_BOUND: Duration = Duration::from_secs(10);

/// The longest pause after a failure, s: the time of a kubelet's start.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Bound for the end of calls after the socket is closed, s.
const END_BOUND: Duration = Duration::from_secs(2);

/// Settings of the registration.
#[derive(Debug, Clone)]
pub struct RegistrationSettings {
    /// The kubelet's folder of plugins' sockets.
    pub folder: PathBuf,
    /// Name of the plugin's socket in it.
    pub endpoint: String,
    /// The resource that pods request.
    pub resource: String,
    /// Time between two checks of the sockets.
    pub period: Duration,
}

/// Identity of a socket's file. Another socket with the same path has another identity.
type SocketIdentity = (u64, u64, i64, i64);

fn identity(path: &Path) -> Option<SocketIdentity> {
    let about = fs::symlink_metadata(path).ok()?;
    Some((about.dev(), about.ino(), about.ctime(), about.ctime_nsec()))
}

/// Serves and registers until `end` is sent or dropped.
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

/// Serves one kubelet. Returns if another kubelet is there, or this plugin's socket was removed.
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
    let serving = ServedSocket::start(settings, ShareService::new(offer.clone(), usable))?;
    let own = serving.identity;
    register(settings, &kubelet).await?;
    log::info!(
        "registered {} with the kubelet at {}",
        settings.resource,
        kubelet.display()
    );
    loop {
        tokio::select! {
            changed = broker.changed() => changed.context("the broker's probe has ended")?,
            () = tokio::time::sleep(settings.period) => {}
        }
        let now = offer.usable(*broker.borrow_and_update());
        told.send_if_modified(|was| {
            let changed = *was != now;
            *was = now;
            changed
        });
        let other = identity(&kubelet).is_some_and(|now| now != registered);
        if other || identity(&serving.path) != Some(own) {
            // Lists end with their sender; so the calls of the old kubelet end.
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
        // The address is unused: the connector knows the path.
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

/// The plugin's socket and the task that serves it. Both end with this value.
struct ServedSocket {
    path: PathBuf,
    identity: SocketIdentity,
    close: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl ServedSocket {
    fn start(settings: &RegistrationSettings, service: ShareService) -> Result<Self> {
        let path = settings.folder.join(&settings.endpoint);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot take {} away", path.display()));
            }
            _ => {}
        }
        let listener = UnixListener::bind(&path).with_context(|| format!("cannot listen at {}", path.display()))?;
        let identity = identity(&path).with_context(|| format!("{} disappeared at once", path.display()))?;
        let (close, closed) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let serving = Server::builder()
                .add_service(DevicePluginServer::new(service))
                .serve_with_incoming_shutdown(UnixListenerStream::new(listener), async {
                    let _ = closed.await;
                });
            if let Err(error) = serving.await {
                log::error!("the plugin's socket: {error}");
            }
        });
        Ok(Self {
            path,
            identity,
            close: Some(close),
            task,
        })
    }

    async fn stop(mut self) {
        drop(self.close.take());
        if tokio::time::timeout(END_BOUND, &mut self.task).await.is_err() {
            log::warn!("calls of the old kubelet did not end; they are dropped");
        }
    }
}

impl Drop for ServedSocket {
    fn drop(&mut self) {
        self.task.abort();
        // Another plugin may have taken the path.
        if identity(&self.path) == Some(self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
