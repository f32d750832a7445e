// SPDX-License-Identifier: MIT OR Apache-2.0
//! E-LAS: least attained service; a job that makes progress counts as having attained less.
//!
//! | paper | here |
//! |---|---|
//! | attained service, GPUs times time | [`RankedJob::service`] |
//! | completed epochs | `done_ppm`, the part of the work that is done |
//! | epoch progress rate | part done for each GPU-hour |
//!
//! ```text
//! key = service / (1 + progress rate)
//! ```
//!
//! The paper was not available in full. The formula is a reading of its abstract, so its results
//! are no verdict on the paper. Epochs are not seen at a driver, so the part of the work replaces
//! them. The abstract does not state how often jobs change places. Here they do at each event and
//! every minute. A waiting job goes before a running one only if it had less by a minute on that
//! job's GPUs.

use weft_cluster::Ns;
use weft_cluster::policies::{ClusterPolicy, OrderKey, RankedJob};

const MINUTE_NS: Ns = 60_000_000_000;

/// Order by attained service and progress.
#[derive(Debug, Clone)]
pub struct ElasOrder;

const GPU_HOUR_NS: u128 = 60 * MINUTE_NS as u128;

/// Lead of a running job over a waiting one, so that two do not take turns at each event.
const HOLD_NS: u128 = MINUTE_NS as u128;

fn key(job: &RankedJob) -> u128 {
    let service = job.service();
    // Millionths: 1 + (done / 1e6) / (service / GPU-hour).
    let rate = (u128::from(job.done_ppm) * GPU_HOUR_NS)
        .checked_div(service)
        .unwrap_or(0);
    let effective = service * 1_000_000 / (1_000_000 + rate);
    let hold = HOLD_NS * u128::from(job.gpu_milli) / 1_000;
    if job.running {
        effective.saturating_sub(hold)
    } else {
        effective
    }
}

impl ClusterPolicy for ElasOrder {
    fn name(&self) -> &'static str {
        "elas"
    }

    fn keyed(&self) -> bool {
        true
    }

    fn key(&mut self, _now: Ns, job: &RankedJob) -> OrderKey {
        OrderKey(key(job), 0)
    }

    fn preempts(&self) -> bool {
        true
    }

    fn look_every(&self) -> Option<Ns> {
        Some(MINUTE_NS)
    }
}
