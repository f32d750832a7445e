//! What launches touch, by clients' positions in their periods, and page operations' ends, for
//! [`Residency`](super::residency::Residency); and the trace of both.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::granules::granules;
use super::thread::Thread;
use crate::clock;
use crate::trace::Memory;
use weft_paging::{GRANULE, GranuleRange, OrderKind};
use weft_protocol::Ns;
use weft_protocol::host;
use weft_protocol::page_ops::PageOpStatus;
use weft_scheduler::Client;

/// How often the whole known memory of an active client without a period counts as touched: as
/// often as it reports.
const ROUND: Duration = Duration::from_millis(500);

/// Interval of reading the host's spare memory, from a few small files.
pub(super) const SURVEY: Duration = Duration::from_secs(1);

/// Interval of trace lines on a client's memory: fine enough for a turn of a tenth of a second.
const DRAWN: Duration = Duration::from_millis(20);

impl Thread {
    /// Each client's position. Read before ended page operations: what a launch waited for came
    /// before the client went on.
    pub(super) fn positions(&self) -> Vec<(u64, Option<Ns>)> {
        let managed = self.clients.iter().filter(|(_, known)| !known.ranges.is_empty());
        managed
            .map(|(client, known)| (*client, known.forecast.position(&known.entry.lane.page_ops)))
            .collect()
    }

    /// Enters what clients touched since the last call.
    pub(super) fn touches(&mut self, positions: Vec<(u64, Option<Ns>)>, now: Instant) {
        for (client, at) in positions {
            let Some(known) = self.clients.get_mut(&client) else {
                continue;
            };
            if known.forecast.is_there() {
                let (told, residency) = (&known.told, &mut self.residency);
                for granule in known.forecast.passed(at).filter(|granule| told.contains(granule)) {
                    residency.touched(client, granule);
                }
                continue;
            }
            let due = known
                .counted
                .is_none_or(|counted| now.saturating_duration_since(counted) >= ROUND);
            let launched = known.entry.lane.counters.launches.load(Ordering::Relaxed);
            if due && launched != known.launched {
                (known.counted, known.launched) = (Some(now), launched);
                for (start, (bytes, named)) in &known.ranges {
                    if known.is_touched(*named) {
                        for granule in granules(*start, *bytes).granules() {
                            self.residency.touched(client, granule);
                        }
                    }
                }
            }
        }
    }

    /// Enters an ended page operation.
    pub(super) fn moved(&mut self, client: u64, what: OrderKind, range: GranuleRange, outcome: PageOpStatus) {
        let residency = &mut self.residency;
        match (what, outcome) {
            (OrderKind::Advise(_), _) => {}
            (OrderKind::Prefetch | OrderKind::Populate, PageOpStatus::Done) => residency.came(client, range),
            (OrderKind::Prefetch | OrderKind::Populate, PageOpStatus::Refused | PageOpStatus::Gone) => {
                residency.stays(client, range)
            }
            (OrderKind::Evict | OrderKind::Release, PageOpStatus::Done) => residency.went(client, range),
            (OrderKind::Discard, PageOpStatus::Done) => residency.gone(client, range.granules()),
            (
                OrderKind::Evict | OrderKind::Release | OrderKind::Discard,
                PageOpStatus::Refused | PageOpStatus::Gone,
            ) => {}
        }
    }

    /// Tells the planner now and then what the host has to spare.
    pub(super) fn survey(&mut self, now: Instant) {
        if now.saturating_duration_since(self.surveyed) < SURVEY {
            return;
        }
        self.surveyed = now;
        let Some(planner) = &mut self.planner else { return };
        // Evicted memory is not spare any more, and belongs to the plan.
        let lies = (planner.on_host() * GRANULE).max(self.residency.on_host());
        planner.set_host_limit(host::of_system().saturating_add(lies) / GRANULE);
    }

    /// Tells the planner a client's host bound when its report changed: `0.9 * left + evicted`. The
    /// rest is for memory that the job takes by itself.
    pub(super) fn limit(&mut self) {
        let Some(planner) = &mut self.planner else { return };
        for (client, known) in &mut self.clients {
            let left = known.entry.lane.counters.host_left.load(Ordering::Relaxed);
            if known.ranges.is_empty() || known.host_left == Some(left) {
                continue;
            }
            known.host_left = Some(left);
            let client = Client(*client);
            let limit = (left > 0).then(|| left / 10 * 9 / GRANULE + planner.on_host_of(client));
            planner.set_client_host_limit(client, limit);
        }
    }

    /// Traces what has changed.
    pub(super) fn draw(&mut self) {
        if !self.trace.wanted() || self.traced.elapsed() < DRAWN {
            return;
        }
        self.traced = Instant::now();
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        for (client, known) in &mut self.clients {
            let (counters, figures) = (&known.entry.lane.counters, &known.entry.figures);
            let memory = Memory {
                managed: read(&counters.managed),
                working_set: read(&figures.working_set),
                resident: read(&figures.resident),
                prefetched: read(&counters.prefetched),
                evicted: read(&counters.evicted),
                discarded: read(&counters.discarded),
                faulted: read(&figures.faulted),
            };
            if memory != known.drawn {
                known.drawn = memory.clone();
                self.trace.memory(clock::now(), *client, known.entry.pid, memory);
            }
        }
    }
}
