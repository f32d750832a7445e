//! A service that somebody waits for beside a batch job, on a device that does not hold both: XSched's rule with demand paging, and weft.
//!
//! MSched compares itself with XSched so (a ResNet152 of 6 GB beside one of 12 GB on 16 GB). The service's clients send a request, wait for its answer, and think; the batch job always has work.
//!
//! | | XSched ([`Rule::Xsched`]) | weft ([`Rule::Weft`]) |
//! |---|---|---|
//! | batch kernels that are on the device when a request comes | 16: its in-flight window, highest priority first | the one in progress, and those behind it that fit the delay bound |
//! | what happens to them | they share the device with the request, a slice each in turn, until they are through | the same |
//! | the batch job's next kernel | when the request is answered | the same |
//! | memory | faults | the broker's planner: the service is pinned, as the daemon pins a holder; the batch job moves its own through what is left |
//!
//! What favours XSched: the hop that its suspension takes is not modelled, nor its launches' cost. What is the same for both: requests, thoughts, kernels, the page ledger. A rule may be had with the
//! other's memory ([`Side::planned`]), which says how much of a difference is whose.
#![forbid(unsafe_code)]

use serde::Serialize;

use super::{BLOCK, Contender, Machine, Setting, client};
use crate::memory::contender::Side;
use crate::memory::workload::Workload;
use crate::random::Random;
use crate::{MS, Ns, US};
use weft_broker::core::memory::Turn;

/// XSched's in-flight window, the default of its sources.
const WINDOW: usize = 16;

/// What weft lets be on the device beside the holder: the broker's default.
const DELAY_BOUND: Ns = 500 * US;

/// What the daemon asks of the planner for the length of turns (`broker/src/daemon/memory/turns.rs`): the link busy for 65 % of one at most, 20 ms at least, nobody away for longer than 500 ms.
const BUSY: f64 = 0.65;
const LEAST: Ns = 20 * MS;
const AWAY: Ns = 500 * MS;

/// Of the device so much stays free of the plan for what demand paging needs to turn round in, as in the daemon (`broker/src/daemon/memory/room.rs`).
const RESERVE: u64 = 64;

/// Requests that nobody counts: memory finds its place.
const WARM: usize = 5;

/// The service is the first job of the workload, the batch job the second one.
const SERVICE: usize = 0;
const BATCH: usize = 1;

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Served {
    /// Latency of requests, ms.
    pub mean_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// What the batch job ran of the time that passed.
    pub batch: f64,
    /// Copied for the service in this time, GB: by faults, ahead.
    pub service_gb: (f64, f64),
    /// The same of the batch job.
    pub batch_gb: (f64, f64),
    /// What the device held at most, of its memory.
    pub fullest: f64,
}

/// Which rule decides whether the batch job may launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// There is no batch job.
    Alone,
    /// See the module.
    Xsched,
    /// See the module.
    Weft,
}

impl Machine {
    /// The batch kernels that are on the device now: up to which it goes on whatever comes, as the number of kernels from the present one.
    fn on_device(&self, rule: Rule) -> usize {
        let kernels = &self.tasks[BATCH].job.kernels;
        let at = self.tasks[BATCH].at.0;
        match rule {
            Rule::Alone => 0,
            Rule::Xsched => WINDOW,
            Rule::Weft => {
                let mut sum = 0;
                let fits = |number: &usize| {
                    sum += kernels[(at + number) % kernels.len()].time;
                    sum <= DELAY_BOUND
                };
                (0..WINDOW).take_while(fits).count().max(1)
            }
        }
    }

    /// Goes on with a job until some time, or until it has gone through so many kernels. True if it has.
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

    /// As [`Machine::step`], but all of a touch at once where it is there and nothing happens meanwhile: the same times, sooner computed.
    fn stride(&mut self, task: usize, until: Ns) {
        let state = &self.tasks[task];
        let (number, which, done) = state.at;
        let kernel = &state.job.kernels[number];
        let touch = kernel.touches[which];
        let rest = super::Range::new(touch.range.start + done, touch.range.len - done);
        let time = kernel.time as f64 * rest.len as f64 / state.sizes[number].max(1) as f64 + state.rest;
        let end = self.now + time as Ns;
        let quiet = end <= until && self.next_event().is_none_or(|event| event > end);
        if !quiet || !self.pager.ledger().is_ready(task as u32, rest, touch.access.writes()) {
            self.step(task);
            return;
        }
        let touches = kernel.touches.len();
        let kernels = state.job.kernels.len();
        // The driver's list of what was used last is by touches.
        self.pager.touch(self.now, task as u32, rest, touch.access.writes());
        let state = &mut self.tasks[task];
        state.own += time as Ns;
        state.rest = time.fract();
        state.at = if which + 1 < touches {
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

    /// Tells the planner that the other job's kernels run from now on.
    fn settle(&mut self, task: usize) {
        if let Some(weft) = &mut self.weft {
            weft.planner.ran(client(task), std::mem::take(&mut weft.untold));
            weft.take_orders(self.now);
        }
    }

    /// The timeline as the daemon makes it beside a holder: the filler, then the holder, which may come at any time.
    fn plan_batch(&mut self, since: &mut Ns) {
        let Some(weft) = &mut self.weft else { return };
        let length = weft.planner.slice(1.0 / BUSY, LEAST, AWAY);
        if self.tasks[BATCH].own < *since {
            return;
        }
        *since = self.tasks[BATCH].own + length;
        let turn = |task| Turn {
            client: client(task),
            length,
        };
        weft.planner.switch(&[turn(BATCH), turn(SERVICE)]);
        weft.take_orders(self.now);
    }
}

/// Runs so many requests. Between two of them the service's client thinks for `thought` in the mean, at random.
pub fn serve(side: Side, workload: &Workload, setting: &Setting, requests: usize, thought: Ns, seed: u64) -> Served {
    let contender = match (side.fits(), side.planned(), side.tuned()) {
        (true, ..) => Contender::Ideal,
        (_, true, _) => Contender::Weft,
        (.., true) => Contender::StockTuned,
        _ => Contender::Stock,
    };
    let rule = side.rule();
    let mut machine = Machine::new(contender, workload, setting);
    if let Some(weft) = &mut machine.weft {
        weft.planner.leave_free(setting.memory.capacity / RESERVE / BLOCK);
    }
    if let Some(weft) = &mut machine.weft {
        weft.planner.pin(client(SERVICE), true);
    }
    let mut random = Random::new(seed);
    let mut latencies = Vec::new();
    let (mut begin, mut own, mut sums) = (0, 0, [(0, 0); 2]);
    let mut next_plan = 0;
    let moved = |machine: &Machine| {
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
        }
        let arrival = machine.now + (-(1.0 - random.unit()).ln() * thought as f64) as Ns;
        if rule == Rule::Alone {
            machine.pump(arrival);
        }
        while machine.now < arrival {
            machine.plan_batch(&mut next_plan);
            let until = arrival.min(machine.now + LEAST);
            let mut any = usize::MAX;
            machine.go_on(BATCH, until, &mut any);
        }
        let mut in_flight = machine.on_device(rule);
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
    Served {
        mean_ms: latencies.iter().sum::<Ns>() as f64 / latencies.len().max(1) as f64 / MS as f64,
        p99_ms: latencies.get(at).copied().unwrap_or(0) as f64 / MS as f64,
        batch: (machine.tasks[BATCH].own - own) as f64 / (machine.now - begin).max(1) as f64,
        service_gb: gb(SERVICE),
        batch_gb: gb(BATCH),
        fullest: machine.fullest as f64 / machine.pager.ledger().room().max(1) as f64,
    }
}
