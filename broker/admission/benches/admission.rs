// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cost of an admission decision: `cargo bench -p weft-admission --bench admission -- [--check]
//! [--json FILE]`.
//!
//! 200 to 10,000 jobs of 20 users wait for a device of 80 GB. Some are due and one has a
//! reservation. One thread; median and longest of three events: a job arrives and waits, a running
//! job ends and others are admitted, time passes. Each decides for the whole queue. A forecast is
//! timed once. A second series has hundreds of small running jobs and a few waiters.
#![forbid(unsafe_code)]

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use weft_admission::{
    Admission, AdmissionConfig, AdmissionPolicy, Ask, CustomOrder, Decision, Device, DeviceId, Event, Job, Need, User,
    Waiters,
};

/// First come, first served.
static FIFO: CustomOrder = CustomOrder {
    name: "fifo",
    next: |waiters: &Waiters<'_>| waiters.fit(waiters.all().next()?.0),
};

#[path = "../../../tests/figures.rs"]
mod figures;

use figures::Asked;

const GB: u64 = 1_000_000_000;
const S: u64 = 1_000_000_000;

/// Numbers of waiters.
const WAIT: [usize; 5] = [200, 500, 1_000, 3_000, 10_000];

/// With 200 waiters a decision takes at most the broker control thread's sleep between two polls.
const AIM: (usize, Duration) = (200, Duration::from_millis(20));

/// Numbers of running jobs and waiters of the second series, in which many jobs run.
const RUN: [(usize, usize); 4] = [(100, 24), (300, 24), (1_000, 24), (500, 500)];

/// Events of one measurement, and below it total time.
const ROUNDS: usize = 60;
const TIME: Duration = Duration::from_secs(2);

/// A generator with a fixed seed, so that figures repeat.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

struct Bench {
    machine: Admission,
    now: u64,
    next: u64,
    chance: Chance,
    running: Vec<Job>,
}

impl Bench {
    fn new() -> Bench {
        let mut bench = Bench {
            machine: Admission::new(AdmissionConfig::default()),
            now: 0,
            next: 0,
            chance: Chance(1),
            running: Vec::new(),
        };
        bench.tell(Event::Device(Device::new(DeviceId(0), 80 * GB)));
        bench
    }

    /// Changes the policy of the queue.
    fn under(&mut self, policy: AdmissionPolicy) {
        let config = AdmissionConfig {
            policy,
            ..AdmissionConfig::default()
        };
        self.machine = Admission::restore(config, self.machine.save());
    }

    fn tell(&mut self, event: Event) -> Duration {
        let mut out = Vec::new();
        let begin = Instant::now();
        self.machine.handle(self.now, event, &mut out);
        let took = begin.elapsed();
        for decision in out {
            if let Decision::Admit { job, .. } = decision {
                self.running.push(job);
            }
        }
        took
    }

    /// Adds a job of 2 to 40 GB and a minute to three hours.
    fn comes(&mut self) -> Duration {
        self.next += 1;
        let peak = (2 + self.chance.below(38)) * GB;
        let seconds = 60 << self.chance.below(8);
        let ask = Ask {
            job: Job(self.next),
            user: User(self.chance.below(20) as u32),
            priority: 5,
            need: Need::plain(peak, seconds * S),
            devices: Vec::new(),
        };
        self.tell(Event::Asks(ask))
    }

    fn ends(&mut self) -> Duration {
        let at = self.chance.below(self.running.len().max(1) as u64) as usize;
        let job = self.running.swap_remove(at);
        self.tell(Event::Ends(job))
    }
}

/// Many small running jobs and some large waiters, due after an hour.
fn many(run: usize, wait: usize) -> Bench {
    let mut bench = Bench::new();
    bench.under(AdmissionPolicy::Custom(&FIFO));
    for number in 0..run + wait {
        bench.next += 1;
        let (peak, seconds) = match number < run {
            true => (79 * GB / run as u64, 3_600 + bench.chance.below(36_000)),
            false => ((2 + bench.chance.below(38)) * GB, 60 << bench.chance.below(8)),
        };
        let ask = Ask {
            job: Job(bench.next),
            user: User(bench.chance.below(20) as u32),
            priority: 5,
            need: Need::plain(peak, seconds * S),
            devices: Vec::new(),
        };
        bench.tell(Event::Asks(ask));
        bench.now += S / 10;
    }
    assert_eq!(bench.machine.count(), (wait, run));
    bench.under(AdmissionPolicy::Weft);
    bench.now += 3_600 * S;
    bench.tell(Event::Tick);
    bench
}

fn measure(mut event: impl FnMut() -> Duration) -> (Duration, Duration) {
    let begin = Instant::now();
    let mut took = Vec::new();
    while took.len() < ROUNDS && (took.is_empty() || begin.elapsed() < TIME) {
        took.push(event());
    }
    took.sort_unstable();
    let middle = took.get(took.len() / 2).copied().unwrap_or_default();
    (middle, took.last().copied().unwrap_or_default())
}

fn main() -> ExitCode {
    let asked = Asked::read();
    let (mut rows, mut missed) = (Vec::new(), Vec::new());
    println!(
        "{:>7} {:>24} {:>24} {:>24} {:>12}",
        "wait", "one comes", "one ends", "time goes by", "forecast"
    );
    for wait in WAIT {
        eprintln!("{wait} wait");
        let mut bench = Bench::new();
        // Filled under `fifo`, which looks only at the first: `weft` would take longer than the
        // whole measurement.
        bench.under(AdmissionPolicy::Custom(&FIFO));
        while bench.machine.count().0 < wait {
            bench.comes();
            bench.now += S / 10;
        }
        bench.under(AdmissionPolicy::Weft);
        // An hour later the first arrivals are due.
        bench.now += 3_600 * S;
        bench.tell(Event::Tick);
        let comes = measure(|| bench.comes());
        let ends = measure(|| {
            bench.now += S;
            let took = bench.ends();
            bench.comes();
            took
        });
        let tick = measure(|| {
            bench.now += S;
            bench.tell(Event::Tick)
        });
        let forecast = (wait <= 1_000).then(|| {
            let begin = Instant::now();
            let expected = bench.machine.forecast().len();
            assert!(expected > 0, "nobody is expected to begin");
            begin.elapsed()
        });
        let us = |time: Duration| time.as_nanos() as f64 / 1e3;
        let pair =
            |(middle, longest): (Duration, Duration)| format!("{:.0} us, at most {:.0}", us(middle), us(longest));
        println!(
            "{wait:>7} {:>24} {:>24} {:>24} {:>12}",
            pair(comes),
            pair(ends),
            pair(tick),
            forecast.map_or("-".to_string(), |time| format!("{:.0} ms", us(time) / 1e3))
        );
        for (what, (middle, _)) in [("one comes", comes), ("one ends", ends), ("time goes by", tick)] {
            if wait == AIM.0 && middle > AIM.1 {
                missed.push(format!(
                    "MISSED: {wait} wait, {what}: {:.0} us, aim {:.0} us",
                    us(middle),
                    us(AIM.1)
                ));
            }
        }
        rows.push(format!(
            "{{\"wait\": {wait}, \"comes_us\": {:.1}, \"ends_us\": {:.1}, \"tick_us\": {:.1}, \"forecast_ms\": {}}}",
            us(comes.0),
            us(ends.0),
            us(tick.0),
            forecast.map_or("null".to_string(), |time| format!("{:.1}", us(time) / 1e3))
        ));
    }
    println!(
        "{:>7} {:>7} {:>24} {:>24}",
        "run", "wait", "time goes by", "more is asked for"
    );
    for (run, wait) in RUN {
        let mut bench = many(run, wait);
        let tick = measure(|| {
            bench.now += S;
            bench.tell(Event::Tick)
        });
        let more = measure(|| {
            let job = bench.running.first().copied().unwrap_or(Job(1));
            let asked = bench.tell(Event::Grows(job, 80 * GB));
            asked + bench.tell(Event::Has(job, 0))
        });
        let us = |time: Duration| time.as_nanos() as f64 / 1e3;
        let pair =
            |(middle, longest): (Duration, Duration)| format!("{:.0} us, at most {:.0}", us(middle), us(longest));
        println!("{run:>7} {wait:>7} {:>24} {:>24}", pair(tick), pair(more));
        rows.push(format!(
            "{{\"run\": {run}, \"wait\": {wait}, \"tick_us\": {:.1}, \"more_us\": {:.1}}}",
            us(tick.0),
            us(more.0)
        ));
    }
    asked.end(&format!("[{}]\n", rows.join(",\n ")), &missed)
}
