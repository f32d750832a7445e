// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft top --json`: one line of JSON per look (docs/json.md explains the keys).
#![forbid(unsafe_code)]

use serde::Serialize;
use weft_api::outcome::{Outcome, Warning};
use weft_api::status::SCHEMA;

use super::board::{Board, SortKey};

/// One look.
#[derive(Debug, Serialize)]
pub struct TopLine<'a> {
    /// Version of these keys.
    schema: u32,
    /// Length of the interval, seconds; 0 for the first look.
    interval_s: f64,
    /// The policy in force.
    policy: &'a str,
    /// Process id of the broker.
    broker: u32,
    /// Devices that jobs use.
    devices: Vec<TopDevice<'a>>,
    /// Jobs, foreground jobs first.
    jobs: Vec<TopJob<'a>>,
    /// Current warnings about protection.
    warnings: &'a [Warning],
}

#[derive(Debug, Serialize)]
struct TopDevice<'a> {
    uuid: &'a str,
    name: &'a str,
    jobs: usize,
    memory_held: u64,
    memory: Option<u64>,
    gpu: Option<f64>,
    gpu_at_most: bool,
}

#[derive(Debug, Serialize)]
struct TopJob<'a> {
    name: &'a str,
    client: u64,
    pid: u32,
    uid: u32,
    priority: u8,
    state: String,
    device: Option<&'a str>,
    gpu: Option<f64>,
    gpu_at_most: bool,
    late: Option<f64>,
    launches_per_s: f64,
    memory: u64,
    profile: Option<&'a str>,
    outcome: Option<&'a Outcome>,
}

/// The line of a look; `None` before the first answer.
pub fn line(board: &Board) -> Option<TopLine<'_>> {
    let status = board.latest()?;
    let devices = board.devices().iter().map(|row| TopDevice {
        uuid: &row.uuid,
        name: &row.called,
        jobs: row.jobs,
        memory_held: row.held,
        memory: row.memory,
        gpu: row.gpu.last(),
        gpu_at_most: row.gpu_at_most,
    });
    let jobs = board.jobs(SortKey::Role).into_iter().map(|job| TopJob {
        name: &job.status.name,
        client: job.status.client,
        pid: job.status.pid,
        uid: job.status.uid,
        priority: job.status.priority,
        state: super::super::status::role(&job.status),
        device: job.status.device_uuid.as_deref(),
        gpu: job.gpu.last(),
        gpu_at_most: job.gpu_at_most,
        late: job.late.last(),
        launches_per_s: job.launches_per_s,
        memory: job.status.memory,
        profile: job.status.profile.as_deref(),
        outcome: job.status.outcome.as_ref(),
    });
    Some(TopLine {
        schema: SCHEMA,
        interval_s: board.interval_s(),
        policy: &status.broker.policy,
        broker: status.broker.pid,
        devices: devices.collect(),
        jobs: jobs.collect(),
        warnings: &status.warnings,
    })
}
