// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps the node's ResourceSlice at the API server.
//!
//! GPUs that cannot be used leave the slice, so no further claim gets them. Running pods keep
//! theirs. The kubelet removes the slices of a driver that is gone, so the driver looks again from
//! time to time, and after each registration.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hyper::Method;
use serde_json::Value;
use tokio::sync::{Notify, watch};

use super::node::DraNode;
use super::slice;
use crate::registration::LONGEST_PAUSE;

/// Time between two looks at the slice, s: the longest that pods wait after its removal.
const LOOK_PERIOD: Duration = Duration::from_secs(30);

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

/// The last write of the slice.
#[derive(Debug, Default)]
struct LastWrite {
    sent: Vec<Value>,
    /// The `spec` as the API server stored it. It drops fields that its feature gates turn off, and
    /// writes quantities in its own form.
    stored: Value,
    /// Whether each GPU can be of several claims.
    shared: Option<bool>,
}

/// Publishes the usable GPUs, until the broker's check ends. `registered` has a permit after each
/// registration.
pub async fn run(node: &DraNode, mut broker: watch::Receiver<bool>, registered: &Notify) -> Result<()> {
    let mut last = LastWrite::default();
    let (mut due, mut pause) = (Instant::now(), node.period);
    loop {
        let answers = *broker.borrow_and_update();
        let usable = node
            .gpus
            .iter()
            .filter(|one| answers && node.settings.is_there(&one.gpu));
        let devices: Vec<Value> = usable.map(|one| slice::device(one, node.shares)).collect();
        let mut wait = node.period;
        if devices != last.sent || Instant::now() >= due {
            match last.bring(node, devices).await {
                Ok(()) => (due, pause) = (Instant::now() + LOOK_PERIOD, node.period),
                Err(error) => {
                    log::warn!("{error:#}; trying again in {} s", pause.as_secs_f32());
                    (wait, due) = (pause, Instant::now());
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
        tokio::select! {
            changed = broker.changed() => changed.context("the broker check has ended")?,
            () = registered.notified() => due = Instant::now(),
            () = tokio::time::sleep(wait) => {}
        }
    }
}

impl LastWrite {
    /// Writes the slice, unless it is there as it was last written.
    async fn bring(&mut self, node: &DraNode, devices: Vec<Value>) -> Result<()> {
        let path = format!("{SLICES}/{}", slice::name(node));
        let there = node.api.get(&path).await?;
        if there.as_ref().is_some_and(|there| there["spec"] == self.stored) && devices == self.sent {
            return Ok(());
        }
        let about = node.api.get(&format!("/api/v1/nodes/{}", node.name)).await?;
        let about = about.with_context(|| format!("there is no node {}", node.name))?;
        let owner = about["metadata"]["uid"].as_str().context("the node has no uid")?;
        let before = there
            .as_ref()
            .and_then(|there| there["spec"]["pool"]["generation"].as_i64());
        let mut slice = slice::slice(node, &devices, before.map_or(1, |before| before + 1), owner);
        let stored = match there {
            Some(there) => {
                // The server refuses the write if another one came between.
                slice["metadata"]["resourceVersion"] = there["metadata"]["resourceVersion"].clone();
                node.api.send(Method::PUT, &path, &slice).await?
            }
            None => node.api.send(Method::POST, SLICES, &slice).await?,
        };
        log::info!(
            "ResourceSlice {}: {} of {} GPUs",
            slice::name(node),
            devices.len(),
            node.gpus.len()
        );
        if let Some(device) = stored["spec"]["devices"].get(0) {
            let shared = device["allowMultipleAllocations"] == true;
            if !shared && self.shared != Some(shared) {
                log::warn!(
                    "this cluster gives each GPU to one claim: its feature gate DRAConsumableCapacity is off \
                     (on from Kubernetes 1.36); only pods of the same claim share a GPU"
                );
            }
            self.shared = Some(shared);
        }
        (self.sent, self.stored) = (devices, stored["spec"].clone());
        Ok(())
    }
}
