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

use anyhow::{Context, Result};
use tokio::sync::{Notify, oneshot, watch};
use tonic::service::Routes;

use self::node::{DRIVER, DraNode};
use crate::registration::{LONGEST_PAUSE, ServedSocket};

pub mod api;
pub mod claims;
pub mod node;
pub mod parameters;
pub mod publish;
pub mod service;
pub mod slice;

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
