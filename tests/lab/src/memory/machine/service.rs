// SPDX-License-Identifier: MIT OR Apache-2.0
//! A latency-critical service and a batch job, on a device that does not hold both: XSched's rule
//! with demand paging, and weft.
//!
//! MSched compares itself with XSched in the same way (a ResNet152 of 6 GB with one of 12 GB on 16
//! GB). Requests come by [`RequestArrivals`] and are answered one after the other; the batch job
//! always has work.
//!
//! | | XSched ([`LaunchRule::Xsched`]) | weft ([`LaunchRule::Weft`]) |
//! |---|---|---|
//! | batch kernels that are on the device when a request comes | 16: its in-flight window, highest priority first | the one in progress, and those behind it that fit the delay bound |
//! | what happens to them | they share the device with the request, a slice each in turn, until they are through | the same |
//! | the batch job's next kernel | when the request is answered | the same |
//! | memory | faults | the broker's planner: the service is pinned, as the daemon pins a foreground job; the batch job moves its own through what is left |
//!
//! In favour of XSched: neither the hop of its suspension nor its launches' cost is modelled. The
//! same for both: requests, think times, kernels, the page ledger. One side has weft's rule with
//! the other's memory ([`Side::planned`]): it separates the effect of the rule from that of the
//! memory.
#![forbid(unsafe_code)]

use serde::Serialize;
use weft_random::Random;

use super::{BLOCK_BYTES, Contender, PagingMachine, Setting, client, default_rule};
use crate::memory::contender::{LaunchRule, Side};
use crate::memory::workload::Workload;
use crate::{MS, Ns, US};
use weft_paging::ResidencySlot;

/// XSched's in-flight window, the default of its sources.
const WINDOW: usize = 16;

/// Batch kernels that weft lets onto the device with the foreground job: the broker's default bound
/// on their time.
const DELAY_BOUND_NS: Ns = 500 * US;

/// The longest time that the batch job runs before the next check for a request.
const BATCH_STRETCH_NS: Ns = 20 * MS;

/// Requests that do not count: memory settles in its place.
const WARM: usize = 5;

/// The service is the first job of the workload, the batch job the second one.
const SERVICE: usize = 0;
const BATCH: usize = 1;

/// When requests arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestArrivals {
    /// One client: it sends its next request when it has the answer and has thought for this time
    /// in the mean, at random. A slow service gets fewer requests.
    Closed(Ns),
    /// Many clients who do not know each other: at random by the clock, with this mean distance,
    /// independently of earlier requests (a Poisson stream).
    Poisson(Ns),
    /// By the clock, with this distance: for example a camera.
    Fixed(Ns),
}

impl RequestArrivals {
    /// The same distance, but from the answer to the previous request.
    fn answered(self) -> RequestArrivals {
        match self {
            RequestArrivals::Closed(time) | RequestArrivals::Poisson(time) | RequestArrivals::Fixed(time) => {
                RequestArrivals::Closed(time)
            }
        }
    }

    /// The next request's arrival, if it is `now` and the last one came at `last`.
    fn next(self, now: Ns, last: Ns, random: &mut Random) -> Ns {
        let mut about = |mean: Ns| (-(1.0 - random.unit()).ln() * mean as f64) as Ns;
        match self {
            RequestArrivals::Closed(thought) => now + about(thought),
            RequestArrivals::Poisson(apart) => last + about(apart),
            RequestArrivals::Fixed(apart) => last + apart,
        }
    }
}

/// The figures of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ServedRequests {
    /// Latency of requests from arrival to answer, including the wait for the requests before them,
    /// ms.
    pub mean_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// The part of the time in which a request waited or was worked on. Near 1, requests come
    /// faster than they are answered, and latencies depend only on the length of the run.
    pub busy: f64,
    /// The part of the time in which the batch job ran.
    pub batch: f64,
    /// Copied for the service in this time, GB: by faults, ahead.
    pub service_gb: (f64, f64),
    /// The same for the batch job.
    pub batch_gb: (f64, f64),
    /// The largest part of the device's memory that was in use.
    pub fullest: f64,
}

impl PagingMachine {
    /// Number of batch kernels on the device now, counted from the present one. They run to their
    /// end in any case.
    fn on_device(&self, rule: LaunchRule) -> usize {
        let kernels = &self.tasks[BATCH].job.kernels;
        let at = self.tasks[BATCH].at.0;
        match rule {
            LaunchRule::Alone => 0,
            LaunchRule::Xsched => WINDOW,
            LaunchRule::Weft => {
                let mut sum = 0;
                let fits = |number: &usize| {
                    sum += kernels[(at + number) % kernels.len()].time;
                    sum <= DELAY_BOUND_NS
                };
                (0..WINDOW).take_while(fits).count().max(1)
            }
        }
    }

    /// Runs a job until `until`, or through `kernels` kernels. True if it has run them all.
    fn go_on(&mut self, task: usize, until: Ns, kernels: &mut usize) -> bool {
        while *kernels > 0 && self.now < until {
            let before = self.tasks[task].at.0;
            self.stride(task, until);
            if self.tasks[task].at.0 != before
                || (self.tasks[task].job.kernels.len() == 1 && self.tasks[task].at.1 == 0)
            {
                *kernels -= 1;
            }
        }
        *kernels == 0
    }

    /// Like [`PagingMachine::step`], but for as many bytes of a touch as are present and pass
    /// without an event. The times are the same; the computation is faster.
    fn stride(&mut self, task: usize, until: Ns) {
        let state = &self.tasks[task];
        let (number, which, done) = state.at;
        let kernel = &state.job.kernels[number];
        let touch = kernel.touches[which];
        let rest = super::Range::new(touch.range.start + done, touch.range.len - done);
        let size = state.sizes[number].max(1) as f64;
        let time = |len: u64| kernel.time as f64 * len as f64 / size + state.rest;
        // First up to the next event, in whole blocks; then up to the first block that is not
        // ready.
        let quiet = self.next_event().map_or(until, |event| event.min(until));
        let fits = quiet.saturating_sub(self.now) as f64 * size / kernel.time.max(1) as f64;
        let mut end = rest.end();
        if fits < rest.len as f64 {
            end = (rest.start + fits as u64) / BLOCK_BYTES * BLOCK_BYTES;
        }
        if end > rest.start {
            let part = super::Range::new(rest.start, end - rest.start);
            let ready = self
                .pager
                .ledger()
                .first_unready(task as u32, part, touch.access.writes());
            end = ready.map_or(end, |block| (block * BLOCK_BYTES).max(rest.start));
        }
        if end <= rest.start {
            self.step(task);
            return;
        }
        let through = end == rest.end();
        let rest = super::Range::new(rest.start, end - rest.start);
        let time = time(rest.len);
        let end = self.now + time as Ns;
        let touches = kernel.touches.len();
        let kernels = state.job.kernels.len();
        // The driver's list of recent use goes by touches.
        self.pager.touch(self.now, task as u32, rest, touch.access.writes());
        let state = &mut self.tasks[task];
        state.own += time as Ns;
        state.rest = time.fract();
        state.at = if !through {
            (number, which, done + rest.len)
        } else if which + 1 < touches {
            (number, which + 1, 0)
        } else {
            ((number + 1) % kernels, 0, 0)
        };
        self.now = end;
        if let Some(weft) = &mut self.weft {
            weft.untold += time as Ns;
            weft.planner.ran(client(task), std::mem::take(&mut weft.untold));
            weft.take_orders(self.now);
            self.pump(end);
        }
    }

    /// Reports to the planner that the other job's kernels run from now on.
    fn settle(&mut self, task: usize) {
        if let Some(weft) = &mut self.weft {
            weft.planner.ran(client(task), std::mem::take(&mut weft.untold));
            weft.take_orders(self.now);
        }
    }

    /// Makes the timeline as the daemon does when it has a foreground job: the background job, then
    /// the foreground job, which may come at any time.
    fn plan_batch(&mut self, since: &mut Ns) {
        let Some(weft) = &mut self.weft else { return };
        let length = weft.planner.turns(&default_rule()).length;
        if self.tasks[BATCH].own < *since {
            return;
        }
        *since = self.tasks[BATCH].own + length;
        let turn = |task| ResidencySlot {
            client: client(task),
            length,
        };
        weft.planner.switch(&[turn(BATCH), turn(SERVICE)]);
        weft.take_orders(self.now);
    }
}

/// Runs `requests` requests that count.
pub fn serve(
    side: Side,
    workload: &Workload,
    setting: &Setting,
    requests: usize,
    arrivals: RequestArrivals,
    seed: u64,
) -> ServedRequests {
    let contender = match (side.fits(), side.planned(), side.tuned()) {
        (true, ..) => Contender::Ideal,
        (_, true, _) => Contender::Weft,
        (.., true) => Contender::StockTuned,
        _ => Contender::Stock,
    };
    let rule = side.rule();
    let mut machine = PagingMachine::new(contender, workload, setting);
    if let Some(weft) = &mut machine.weft {
        weft.keep_reserve(setting.memory.capacity);
    }
    if let Some(weft) = &mut machine.weft {
        weft.planner.pin(client(SERVICE), true);
    }
    let mut random = Random::new(seed);
    let mut latencies = Vec::new();
    let (mut begin, mut own, mut sums) = (0, 0, [(0, 0); 2]);
    let (mut arrival, mut busy) = (0, 0);
    let mut next_plan = 0;
    let moved = |machine: &PagingMachine| {
        [SERVICE, BATCH].map(|task| {
            let usage = machine.pager.usage(task as u32);
            (usage.faulted, usage.prefetched)
        })
    };
    for request in 0..WARM + requests {
        if request == WARM {
            (begin, sums) = (machine.now, moved(&machine));
            own = machine.tasks[BATCH].own;
            machine.fullest = 0;
            busy = 0;
            arrival = machine.now;
        }
        // The requests that do not count leave no queue behind: the first ones bring all of the
        // service's memory by faults.
        arrival = if request < WARM {
            arrivals.answered().next(machine.now, arrival, &mut random)
        } else {
            arrivals.next(machine.now, arrival, &mut random)
        };
        // If a request came while another was answered, no batch kernel is on the device: none was
        // let there meanwhile.
        let waited = arrival < machine.now;
        if rule == LaunchRule::Alone {
            machine.pump(arrival);
        }
        while machine.now < arrival {
            machine.plan_batch(&mut next_plan);
            let until = arrival.min(machine.now + BATCH_STRETCH_NS);
            let mut any = usize::MAX;
            machine.go_on(BATCH, until, &mut any);
        }
        let taken_up = machine.now;
        let mut in_flight = if waited { 0 } else { machine.on_device(rule) };
        let mut left = machine.tasks[SERVICE].job.kernels.len();
        while left > 0 {
            if in_flight > 0 {
                let until = machine.now + setting.device_slice;
                machine.go_on(BATCH, until, &mut in_flight);
                machine.settle(BATCH);
            }
            let until = match in_flight {
                0 => Ns::MAX,
                _ => machine.now + setting.device_slice,
            };
            machine.go_on(SERVICE, until, &mut left);
            machine.settle(SERVICE);
        }
        // Busy since its arrival (the batch job's last step may have ended after it), or since the
        // answer before it.
        busy += machine.now - if waited { taken_up } else { arrival };
        if request >= WARM {
            latencies.push(machine.now - arrival);
        }
    }
    latencies.sort_unstable();
    let at = (latencies.len() * 99).div_ceil(100).saturating_sub(1);
    let after = moved(&machine);
    let gb = |task: usize| {
        let (faulted, ahead) = (after[task].0 - sums[task].0, after[task].1 - sums[task].1);
        (faulted as f64 / 1e9, ahead as f64 / 1e9)
    };
    ServedRequests {
        mean_ms: latencies.iter().sum::<Ns>() as f64 / latencies.len().max(1) as f64 / MS as f64,
        p99_ms: latencies.get(at).copied().unwrap_or(0) as f64 / MS as f64,
        busy: busy as f64 / (machine.now - begin).max(1) as f64,
        batch: (machine.tasks[BATCH].own - own) as f64 / (machine.now - begin).max(1) as f64,
        service_gb: gb(SERVICE),
        batch_gb: gb(BATCH),
        fullest: machine.fullest as f64 / machine.pager.ledger().room().max(1) as f64,
    }
}

#[cfg(test)]
mod tests {
    use weft_engine::memory::MemorySettings;

    use super::super::TurnSource;
    use super::*;
    use crate::memory::contender::SIDES;
    use crate::memory::workload;

    /// The device has a quarter of a gigabyte, so that runs are short.
    fn scene(training: bool) -> (Workload, Setting) {
        let memory = MemorySettings {
            capacity: 256 << 20,
            ..MemorySettings::default()
        };
        let part = memory.capacity / 16;
        let setting = Setting {
            memory,
            slice: 0,
            device_slice: 100 * US,
            turns: TurnSource::Common,
        };
        (workload::service(part * 6, part * 12, training, 1), setting)
    }

    #[test]
    fn alone_a_request_takes_its_kernels_time_and_waits_for_those_before_it() {
        let (workload, setting) = scene(false);
        let period = workload.jobs[SERVICE].period();
        let at = |arrivals, requests| serve(Side::Alone, &workload, &setting, requests, arrivals, 1);
        let half = at(RequestArrivals::Fixed(2 * period), 10);
        let took = period as f64 / MS as f64;
        assert!((half.mean_ms / took - 1.0).abs() < 1e-3, "{half:?}, {took} ms");
        assert!((half.busy - 0.5).abs() < 0.05 && half.batch == 0.0, "{half:?}");
        // More requests than it can answer: the queue grows by half a request with each.
        let (few, many) = (
            at(RequestArrivals::Fixed(period / 2), 10),
            at(RequestArrivals::Fixed(period / 2), 40),
        );
        // It is idle until the first one comes: half a request's time out of forty.
        assert!(many.busy > 0.98 && many.mean_ms > 2.0 * few.mean_ms, "{few:?} {many:?}");
        // A client who waits for its answer sends no more requests than can be answered.
        let closed = at(RequestArrivals::Closed(0), 40);
        assert!((closed.mean_ms / took - 1.0).abs() < 1e-3, "{closed:?}");
    }

    #[test]
    fn arrivals_at_random_are_as_many_as_those_by_the_clock_and_wait_for_each_other() {
        let (workload, setting) = scene(false);
        let apart = 4 * workload.jobs[SERVICE].period();
        let at = |arrivals| serve(Side::Alone, &workload, &setting, 400, arrivals, 1);
        let (fixed, random) = (at(RequestArrivals::Fixed(apart)), at(RequestArrivals::Poisson(apart)));
        assert!((random.busy - fixed.busy).abs() < 0.05, "{fixed:?} {random:?}");
        assert!(random.p99_ms > 1.5 * fixed.p99_ms, "{fixed:?} {random:?}");
    }

    #[test]
    fn figures_come_again_and_nobody_beats_the_service_alone() {
        for training in [false, true] {
            let (workload, setting) = scene(training);
            let arrivals = RequestArrivals::Poisson(5 * workload.jobs[SERVICE].period());
            let of = |side| serve(side, &workload, &setting, 20, arrivals, 1);
            let alone = of(Side::Alone);
            for side in SIDES {
                let served = of(side);
                assert_eq!(served, of(side), "{side:?}");
                assert!(
                    served.mean_ms >= alone.mean_ms * 0.999,
                    "{side:?}: {served:?} {alone:?}"
                );
                assert_eq!(served.batch > 0.0, side != Side::Alone, "{side:?}: {served:?}");
                assert!(served.fullest <= 1.0 && served.busy <= 1.0, "{side:?}: {served:?}");
                let moved = served.batch_gb.0 + served.batch_gb.1;
                assert_eq!(moved > 0.0, !side.fits(), "{side:?}: {served:?}");
            }
            let (paging, fits) = (of(Side::Xsched), of(Side::XschedFits));
            assert!(
                paging.mean_ms > fits.mean_ms && paging.batch < fits.batch,
                "{paging:?} {fits:?}"
            );
        }
    }
}
