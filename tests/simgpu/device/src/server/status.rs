// SPDX-License-Identifier: MIT OR Apache-2.0
//! The output of `simgpu-device status`.
#![forbid(unsafe_code)]

use serde_json::{Value, json};

use super::DeviceProcess;

impl DeviceProcess {
    /// The device's state as of the last turn.
    pub(super) fn status(&self) -> Value {
        let usage = self.engine.usage();
        // Peaks of the ledger: samples now and then would miss them.
        let most = self.engine.memory().map(|pager| {
            let (ledger, settings) = (pager.ledger(), pager.ledger().settings());
            let peaks = ledger.peaks();
            json!({
                "device": peaks.device,
                "device_limit": settings.capacity,
                "host": peaks.host,
                "allocated": peaks.allocated,
                "host_limit": settings.host_limit,
            })
        });
        let clients: Vec<Value> = self
            .clients
            .iter()
            .enumerate()
            .filter_map(|(number, client)| {
                let client = client.as_ref()?;
                let sums = client
                    .contexts
                    .values()
                    .filter_map(|context| self.engine.context_usage(*context));
                let mut compute = 0;
                let mut copies = [0, 0];
                let mut ended = 0;
                for sum in sums {
                    compute += sum.compute;
                    copies[0] += sum.copies[0];
                    copies[1] += sum.copies[1];
                    ended += sum.ended;
                }
                let managed = self
                    .engine
                    .memory()
                    .map(|pager| pager.usage(number as u32))
                    .unwrap_or_default();
                Some(json!({
                    "pid": client.pid,
                    "process": client.name,
                    "contexts": client.contexts.len(),
                    "streams": client.streams.len(),
                    "outstanding": client.outstanding,
                    "ended": ended,
                    "memory": self.board.held(number) + managed.resident,
                    "managed": {
                        "allocated": managed.allocated,
                        "resident": managed.resident,
                        "on_host": managed.on_host,
                        "faults": managed.faults,
                        "faulted": managed.faulted,
                        "created": managed.created,
                        "prefetched": managed.prefetched,
                        "returned": managed.returned,
                        "evicted": managed.evicted,
                        "dropped": managed.dropped,
                        "discarded": managed.discarded,
                    },
                    "compute_ns": compute,
                    "copy_ns": copies,
                }))
            })
            .collect();
        json!({
            "pid": std::process::id(),
            "now": self.engine.now(),
            // The reading of CLOCK_MONOTONIC at device time 0: device time is (reading - epoch) /
            // dilation.
            "epoch": self.clock.wall(0),
            "dilation": self.config.device.dilation,
            "mode": self.config.device.mode,
            "slice_ns": self.config.device.slice_ns,
            "switch_ns": self.config.device.switch_ns,
            "memory": {
                "total": self.board.total(),
                "used": u64::try_from(self.board.used() + self.board.resident()).unwrap_or(u64::MAX),
                "managed": u64::try_from(self.board.managed()).unwrap_or(u64::MAX),
                "resident": u64::try_from(self.board.resident()).unwrap_or(u64::MAX),
                "most": most,
            },
            "compute_ns": usage.compute,
            "copy_ns": usage.copies,
            "switching_ns": usage.switching,
            "switches": usage.switches,
            "preemptions": usage.preemptions,
            "submitted": usage.submitted,
            "ended": usage.ended,
            "aborted": usage.aborted,
            "late": usage.late,
            "turns": self.counters.turns,
            "records": self.counters.records,
            "attached": self.counters.attached,
            "cut": self.counters.cut,
            "last_cut": self.counters.last_cut,
            "log": self.log.as_ref().map(|log| json!({
                "path": log.path().display().to_string(),
                "lines": log.lines(),
                "trouble": log.trouble(),
            })),
            "clients": clients,
        })
    }
}
