// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recordings of events that a call awaits, in the same step or another.

use std::collections::{HashMap, HashSet};

use super::raw::{CallKind, Record, RecorderFile};

/// Sequence numbers of recordings that a call awaits.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// Awaited only in their own step.
    pub here: HashSet<u64>,
    /// Awaited in another step.
    pub elsewhere: HashSet<u64>,
}

impl Waits {
    /// Finds the waits of a recording.
    pub fn of(recording: &RecorderFile) -> Waits {
        let mut waits = Waits::default();
        let mut last: HashMap<u64, (u64, u64)> = HashMap::new();
        let mut step = 0;
        for record in &recording.events {
            let Record::Operation(operation) = record else {
                step += u64::from(matches!(record, Record::Mark(_) | Record::Stop(_)));
                continue;
            };
            match operation.what {
                CallKind::Record { event, .. } => {
                    last.insert(event, (operation.sequence, step));
                }
                CallKind::SyncEvent(event) | CallKind::Wait { event, .. } => {
                    if let Some((sequence, recorded)) = last.get(&event) {
                        let kind = if *recorded == step {
                            &mut waits.here
                        } else {
                            &mut waits.elsewhere
                        };
                        kind.insert(*sequence);
                    }
                }
                _ => {}
            }
        }
        waits
    }
}
