// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft-device-plugin`: offers shares of this node's GPUs to the kubelet, as a device plugin or as
//! a driver of Dynamic Resource Allocation.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};
use weft_device_plugin::api_server::ApiServer;
use weft_device_plugin::dra;
use weft_device_plugin::dra::node::{DraNode, OfferedGpu};
use weft_device_plugin::edits::{self, ContainerSettings};
use weft_device_plugin::gpus::{self, GpuSources, NodeGpu};
use weft_device_plugin::health::BrokerProbe;
use weft_device_plugin::registration::{self, RegistrationSettings};
use weft_device_plugin::service::NodeOffer;
use weft_device_plugin::{install, shares, weft};

/// Time between two searches on a node without a GPU, s. A driver may be installed later.
const SEARCH_PERIOD: Duration = Duration::from_secs(30);

/// Offers shares of this node's GPUs to the kubelet, for jobs under weft
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct PluginArgs {
    #[command(subcommand)]
    command: PluginCommand,
}

#[derive(Debug, Subcommand)]
enum PluginCommand {
    /// Serve the kubelet until SIGTERM
    Serve(ServeArgs),
    /// The same as a driver of Dynamic Resource Allocation (Kubernetes 1.34)
    Dra(DraArgs),
    /// Write the CDI file and exit
    Cdi(CdiArgs),
    /// Copy weft's files into a folder of the node that containers mount
    Install {
        /// weft's folder in this image
        #[arg(long, value_name = "FOLDER", default_value = "/usr/lib/weft")]
        from: PathBuf,
        /// The node's folder, as this process sees it
        #[arg(long, value_name = "FOLDER")]
        to: PathBuf,
    },
}

#[derive(Debug, Args)]
struct OfferArgs {
    /// GPUs to offer, GPU-UUID or GPU-UUID=nvidia0; default: all that the driver lists
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = gpus::of_option)]
    gpus: Vec<NodeGpu>,
    /// weft's folder, the same on the node and in containers
    #[arg(long, value_name = "FOLDER", default_value = "/opt/weft", value_parser = absolute)]
    weft_folder: PathBuf,
    /// The broker's socket, the same on the node and in containers
    #[arg(long, value_name = "PATH", default_value = "/run/weft/broker.sock", value_parser = absolute)]
    socket: PathBuf,
    /// A further variable for containers; may be repeated
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    variables: Vec<(String, String)>,
    /// The `weft` command
    #[arg(long, value_name = "PATH", default_value = "weft")]
    weft: PathBuf,
    /// The node's /dev, as this process sees it
    #[arg(long, value_name = "FOLDER", default_value = "/dev")]
    dev: PathBuf,
    /// The node's /proc, as this process sees it
    #[arg(long, value_name = "FOLDER", default_value = "/proc")]
    proc: PathBuf,
    /// The node's /sys, as this process sees it
    #[arg(long, value_name = "FOLDER", default_value = "/sys")]
    sys: PathBuf,
}

#[derive(Debug, Args)]
struct ServeArgs {
    #[command(flatten)]
    offer: OfferArgs,
    #[command(flatten)]
    watch: WatchArgs,
    /// Name of the resource that pods request
    #[arg(long, value_name = "NAME", default_value = "weft.dev/gpu-share", value_parser = resource)]
    resource: String,
    /// Device memory that a share stands for, MiB; sets WEFT_MEMORY of containers
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    share_mib: Option<u64>,
    /// Give a container as many GPUs as it has shares: each share is of another GPU
    #[arg(long, conflicts_with_all = ["share_mib", "cdi_dir"])]
    several_gpus: bool,
    /// Write a CDI file there, and give containers GPUs by their names in it
    #[arg(long, value_name = "FOLDER")]
    cdi_dir: Option<PathBuf>,
    /// The kubelet's folder of plugin sockets
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/kubelet/device-plugins")]
    kubelet_dir: PathBuf,
}

#[derive(Debug, Args)]
struct WatchArgs {
    /// Shares of each GPU: the most containers, or claims, that may use it
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=i64::from(shares::MOST_SHARES)))]
    shares: u32,
    /// Time between two queries to the broker, ms
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    broker_period_ms: u64,
    /// The longest time that the broker may take to answer, ms
    #[arg(long, value_name = "MS", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    broker_bound_ms: u64,
    /// Time between two checks of the kubelet's socket, ms
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    kubelet_period_ms: u64,
}

#[derive(Debug, Args)]
struct DraArgs {
    #[command(flatten)]
    offer: OfferArgs,
    #[command(flatten)]
    watch: WatchArgs,
    /// This node's name
    #[arg(long, value_name = "NAME")]
    node: String,
    /// Folder of CDI files that the container engine reads
    #[arg(long, value_name = "FOLDER", default_value = "/var/run/cdi")]
    cdi_dir: PathBuf,
    /// The kubelet's folder, the same on the node
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/kubelet", value_parser = absolute)]
    kubelet_dir: PathBuf,
    /// The API server, HOST:PORT; default: the cluster's
    #[arg(long, value_name = "ADDRESS")]
    api_server: Option<String>,
    /// Folder with the service account's token and ca.crt
    #[arg(
        long,
        value_name = "FOLDER",
        default_value = "/var/run/secrets/kubernetes.io/serviceaccount"
    )]
    account: PathBuf,
}

#[derive(Debug, Args)]
struct CdiArgs {
    #[command(flatten)]
    offer: OfferArgs,
    /// Folder of the CDI file
    #[arg(long, value_name = "FOLDER", default_value = "/etc/cdi")]
    dir: PathBuf,
}

impl OfferArgs {
    fn sources(&self) -> Result<GpuSources> {
        gpus::check_nodes(&self.gpus)?;
        Ok(GpuSources {
            listed: self.gpus.clone(),
            proc: self.proc.clone(),
            sys: self.sys.clone(),
            weft: self.weft.clone(),
        })
    }

    fn settings(&self, share_mib: Option<u64>, cdi: bool) -> ContainerSettings {
        ContainerSettings {
            weft_folder: self.weft_folder.clone(),
            socket: self.socket.clone(),
            share_mib,
            variables: self.variables.iter().cloned().collect(),
            dev: self.dev.clone(),
            cdi,
        }
    }
}

fn absolute(text: &str) -> Result<PathBuf> {
    let path = PathBuf::from(text);
    let plain = path.is_absolute() && path.parent().is_some() && !text.contains([':', '\n']);
    anyhow::ensure!(plain, "a container needs an absolute path");
    Ok(path)
}

fn variable(text: &str) -> Result<(String, String)> {
    let (name, value) = text.split_once('=').context("write NAME=VALUE")?;
    let mut letters = name.chars();
    let first = letters
        .next()
        .is_some_and(|one| one.is_ascii_alphabetic() || one == '_');
    let rest = letters.all(|one| one.is_ascii_alphanumeric() || one == '_');
    anyhow::ensure!(first && rest, "{name:?} is not a variable name");
    anyhow::ensure!(
        !edits::OWN_VARIABLES.contains(&name),
        "{name} is set for each container"
    );
    weft::check(name, value).map_err(|why| anyhow::anyhow!("{name}: {why}"))?;
    Ok((name.to_string(), value.to_string()))
}

/// A resource name `DOMAIN/NAME`, the form that Kubernetes requires of resources not its own.
fn resource(text: &str) -> Result<String> {
    let (domain, name) = text.split_once('/').context("write DOMAIN/NAME")?;
    let part = |part: &str, more: &[char]| {
        let inside = |one: char| one.is_ascii_alphanumeric() || more.contains(&one);
        let end = |one: Option<char>| one.is_some_and(|one| one.is_ascii_alphanumeric());
        part.len() <= 63 && part.chars().all(inside) && end(part.chars().next()) && end(part.chars().last())
    };
    let own = domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
    anyhow::ensure!(
        part(domain, &['-', '.']) && part(name, &['-', '_', '.']) && !own && domain == domain.to_ascii_lowercase(),
        "{text} is not a resource name: write DOMAIN/NAME, such as weft.dev/gpu-share"
    );
    Ok(text.to_string())
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().filter_or("WEFT_LOG", "info")).init();
    let args = PluginArgs::parse();
    let done = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")
        .and_then(|runtime| match args.command {
            PluginCommand::Serve(serve) => runtime.block_on(serve_node(serve)),
            PluginCommand::Dra(dra) => runtime.block_on(serve_claims(dra)),
            PluginCommand::Cdi(cdi) => runtime.block_on(write_cdi(cdi)),
            PluginCommand::Install { from, to } => install::install(&from, &to),
        });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weft-device-plugin: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn write_cdi(args: CdiArgs) -> Result<()> {
    let found = gpus::find(&args.offer.sources()?).await?;
    anyhow::ensure!(!found.is_empty(), "no GPU here: name some with --gpus");
    println!(
        "{}",
        args.offer.settings(None, true).write_cdi(&args.dir, &found)?.display()
    );
    Ok(())
}

/// A receiver of the end: SIGTERM or SIGINT.
fn end() -> Result<oneshot::Receiver<()>> {
    let (tell, end) = oneshot::channel::<()>();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        let _ = tell.send(());
    });
    Ok(end)
}

/// Starts the broker's check. The receiver has its latest result.
fn watch_broker(offer: &OfferArgs, watch: &WatchArgs) -> watch::Receiver<bool> {
    let probe = BrokerProbe {
        weft: offer.weft.clone(),
        socket: offer.socket.clone(),
        period: Duration::from_millis(watch.broker_period_ms),
        bound: Duration::from_millis(watch.broker_bound_ms),
    };
    let (tell, broker) = watch::channel(false);
    tokio::spawn(probe.watch(tell));
    broker
}

fn told(offered: &[NodeGpu], shares: u32) {
    for gpu in offered {
        let node = gpu.node.as_deref().unwrap_or("node not known");
        log::info!("{shares} shares of {} ({node})", gpu.uuid);
    }
}

async fn serve_node(args: ServeArgs) -> Result<()> {
    let mut end = end()?;
    let declared = args.offer.variables.iter().any(|(name, _)| name == "WEFT_MEMORY");
    anyhow::ensure!(
        args.share_mib.is_none() || !declared,
        "--env WEFT_MEMORY: with --share-mib a container's shares set it"
    );
    let sources = args.offer.sources()?;
    let Some(found) = search(async || gpus::find(&sources).await, &mut end).await else {
        return Ok(());
    };
    let settings = args.offer.settings(args.share_mib, args.cdi_dir.is_some());
    if let Some(folder) = &args.cdi_dir {
        log::info!("CDI file: {}", settings.write_cdi(folder, &found)?.display());
    }
    told(&found, args.watch.shares);
    let broker = watch_broker(&args.offer, &args.watch);
    let offer = Arc::new(NodeOffer::new(found, args.watch.shares, args.several_gpus, settings));
    let registration = RegistrationSettings {
        folder: args.kubelet_dir,
        endpoint: format!("{}.sock", args.resource.replace('/', "_")),
        resource: args.resource,
        period: Duration::from_millis(args.watch.kubelet_period_ms),
    };
    registration::run(&registration, offer, broker, end).await
}

async fn serve_claims(args: DraArgs) -> Result<()> {
    let address = args.api_server.or_else(ApiServer::address_of_pod);
    let address = address.context("no API server: this is no pod, name one with --api-server HOST:PORT")?;
    let mut end = end()?;
    let sources = args.offer.sources()?;
    let offered = async || {
        let found = gpus::find(&sources).await?;
        let mut traits = gpus::traits(&sources.weft).await?;
        let with = |gpu: NodeGpu| -> Result<OfferedGpu> {
            let traits = traits.remove(&gpu.uuid);
            let traits = traits.with_context(|| format!("weft doctor does not list {}", gpu.uuid))?;
            Ok(OfferedGpu { gpu, traits })
        };
        found.into_iter().map(with).collect::<Result<Vec<_>>>()
    };
    let Some(offered) = search(offered, &mut end).await else {
        return Ok(());
    };
    let gpus: Vec<NodeGpu> = offered.iter().map(|one| one.gpu.clone()).collect();
    told(&gpus, args.watch.shares);
    let broker = watch_broker(&args.offer, &args.watch);
    let mut settings = args.offer.settings(None, true);
    // CDI sets a variable over the pod's own one, so only values of the chart and claims change it.
    let outcome = settings.variables.entry("WEFT_OUTCOME".to_string());
    outcome.or_insert_with(|| "on".to_string());
    let node = DraNode {
        name: args.node,
        gpus: offered,
        settings,
        shares: args.watch.shares,
        cdi: args.cdi_dir,
        kubelet: args.kubelet_dir,
        api: ApiServer {
            address,
            account: args.account,
        },
        period: Duration::from_millis(args.watch.kubelet_period_ms),
    };
    dra::run(Box::leak(Box::new(node)), broker, end).await
}

/// The GPUs of this node, as soon as it has any. `None` if the plugin must end first.
async fn search<T>(find: impl AsyncFn() -> Result<Vec<T>>, end: &mut oneshot::Receiver<()>) -> Option<Vec<T>> {
    let mut told = false;
    loop {
        match find().await {
            Ok(found) if !found.is_empty() => return Some(found),
            Ok(_) if told => {}
            Ok(_) => log::warn!("no GPU here; looking again every {} s", SEARCH_PERIOD.as_secs()),
            Err(error) => log::warn!("{error:#}; looking again in {} s", SEARCH_PERIOD.as_secs()),
        }
        told = true;
        tokio::select! {
            _ = &mut *end => return None,
            () = tokio::time::sleep(SEARCH_PERIOD) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_option_is_one_line() {
        let wrong: [&[&str]; 13] = [
            &["--shares", "0"],
            &["--shares", "1025"],
            &["--resource", "gpu"],
            &["--resource", "nvidia.kubernetes.io/gpu"],
            &["--gpus", "0"],
            &["--env", "=x"],
            &["--env", "A B=x"],
            &["--env", "LD_PRELOAD=/x.so"],
            &["--env", "WEFT_SOCKET=/x"],
            &["--env", "WEFT_PRIORITY=urgent"],
            &["--env", "WEFT_SLOWDOWN=150%"],
            &["--socket", "broker.sock"],
            &["--weft-folder", "/opt:weft"],
        ];
        for words in wrong {
            let all = ["weft-device-plugin", "serve"].iter().chain(words);
            let said = PluginArgs::try_parse_from(all).unwrap_err().to_string();
            assert!(said.contains(words[1]), "{said}");
        }
        for good in ["A=", "WEFT_PRIORITY=high", "WEFT_MEMORY=8GiB:20GiB"] {
            PluginArgs::try_parse_from(["weft-device-plugin", "serve", "--env", good]).unwrap();
        }
    }
}
