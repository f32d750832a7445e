//! Which recordings of events something waits for, and whether in the step they were recorded in.

use std::collections::{HashMap, HashSet};

use super::raw::{Record, Recording, What};

/// Which recordings of events are waited for, by sequence.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// In their own step alone.
    pub here: HashSet<u64>,
    /// In another one.
    pub elsewhere: HashSet<u64>,
}

impl Waits {
    /// Of this recording.
    pub fn of(recording: &Recording) -> Waits {
        let mut waits = Waits::default();
        let mut last: HashMap<u64, (u64, u64)> = HashMap::new();
        let mut step = 0;
        for record in &recording.events {
            let Record::Operation(operation) = record else {
                step += u64::from(matches!(record, Record::Mark(_) | Record::Stop(_)));
                continue;
            };
            match operation.what {
                What::Record { event, .. } => {
                    last.insert(event, (operation.sequence, step));
                }
                What::SyncEvent(event) | What::Wait { event, .. } => {
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
