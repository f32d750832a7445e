// SPDX-License-Identifier: MIT OR Apache-2.0
//! Outcome book: the sums of each client, added up interval by interval. Pure: its inputs are
//! snapshots and the time.
//!
//! An interval lies between two snapshots of a device, a second or less. It also ends when a client
//! attaches or exits. So within an interval the mode changes only through `weft set` or a memory
//! turn; then the mode at the end counts for the whole interval. If a client attached, its part
//! begins when it attached. For the others the earlier modes count if it attached in the second
//! half of the interval, else the new ones: on a busy machine the snapshot may be late.
//!
//! ```text
//! F     = GPU time of the foreground jobs in the interval
//! B(b)  = GPU time of background job b in it
//! L     = lateness at the foreground jobs' waits in it, measured
//! cost(b) += L * B(b) / sum B; in equal parts if the sum is 0
//! left(b) += max(B(b), (interval - F) / number of background jobs with work)
//! plain(b) = min(left(b), B(b) + its waits at the gate)
//! ```
//!
//! If a foreground job marks its requests, `L` is the lateness of these requests: their time minus
//! that of the same number of requests as the only job. That is the whole delay of the job; its
//! waits show a part of it.
//!
//! Counters of the core restart at 0 if a client leaves the core and returns, for example to wait
//! for memory. A figure below the previous one is therefore all new.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use weft_profiles::TypicalLaunch;
use weft_protocol::Ns;
use weft_protocol::lane::MarkedRequests;
use weft_scheduler::ClientView;

use super::carried::CarriedSums;
use weft_api::outcome::{GuaranteedPart, JobCounters, LatenessSum, Outcome, Won};
use weft_api::status::ClientStatus;

/// Uncertain part of the time of a launch that is too short to be timed exactly, ns. The simulated
/// GPU's log has up to 2.1 us on a busy host (`pytest tests/regressions/test_told.py`). The rest is
/// a margin.
const UNCERTAIN_NS: Ns = 3_000;

/// Launches with a known time from which on their mean is used for launches without one.
const ENOUGH_LAUNCHES: u64 = 32;

/// Marked requests without other jobs from which on their mean is used.
const ENOUGH_REQUESTS: u64 = 32;

/// Largest standard error of that mean, as a part of it. A mean that includes a few slow requests
/// of a job's first seconds has a far larger error.
const CLOSE_RATIO: f64 = 0.01;

/// Snapshots without the end of a marked request after which lateness is measured at waits again.
const LONGEST_QUIET: u32 = 16;

/// Most devices remembered, more than any machine has. With more devices, all are forgotten and
/// begin a first interval again.
const MOST_DEVICES: usize = 256;

/// Sums of one client. Skipped fields concern only this broker.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ClientSums {
    /// The core's figures and mode in the last snapshot.
    #[serde(skip)]
    seen: CoreFigures,
    #[serde(skip)]
    mode: &'static str,
    /// The device and the time of the last snapshot.
    #[serde(skip)]
    device: String,
    #[serde(skip)]
    until: Ns,
    /// The sum of the differences between snapshots.
    sum: CoreFigures,
    alone: Ns,
    foreground: Ns,
    background: Ns,
    /// Lateness of foreground jobs caused by this background job, and their judged time meanwhile,
    /// ns.
    cost: f64,
    cost_of: f64,
    plain: f64,
    /// Its background time with a guaranteed part.
    part: PartSums,
    /// The time that its launches were held until the last snapshot, ns.
    #[serde(skip)]
    held: Ns,
    /// Whether foreground jobs on its device were judged meanwhile.
    company_judged: bool,
    /// Requests at which its cost was measured.
    cost_requests: u64,
    /// Marked requests together with other jobs in the last snapshot: their number and their time,
    /// ns.
    #[serde(skip)]
    marked: (u64, Ns),
    /// Snapshots since a marked request ended.
    #[serde(skip)]
    quiet: u32,
    /// Its lateness at marked requests as a foreground job.
    at_requests: RequestLateness,
    /// The longest of all launches, ns, and the hash of its kernel.
    longest: (Ns, u64),
}

/// Background time in which a client was to have a part of the device's time and had work, ns, and
/// parts of it.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
struct PartSums {
    time: f64,
    wanted: f64,
    gpu: f64,
    occupied: f64,
    held: f64,
}

impl PartSums {
    fn add(&mut self, more: PartSums) {
        self.time += more.time;
        self.wanted += more.wanted;
        self.gpu += more.gpu;
        self.occupied += more.occupied;
        self.held += more.held;
    }

    fn outcome(self) -> Option<GuaranteedPart> {
        let occupied = self.occupied.max(self.gpu).min(self.time);
        let part = |of: f64| of / self.time;
        (self.wanted > 0.0).then(|| GuaranteedPart {
            seconds: self.time / 1e9,
            wanted: part(self.wanted),
            had: part(self.gpu),
            behind: part((occupied - self.gpu).max(0.0)),
            held: part(self.held.min(self.time - occupied)),
        })
    }
}

/// Figures of a client at earlier brokers.
pub(super) type CarriedClient = CarriedSums<ClientSums>;

/// Marked requests of a client, read from its lane.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct MarkedLook {
    /// Requests together with other jobs, and the sum of their times, ns.
    pub(super) beside: (u64, Ns),
    /// Mean time of a request as the only job, ns; `None`: not known well enough.
    pub(super) alone: Option<f64>,
}

impl MarkedLook {
    /// `None`: the client marks no requests.
    pub(super) fn of(times: &MarkedRequests) -> Option<MarkedLook> {
        let alone = times.alone.counts();
        let beside = times.beside.counts();
        if alone.is_none() && beside.is_none() {
            return None;
        }
        Some(MarkedLook {
            beside: beside.map_or((0, 0), |counts| (counts.count(), counts.total)),
            alone: alone.and_then(|counts| {
                let mean = counts.total as f64 / counts.count().max(1) as f64;
                let known = counts.count() >= ENOUGH_REQUESTS && counts.error() <= mean * CLOSE_RATIO;
                known.then_some(mean)
            }),
        })
    }
}

/// Lateness of marked requests.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
struct RequestLateness {
    requests: u64,
    /// Their time minus `alone`, ns.
    late: f64,
    /// The time of the same number of requests as the only job, ns.
    alone: f64,
}

/// A client's launches that are predicted to be longer than the delay bound.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LongLaunches {
    pub(super) count: u64,
    /// The longest of all launches, ns, and the hash of its kernel.
    pub(super) longest: Ns,
    pub(super) kernel: u64,
}

impl ClientSums {
    /// Adds the sums of the same client at another broker.
    fn absorb(&mut self, more: &ClientSums) {
        self.sum.add(more.sum);
        self.alone += more.alone;
        self.foreground += more.foreground;
        self.background += more.background;
        self.cost += more.cost;
        self.cost_of += more.cost_of;
        self.plain += more.plain;
        self.part.add(more.part);
        self.company_judged |= more.company_judged;
        self.cost_requests += more.cost_requests;
        self.at_requests.requests += more.at_requests.requests;
        self.at_requests.late += more.at_requests.late;
        self.at_requests.alone += more.at_requests.alone;
        if more.longest.0 > self.longest.0 {
            self.longest = more.longest;
        }
    }

    /// Lateness of its marked requests since the last snapshot; `None`: use its waits.
    fn take_requests(&mut self, marked: Option<MarkedLook>) -> Option<RequestLateness> {
        let marked = marked?;
        let before = std::mem::replace(&mut self.marked, marked.beside);
        let (requests, total) = (since(marked.beside.0, before.0), since(marked.beside.1, before.1));
        self.quiet = if requests > 0 { 0 } else { self.quiet.saturating_add(1) };
        // A request longer than an interval counts when it ends. If a job stops marking requests,
        // its waits count again.
        if marked.beside.0 == 0 || self.quiet > LONGEST_QUIET {
            return None;
        }
        let alone = requests as f64 * marked.alone?;
        Some(RequestLateness {
            requests,
            late: total as f64 - alone,
            alone,
        })
    }
}

/// The core's counters of a client.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
struct CoreFigures {
    foreground_gpu: Ns,
    background_gpu: Ns,
    brief: u64,
    at_most: f64,
    uncounted: f64,
    known: u64,
    unknown: u64,
    late: f64,
    judged: f64,
    waits: u64,
    stuck: u64,
    over_bound: u64,
    occupied: Ns,
}

impl CoreFigures {
    fn of(view: &ClientView) -> CoreFigures {
        let lateness = view.lateness.unwrap_or_default();
        CoreFigures {
            foreground_gpu: view.foreground.gpu,
            background_gpu: view.background.gpu,
            brief: view.foreground.brief + view.background.brief,
            at_most: (view.foreground.at_most + view.background.at_most) as f64,
            uncounted: view.background.uncounted as f64,
            known: view.known_launches,
            unknown: view.unknown_launches,
            late: lateness.late,
            judged: lateness.alone,
            waits: lateness.waits,
            stuck: view.stuck,
            over_bound: view.background.over_bound,
            occupied: view.occupied,
        }
    }

    /// The difference to `before`; the whole value of a counter that restarted.
    fn since(self, before: CoreFigures) -> CoreFigures {
        // Lateness may fall; only a lower number of waits shows that the account restarted.
        let (late, judged) = match self.waits < before.waits {
            true => (self.late, self.judged),
            false => (self.late - before.late, self.judged - before.judged),
        };
        // These fall, too.
        let restarted = self.background_gpu < before.background_gpu || self.foreground_gpu < before.foreground_gpu;
        let (at_most, uncounted) = match restarted {
            true => (self.at_most, self.uncounted),
            false => (self.at_most - before.at_most, self.uncounted - before.uncounted),
        };
        CoreFigures {
            foreground_gpu: since(self.foreground_gpu, before.foreground_gpu),
            background_gpu: since(self.background_gpu, before.background_gpu),
            brief: since(self.brief, before.brief),
            at_most,
            uncounted,
            known: since(self.known, before.known),
            unknown: since(self.unknown, before.unknown),
            late,
            judged,
            waits: since(self.waits, before.waits),
            stuck: since(self.stuck, before.stuck),
            over_bound: since(self.over_bound, before.over_bound),
            occupied: since(self.occupied, before.occupied),
        }
    }

    fn add(&mut self, new: CoreFigures) {
        self.foreground_gpu += new.foreground_gpu;
        self.background_gpu += new.background_gpu;
        self.brief += new.brief;
        self.at_most += new.at_most;
        self.uncounted += new.uncounted;
        self.known += new.known;
        self.unknown += new.unknown;
        self.late += new.late;
        self.judged += new.judged;
        self.waits += new.waits;
        self.stuck += new.stuck;
        self.over_bound += new.over_bound;
        self.occupied += new.occupied;
    }
}

/// The difference to `before`; the whole value if the counter restarted.
fn since(now: u64, before: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

/// One client in a snapshot.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientLook<'a> {
    pub(super) view: &'a ClientView,
    /// Time at which it came to its device.
    pub(super) since: Ns,
    /// Time that launches were held at its gate, ns.
    pub(super) held: Ns,
    /// Requests that it marked.
    pub(super) marked: Option<MarkedLook>,
}

/// One client in one interval.
#[derive(Debug)]
pub(super) struct IntervalPart {
    pub(super) client: u64,
    pub(super) mode: &'static str,
    /// Length of the interval, ns; for a new client, its time since it came.
    pub(super) length: Ns,
    pub(super) active: bool,
    /// GPU time in its role, and in any role, ns.
    gpu: Ns,
    pub(super) gpu_in_all: Ns,
    pub(super) late: f64,
    pub(super) judged: f64,
    pub(super) waits: u64,
    /// Lateness at its marked requests, which replaces that at its waits.
    at_requests: Option<RequestLateness>,
    /// Its cost, in all and to each foreground job, ns, and their judged time, ns.
    pub(super) cost: f64,
    pub(super) costs: Vec<(u64, f64)>,
    pub(super) cost_of: f64,
}

impl IntervalPart {
    /// Lateness, ns, judged time, ns, and requests: measured at its requests if it marks them, else
    /// at its waits, with 0 requests.
    fn felt(&self) -> (f64, f64, u64) {
        match self.at_requests {
            Some(felt) => (felt.late, felt.alone, felt.requests),
            None => (self.late, self.judged, 0),
        }
    }
}

#[cfg(test)]
impl IntervalPart {
    /// A part without work.
    pub(super) fn of(client: u64, mode: &'static str, length: Ns) -> IntervalPart {
        IntervalPart {
            client,
            mode,
            length,
            active: false,
            gpu: 0,
            gpu_in_all: 0,
            late: 0.0,
            judged: 0.0,
            waits: 0,
            at_requests: None,
            cost: 0.0,
            costs: Vec::new(),
            cost_of: 0.0,
        }
    }
}

/// Sums of all clients.
#[derive(Debug, Default, Clone)]
pub(super) struct OutcomeBook {
    clients: HashMap<u64, ClientSums>,
    /// Sums of clients at earlier brokers.
    carried: HashMap<u64, CarriedClient>,
    /// Time of each device's last snapshot, by UUID; empty: the first device, before it is named.
    devices: HashMap<String, Ns>,
}

impl OutcomeBook {
    /// Adds a snapshot of a device. Returns the figures of each client in the interval.
    pub(super) fn look(&mut self, now: Ns, device: &str, clients: &[ClientLook<'_>]) -> Vec<IntervalPart> {
        if self.devices.len() >= MOST_DEVICES && !self.devices.contains_key(device) {
            self.devices.clear();
        }
        // An ended client's snapshot may be older than the last one.
        let first = clients.iter().map(|of| of.since).min().unwrap_or(now);
        let last = self.devices.entry(device.to_string()).or_insert(first);
        let before = std::mem::replace(last, now.max(*last));
        let interval = now.saturating_sub(before);
        let new = clients.iter().filter(|of| !self.clients.contains_key(&of.view.client));
        let came = new.map(|of| of.since.saturating_sub(before)).max();
        let grew = came.is_some_and(|came| came >= interval / 2);
        let take = |of: &ClientLook<'_>| self.take(of, device, now, (interval, grew));
        let mut parts: Vec<IntervalPart> = clients.iter().map(take).collect();
        self.share(interval, &mut parts);
        parts
    }

    /// Adds one client's figures. `grew`: a client attached to its device, so its mode is new.
    fn take(&mut self, of: &ClientLook<'_>, device: &str, now: Ns, (interval, grew): (Ns, bool)) -> IntervalPart {
        let ClientLook {
            view,
            since,
            held,
            marked,
        } = *of;
        let is_new = !self.clients.contains_key(&view.client);
        let sums = self.clients.entry(view.client).or_default();
        // It may have been on another device, or on this one before its name was known.
        let interval = interval.min(now.saturating_sub(since.max(sums.until)));
        sums.until = sums.until.max(now);
        let mode = if grew && !is_new { sums.mode } else { view.mode };
        sums.mode = view.mode;
        if sums.device != device {
            sums.device = device.to_string();
        }
        let figures = CoreFigures::of(view);
        let new = figures.since(sums.seen);
        sums.seen = figures;
        sums.sum.add(new);
        let longest = (view.background.longest, view.background.longest_kernel);
        if longest.0 > sums.longest.0 {
            sums.longest = longest;
        }
        let at_requests = sums.take_requests(marked).filter(|_| mode == "foreground" && !is_new);
        if let Some(felt) = at_requests {
            sums.at_requests.requests += felt.requests;
            sums.at_requests.late += felt.late;
            sums.at_requests.alone += felt.alone;
        }
        let active = view.active || new.background_gpu > 0;
        let held_now = self::since(held, std::mem::replace(&mut sums.held, held));
        if let Some(part) = view.at_least.filter(|_| mode == "background" && active) {
            sums.part.add(PartSums {
                time: interval as f64,
                wanted: part * interval as f64,
                gpu: new.background_gpu as f64,
                occupied: new.occupied as f64,
                held: held_now as f64,
            });
        }
        match mode {
            "alone" => sums.alone += interval,
            "foreground" => sums.foreground += interval,
            "background" => sums.background += interval,
            _ => {}
        }
        IntervalPart {
            client: view.client,
            mode,
            length: interval,
            active,
            gpu: match mode {
                "background" => new.background_gpu,
                _ => new.foreground_gpu,
            },
            gpu_in_all: new.foreground_gpu.saturating_add(new.background_gpu),
            late: new.late,
            judged: new.judged,
            waits: new.waits,
            at_requests,
            cost: 0.0,
            costs: Vec::new(),
            cost_of: 0.0,
        }
    }

    /// Assigns each background job its part of the lateness, and of the time that was left.
    fn share(&mut self, interval: Ns, parts: &mut [IntervalPart]) {
        let of = |mode: &'static str| parts.iter().filter(move |part| part.mode == mode);
        let lost: Vec<(u64, f64)> = of("foreground").map(|part| (part.client, part.felt().0)).collect();
        let foreground: Ns = of("foreground").map(|part| part.gpu).sum();
        let late: f64 = of("foreground").map(|part| part.felt().0).sum();
        let judged: f64 = of("foreground").map(|part| part.felt().1).sum();
        let requests: u64 = of("foreground").map(|part| part.felt().2).sum();
        let background: Ns = of("background").map(|part| part.gpu).sum();
        let members = of("background").count();
        let at_work = of("background").filter(|part| part.active).count();
        let left = interval.saturating_sub(foreground) as f64;
        for part in parts.iter_mut().filter(|part| part.mode == "background") {
            let Some(sums) = self.clients.get_mut(&part.client) else {
                continue;
            };
            let share = match background {
                0 => 1.0 / members as f64,
                all => part.gpu as f64 / all as f64,
            };
            part.cost = late * share;
            sums.cost += part.cost;
            sums.cost_requests += requests;
            part.costs = lost.iter().map(|(client, late)| (*client, late * share)).collect();
            if judged > 0.0 {
                sums.cost_of += judged;
                sums.company_judged = true;
                part.cost_of = judged;
            }
            if part.active && part.length > 0 {
                // Its GPU time cannot exceed the interval.
                let left = (left / at_work.max(1) as f64).min(part.length as f64);
                sums.plain += left.max(part.gpu.min(interval) as f64);
            }
        }
    }

    /// A client's launches that are longer than the delay bound.
    pub(super) fn long(&self, client: u64) -> LongLaunches {
        let sums = self.sums(client);
        LongLaunches {
            count: sums.sum.over_bound,
            longest: sums.longest.0,
            kernel: sums.longest.1,
        }
    }

    /// Continues a client's sums at earlier brokers.
    pub(super) fn carry(&mut self, client: u64, earlier: CarriedClient) {
        self.carried.insert(client, earlier);
    }

    /// A client's sums at earlier brokers.
    pub(super) fn carried(&self, client: u64) -> Option<&CarriedClient> {
        self.carried.get(&client)
    }

    /// A client's sums for the next broker.
    pub(super) fn to_carry(&self, status: &ClientStatus, requests: &MarkedRequests) -> CarriedClient {
        let own = self.clients.get(&status.client).cloned().unwrap_or_default();
        let earlier = self.carried(status.client);
        let mut all = earlier.map(|earlier| earlier.sums.clone()).unwrap_or_default();
        all.absorb(&own);
        CarriedSums::of(status, all, requests, earlier)
    }

    /// A client's sums at this broker and earlier ones.
    fn sums(&self, client: u64) -> ClientSums {
        let mut sums = self.clients.get(&client).cloned().unwrap_or_default();
        if let Some(earlier) = self.carried(client) {
            sums.absorb(&earlier.sums);
        }
        sums
    }

    /// Forgets a client. If one client remains on its device, its mode is `alone` from now on.
    pub(super) fn forget(&mut self, client: u64) {
        self.carried.remove(&client);
        let Some(gone) = self.clients.remove(&client) else {
            return;
        };
        let mut left = self.clients.values_mut().filter(|sums| sums.device == gone.device);
        if let (Some(last), None) = (left.next(), left.next()) {
            last.mode = "alone";
        }
    }

    /// The outcome of a client so far, without warnings. `typical`: time of a launch from its
    /// profile.
    pub(super) fn outcome(&self, status: &ClientStatus, typical: Option<TypicalLaunch>) -> Outcome {
        let sums = self.sums(status.client);
        let whole = self.carried(status.client).map(|earlier| earlier.with(status));
        let status = whole.as_ref().unwrap_or(status);
        let seconds = |ns: Ns| ns as f64 / 1e9;
        let launches = status.launches + status.graph_launches;
        let told = sums.sum.known + sums.sum.unknown;
        let shared = sums.sum.foreground_gpu + sums.sum.background_gpu;
        let mean = match told >= ENOUGH_LAUNCHES && shared > 0 {
            true => Some(shared / told),
            false => typical.map(|launch| launch.time),
        };
        // Launches of an only job are counted but have no times.
        let untold = launches.saturating_sub(told);
        let gpu_ns = match (untold, mean) {
            (0, _) => Some(shared),
            (untold, Some(mean)) => Some(shared.saturating_add(untold.saturating_mul(mean))),
            (_, None) => None,
        };
        // No work takes no time: then none of its times is known. A job may only fill and copy.
        let gpu_ns = gpu_ns.filter(|ns| ns.saturating_add(sums.sum.uncounted as Ns) > 0);
        // Launches alone are as uncertain as the others.
        let brief = sums.sum.brief.saturating_mul(UNCERTAIN_NS);
        let errors = typical.unwrap_or_default();
        let timed = if shared > 0 { shared } else { gpu_ns.unwrap_or(0) };
        let uncertain = |part: f64| brief.max((timed as f64 * part) as Ns);
        let least = timed
            .saturating_sub(sums.sum.at_most as Ns)
            .saturating_sub(uncertain(errors.over));
        let scaled = |of: Ns| {
            gpu_ns.map(|ns| match timed {
                0 => of,
                _ => (ns as f64 * (of as f64 / timed as f64)) as Ns,
            })
        };
        let (foreground_s, background_s) = (seconds(sums.foreground), seconds(sums.background));
        let part = |late: f64, of: f64| if of > 0.0 { late / of } else { 0.0 };
        let mut outcome = Outcome {
            ran_s: status.attached_s,
            alone_s: (status.attached_s - foreground_s - background_s).max(0.0),
            foreground_s,
            background_s,
            gpu_ns,
            gpu_least_ns: scaled(least),
            gpu_most_ns: scaled(
                timed
                    .saturating_add(uncertain(errors.short))
                    .saturating_add(sums.sum.uncounted as Ns),
            ),
            gpu_shared_ns: shared,
            launches,
            launches_known: (told > 0).then(|| sums.sum.known as f64 / told as f64),
            lost: (sums.sum.judged > 0.0 && sums.foreground > 0).then(|| LatenessSum {
                // The stretch before a wait may have begun in another role.
                ns: sums.sum.late.min(sums.foreground as f64) as i64,
                part: part(sums.sum.late, sums.sum.judged),
                waits: sums.sum.waits,
            }),
            lost_at_requests: (sums.at_requests.alone > 0.0).then(|| LatenessSum {
                ns: sums.at_requests.late as i64,
                part: part(sums.at_requests.late, sums.at_requests.alone),
                waits: sums.at_requests.requests,
            }),
            cost_requests: sums.cost_requests,
            cost: sums.company_judged.then(|| LatenessSum {
                ns: sums.cost as i64,
                part: part(sums.cost, sums.cost_of),
                waits: 0,
            }),
            won: (sums.background > 0).then(|| {
                // At most, it could also have used the time for which its launches were held.
                let wanted = sums.sum.background_gpu.saturating_add(status.waited_ns);
                let plain = wanted.min(sums.plain as Ns);
                Won {
                    over_exclusive_ns: sums.sum.background_gpu,
                    plain_ns: plain,
                    of_plain: (plain > 0 && sums.sum.background_gpu > 0)
                        .then(|| (sums.sum.background_gpu as f64 / plain as f64).min(1.0)),
                }
            }),
            part: sums.part.outcome(),
            requests: status.requests,
            forced_launches: status.waits_expired,
            stuck_grants: sums.sum.stuck,
            memory_moved: status.prefetched + status.evicted + status.faulted,
            warnings: Vec::new(),
            counters: JobCounters::default(),
        };
        outcome.counters = JobCounters::of(&outcome, status.waited_ns);
        outcome
    }
}

#[cfg(test)]
impl OutcomeBook {
    /// Time of a client in all its roles, ns.
    pub(super) fn roles_ns(&self, client: u64) -> Ns {
        let sums = self.sums(client);
        sums.alone + sums.foreground + sums.background
    }
}

#[cfg(test)]
mod tests {
    use weft_scheduler::{Client, Config, Core, Event, Lateness, Snapshot};

    use super::*;

    const S: Ns = 1_000_000_000;

    /// Snapshot of a real core with a foreground job (client 1) and background jobs (the others).
    fn snapshot(background: u64) -> Snapshot {
        let mut core = Core::new(Config::default());
        for client in 1..=background + 1 {
            let attached = Event::Attached {
                client: Client(client),
                priority: if client == 1 { 0 } else { 5 },
                profile: None,
            };
            core.handle(0, attached, &mut Vec::new());
        }
        core.snapshot()
    }

    /// Adds a snapshot whose clients came when it was taken, and mark no requests.
    fn add(book: &mut OutcomeBook, now: Ns, device: &str, snapshot: &Snapshot) -> Vec<IntervalPart> {
        add_since(book, (now, now), device, snapshot)
    }

    /// Adds a snapshot whose new clients came at `since`.
    fn add_since(
        book: &mut OutcomeBook,
        (since, now): (Ns, Ns),
        device: &str,
        snapshot: &Snapshot,
    ) -> Vec<IntervalPart> {
        let is_new = |view: &ClientView| !book.clients.contains_key(&view.client);
        let of = |view| ClientLook {
            view,
            since: if is_new(view) { since } else { 0 },
            held: 0,
            marked: None,
        };
        let clients: Vec<ClientLook<'_>> = snapshot.clients.iter().map(of).collect();
        book.look(now, device, &clients)
    }

    fn judged(snapshot: &mut Snapshot, gpu: Ns, late: f64, alone: f64, waits: u64) {
        let view = &mut snapshot.clients[0];
        view.foreground.gpu = gpu;
        view.lateness = Some(Lateness {
            late,
            alone,
            waits,
            stretches: alone,
        });
    }

    fn had(snapshot: &mut Snapshot, at: usize, gpu: Ns) {
        let view = &mut snapshot.clients[at];
        view.background.gpu = gpu;
        (view.known_launches, view.unknown_launches) = (90, 10);
    }

    fn status(client: u64) -> ClientStatus {
        ClientStatus {
            client,
            attached_s: 10.0,
            launches: 100,
            waited_ns: 100 * S,
            ..ClientStatus::default()
        }
    }

    #[test]
    fn lateness_is_shared_by_work_and_what_is_left_equally() {
        let mut book = OutcomeBook::default();
        let mut look = snapshot(2);
        add(&mut book, 0, "d", &look);
        judged(&mut look, 4 * S, 0.1 * S as f64, 5.0 * S as f64, 50);
        had(&mut look, 1, 2 * S);
        had(&mut look, 2, S);
        add(&mut book, 10 * S, "d", &look);
        let lost = book.outcome(&status(1), None).lost.expect("judged");
        assert_eq!((lost.ns, lost.waits), (100_000_000, 50));
        assert!((lost.part - 0.02).abs() < 1e-9);
        let first = book.outcome(&status(2), None);
        let second = book.outcome(&status(3), None);
        let costs = [&first, &second].map(|outcome| outcome.cost.expect("judged").ns);
        assert_eq!(costs, [66_666_666, 33_333_333], "as their work");
        let won = first.won.expect("background");
        assert_eq!((won.over_exclusive_ns, won.plain_ns), (2 * S, 3 * S));
        assert_eq!(won.of_plain, Some(2.0 / 3.0));
        let held_little = ClientStatus {
            waited_ns: S / 2,
            ..status(2)
        };
        let won = book.outcome(&held_little, None).won.expect("background");
        assert_eq!((won.plain_ns, won.of_plain), (2 * S + S / 2, Some(0.8)));
        let only_copies = ClientStatus {
            launches: 0,
            ..status(2)
        };
        assert_eq!(book.outcome(&only_copies, None).gpu_ns, Some(2 * S));
        assert_eq!(first.launches_known, Some(0.9));
        assert_eq!((first.background_s, first.alone_s), (10.0, 0.0));
        assert_eq!(first.gpu_ns, Some(2 * S));
        assert_eq!(second.lost, None);
    }

    #[test]
    fn who_was_alone_before_another_came_was_not_its_foreground_job() {
        let mut book = OutcomeBook::default();
        let modes = |parts: &[IntervalPart]| parts.iter().map(|part| (part.mode, part.length)).collect::<Vec<_>>();
        add(&mut book, 0, "d", &snapshot(0));
        let parts = add(&mut book, 100 * S, "d", &snapshot(1));
        assert_eq!(modes(&parts), [("alone", 100 * S), ("background", 0)]);
        let parts = add(&mut book, 101 * S, "d", &snapshot(1));
        assert_eq!(modes(&parts), [("foreground", S), ("background", S)]);
        book.forget(2);
        let mut later = snapshot(2);
        later.clients.remove(1);
        let parts = add(&mut book, 200 * S, "d", &later);
        assert_eq!(modes(&parts), [("alone", 99 * S), ("background", 0)]);
        let outcome = book.outcome(&status(1), None);
        assert_eq!((outcome.foreground_s, outcome.background_s), (1.0, 0.0));
        assert_eq!(book.outcome(&status(3), None).background_s, 0.0);
    }

    #[test]
    fn a_late_snapshot_counts_a_new_client_from_its_begin() {
        let mut book = OutcomeBook::default();
        add(&mut book, 0, "d", &snapshot(0));
        let mut both = snapshot(1);
        judged(&mut both, 4 * S, 1e6, 5e9, 50);
        had(&mut both, 1, S);
        let parts = add_since(&mut book, (2 * S, 10 * S), "d", &both);
        let modes: Vec<_> = parts.iter().map(|part| (part.mode, part.length)).collect();
        assert_eq!(modes, [("foreground", 10 * S), ("background", 8 * S)]);
        assert_eq!(book.outcome(&status(2), None).cost.expect("judged").ns, 1_000_000);
        // A snapshot that was taken earlier adds no time.
        add(&mut book, 9 * S, "d", &both);
        add(&mut book, 11 * S, "d", &both);
        assert_eq!(book.outcome(&status(2), None).background_s, 9.0);
    }

    #[test]
    fn an_account_that_began_anew_loses_nothing_and_counts_nothing_twice() {
        let mut book = OutcomeBook::default();
        let mut look = snapshot(1);
        for (at, gpu, late, waits) in [(1, 4, 6e6, 10), (2, 4, 6e6, 10), (3, 1, 2e6, 2), (4, 3, 1e6, 3)] {
            judged(&mut look, gpu * S, late, 1e9, waits);
            add(&mut book, at * S, "d", &look);
        }
        let outcome = book.outcome(&status(1), None);
        assert_eq!(outcome.lost.expect("judged").ns, 7_000_000, "6, then 2, then 1 less");
        assert_eq!(outcome.gpu_shared_ns, 7 * S);
        book.forget(1);
        assert_eq!(book.outcome(&status(1), None).gpu_shared_ns, 0);
    }

    #[test]
    fn the_time_of_a_job_with_a_part_is_shared_out() {
        let mut book = OutcomeBook::default();
        let mut look = snapshot(1);
        let mut add = |look: &Snapshot, at: u64| {
            let of = |view| ClientLook {
                view,
                since: 0,
                held: at * S / 10,
                marked: None,
            };
            let clients: Vec<_> = look.clients.iter().map(of).collect();
            book.look(at * S, "d", &clients);
            book.outcome(&status(2), None).part
        };
        add(&look, 0);
        had(&mut look, 1, S);
        assert_eq!(add(&look, 2), None);
        look.clients[1].at_least = Some(0.6);
        (look.clients[1].background.gpu, look.clients[1].occupied) = (5 * S, 8 * S);
        let part = add(&look, 12).expect("a part");
        let figures = [part.seconds, part.wanted, part.had, part.behind, part.held];
        assert_eq!(
            figures.map(|figure| (figure * 100.0).round()),
            [1_000.0, 60.0, 40.0, 40.0, 10.0]
        );
        let missed = part.missed().expect("it is");
        assert!(missed.contains("so it could have 44.4 % at most"), "{missed}");
    }

    #[test]
    fn gpu_time_that_cannot_be_measured_has_bounds() {
        let mut book = OutcomeBook::default();
        let mut look = snapshot(1);
        add(&mut book, 0, "d", &look);
        // 100 launches of 4 us, and a foreground job without a profile.
        had(&mut look, 1, 400_000);
        look.clients[1].background.brief = 100;
        (look.clients[0].foreground.gpu, look.clients[0].foreground.at_most) = (S, S);
        look.clients[0].unknown_launches = 1;
        add(&mut book, S, "d", &look);
        let bounds = |outcome: Outcome| (outcome.gpu_least_ns, outcome.gpu_ns, outcome.gpu_most_ns);
        let brief = book.outcome(&status(2), None);
        assert!(
            brief.line().contains("had 100 us to 700 us of GPU time"),
            "{}",
            brief.line()
        );
        assert_eq!(bounds(brief), (Some(100_000), Some(400_000), Some(700_000)));
        let twice = ClientStatus {
            launches: 200,
            ..status(2)
        };
        assert_eq!(
            bounds(book.outcome(&twice, None)),
            (Some(200_000), Some(800_000), Some(1_400_000))
        );
        let one = ClientStatus {
            launches: 1,
            ..status(1)
        };
        let waits = book.outcome(&one, None);
        assert!(
            waits.line().contains("had at most 1.00 s of GPU time"),
            "{}",
            waits.line()
        );
        assert_eq!(waits.gpu_least_ns, Some(0));
    }

    #[test]
    fn launches_alone_are_reckoned_like_the_others_or_by_the_profile_or_not() {
        let book = OutcomeBook::default();
        let typical = Some(TypicalLaunch {
            time: 50,
            over: 0.5,
            short: 2.0,
        });
        assert_eq!(book.outcome(&status(7), None).gpu_ns, None);
        assert_eq!(book.outcome(&status(7), typical).gpu_ns, Some(5_000));
        let bounds = book.outcome(&status(7), typical);
        assert_eq!((bounds.gpu_least_ns, bounds.gpu_most_ns), (Some(2_500), Some(15_000)));
        assert_eq!(book.outcome(&ClientStatus::default(), typical).gpu_ns, None);
        let mut book = OutcomeBook::default();
        let mut look = snapshot(1);
        add(&mut book, 0, "d", &look);
        had(&mut look, 1, S);
        add(&mut book, S, "d", &look);
        let half_alone = ClientStatus {
            launches: 200,
            ..status(2)
        };
        assert_eq!(book.outcome(&half_alone, None).gpu_ns, Some(2 * S));
    }

    #[test]
    fn marked_requests_tell_what_was_lost_where_their_time_alone_is_known() {
        let times = MarkedRequests::default();
        assert_eq!(MarkedLook::of(&times), None);
        for request in 0..64u64 {
            times.alone.add(8_000_000 + request % 4 * 10_000);
        }
        let look = |book: &mut OutcomeBook, at: Ns, snapshot: &Snapshot, times: &MarkedRequests| {
            let of = |view| ClientLook {
                view,
                since: 0,
                held: 0,
                marked: MarkedLook::of(times).filter(|_| view.client == 1),
            };
            let clients: Vec<ClientLook<'_>> = snapshot.clients.iter().map(of).collect();
            book.look(at * S, "d", &clients);
        };
        let mut book = OutcomeBook::default();
        let mut snapshot = snapshot(1);
        look(&mut book, 0, &snapshot, &times);
        // No request has ended yet: lateness is measured at waits.
        judged(&mut snapshot, S, 1e6, 1e9, 10);
        had(&mut snapshot, 1, S / 2);
        look(&mut book, 1, &snapshot, &times);
        assert_eq!(book.outcome(&status(2), None).cost.expect("judged").ns, 1_000_000);
        // Ten requests of 8.515 ms are half a millisecond late each; the waits show a tenth.
        for _ in 0..10 {
            times.beside.add(8_515_000);
        }
        judged(&mut snapshot, S, 1.5e6, 1e9, 20);
        had(&mut snapshot, 1, S);
        look(&mut book, 2, &snapshot, &times);
        let lost = book.outcome(&status(1), None);
        let at_requests = lost.lost_at_requests.expect("measured");
        assert_eq!((at_requests.ns, at_requests.waits), (5_000_000, 10));
        assert!((at_requests.part - 0.5 / 8.015).abs() < 1e-9);
        assert_eq!(lost.lost.expect("judged").ns, 1_500_000, "the account is as it was");
        let background = book.outcome(&status(2), None);
        assert_eq!(background.cost.expect("judged").ns, 6_000_000, "1 ms at waits before");
        assert_eq!(background.cost_requests, 10);
        assert!(
            background.line().contains("cost the foreground job 6.00 ms"),
            "{}",
            background.line()
        );
        assert!(
            background.line().contains(", measured at 10 requests"),
            "{}",
            background.line()
        );
        assert!(
            lost.line().contains(" to background jobs, measured at 10 requests"),
            "{}",
            lost.line()
        );

        // A second in which no request ends costs nothing: the running request counts at its end.
        judged(&mut snapshot, S, 9e6, 2e9, 30);
        look(&mut book, 3, &snapshot, &times);
        assert_eq!(book.outcome(&status(2), None).cost.expect("judged").ns, 6_000_000);
        // A job that stops marking requests is measured at its waits.
        for at in 4..4 + Ns::from(LONGEST_QUIET) {
            look(&mut book, at, &snapshot, &times);
        }
        judged(&mut snapshot, S, 11e6, 2e9, 40);
        look(&mut book, 40, &snapshot, &times);
        assert_eq!(book.outcome(&status(2), None).cost.expect("judged").ns, 8_000_000);
    }

    #[test]
    fn sums_go_on_at_the_next_broker() {
        let mut look = snapshot(1);
        judged(&mut look, S, 3e6, 1e9, 10);
        had(&mut look, 1, S / 2);
        let play = |book: &mut OutcomeBook| {
            for at in [S, 2 * S] {
                let look = if at == S { snapshot(1) } else { look.clone() };
                add(book, at, "d", &look);
            }
        };
        let mut first = OutcomeBook::default();
        play(&mut first);
        let requests = MarkedRequests::default();
        requests.alone.add(8_000_000);
        let text = serde_json::to_string(&first.to_carry(&status(1), &requests)).expect("JSON");
        let earlier: CarriedClient = serde_json::from_str(&text).expect("read");
        let mut second = OutcomeBook::default();
        second.carry(7, earlier);
        let alone = super::super::carried::requests(&requests, second.carried(7).expect("carried"));
        assert_eq!(
            alone.and_then(|requests| requests.alone).map(|alone| alone.count),
            Some(2)
        );
        // At the second broker it is client 7, and also at the third.
        look.clients[0].client = 7;
        let snapshot_of = |gpu: Ns| {
            let mut look = look.clone();
            look.clients[0].foreground.gpu = gpu;
            look
        };
        let mut begin = snapshot_of(0);
        begin.clients[0].lateness = None;
        add(&mut second, S, "d", &begin);
        add(&mut second, 2 * S, "d", &snapshot_of(S));
        let whole = second.outcome(&status(7), None);
        assert_eq!((whole.ran_s, whole.foreground_s, whole.launches), (20.0, 2.0, 200));
        assert_eq!(
            (whole.lost.expect("judged").ns, whole.gpu_shared_ns),
            (6_000_000, 2 * S)
        );
        let third = second.to_carry(&status(7), &requests);
        assert_eq!(third.with(&status(1)).launches, 300);
        second.forget(7);
        assert_eq!(second.outcome(&status(7), None).ran_s, 10.0);
    }

    #[test]
    fn a_mean_of_few_requests_or_with_slow_first_ones_is_none() {
        let times = MarkedRequests::default();
        for _ in 0..ENOUGH_REQUESTS {
            assert_eq!(MarkedLook::of(&times).and_then(|look| look.alone), None);
            times.alone.add(8_000_000);
        }
        assert_eq!(MarkedLook::of(&times).and_then(|look| look.alone), Some(8_000_000.0));
        times.alone.add(2_000_000_000);
        assert_eq!(
            MarkedLook::of(&times).and_then(|look| look.alone),
            None,
            "a compiler ran"
        );
    }

    #[test]
    fn the_first_look_at_a_device_has_no_length() {
        let mut book = OutcomeBook::default();
        let mut look = snapshot(1);
        had(&mut look, 1, S);
        add(&mut book, 100 * S, "d", &look);
        assert_eq!(book.outcome(&status(2), None).background_s, 0.0);
        for device in 0..2 * MOST_DEVICES {
            add(&mut book, 0, &device.to_string(), &look);
        }
        assert!(book.devices.len() <= MOST_DEVICES);
    }
}
