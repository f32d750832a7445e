// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs of several users: their memory, length, load and arrival times.
//!
//! A name and a seed determine a mix. Estimates are wrong by a factor of up to two either way,
//! evenly over the logarithm, memory and time independently.
#![forbid(unsafe_code)]

use weft_random::Random;

use crate::Ns;

/// A second.
pub const S: Ns = 1_000_000_000;
/// A gigabyte.
pub const GB: u64 = 1_000_000_000;

/// Device memory of a process's context: within the range on 80 GB devices (0.4 to 0.6 GB).
pub const CONTEXT_BYTES: u64 = GB / 2;

/// One job.
#[derive(Debug, Clone)]
pub struct MixJob {
    /// Its user.
    pub user: u32,
    /// Its arrival.
    pub arrives: Ns,
    /// Its peak memory, bytes.
    pub peak: u64,
    /// The memory that it requests, bytes.
    pub said_peak: u64,
    /// Its run with the device to itself.
    pub run: Ns,
    /// The run that it declares.
    pub said_run: Ns,
    /// The part of the device's time that it uses in a solo run.
    pub load: f64,
    /// Its other properties.
    pub kind: Particular,
}

/// Properties that most jobs of the mixes share, and some of [`odd`] do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Particular {
    /// Number of processes, each with a context.
    pub processes: u32,
    /// 0 (most important) to 9.
    pub priority: u8,
    /// Whether its memory is managed: it then keeps only its contexts on the device.
    pub managed: bool,
}

impl Default for Particular {
    fn default() -> Particular {
        Particular {
            processes: 1,
            priority: 5,
            managed: false,
        }
    }
}

impl MixJob {
    /// Size of its contexts, bytes.
    pub fn contexts(&self) -> u64 {
        CONTEXT_BYTES * u64::from(self.kind.processes)
    }

    /// Bytes that it keeps on the device, if it holds `bytes` without contexts.
    pub fn on_device(&self, bytes: u64) -> u64 {
        self.contexts() + if self.kind.managed { 0 } else { bytes }
    }
}

/// Jobs, and the devices that they run on.
#[derive(Debug, Clone)]
pub struct JobMix {
    /// Its name.
    pub name: String,
    /// A description in a line, for people.
    pub about: &'static str,
    /// Memory of each device, bytes.
    pub devices: Vec<u64>,
    /// The jobs, by arrival.
    pub jobs: Vec<MixJob>,
    /// Weights of users that differ from 1.
    pub weights: Vec<(u32, u32)>,
}

/// A kind of jobs: memory in GB, run in seconds, load; each evenly between the two values, the run
/// over the logarithm.
struct JobKind {
    peak: (f64, f64),
    run: (f64, f64),
    load: (f64, f64),
}

// Trials, notebooks, evaluations: small models at small batches keep a large GPU a quarter busy.
const SHORT: JobKind = JobKind {
    peak: (2.0, 12.0),
    run: (60.0, 1_200.0),
    load: (0.1, 0.4),
};
// Fine-tuning a vision-language model of some billion parameters.
const MIDDLE: JobKind = JobKind {
    peak: (16.0, 40.0),
    run: (1_200.0, 5_400.0),
    load: (0.2, 0.6),
};
// A language model of 13 to 30 billion parameters with its cache.
const LARGE: JobKind = JobKind {
    peak: (50.0, 74.0),
    run: (3_600.0, 10_800.0),
    load: (0.3, 0.6),
};

/// Memory of the device of the generated mixes.
const DEVICE_BYTES: u64 = 80 * GB;

struct Maker {
    random: Random,
    jobs: Vec<MixJob>,
}

impl Maker {
    fn new(seed: u64, salt: u64) -> Maker {
        Maker {
            random: Random::new(seed.wrapping_mul(1_000_003) ^ salt),
            jobs: Vec::new(),
        }
    }

    fn between(&mut self, (low, high): (f64, f64)) -> f64 {
        low + self.random.unit() * (high - low)
    }

    /// A factor between a half and two.
    fn wrong(&mut self) -> f64 {
        2f64.powf(self.random.unit() * 2.0 - 1.0)
    }

    fn add(&mut self, user: u32, arrives: f64, kind: &JobKind) {
        let peak = self.between(kind.peak) * GB as f64;
        let run = self.between((kind.run.0.ln(), kind.run.1.ln())).exp() * S as f64;
        let load = self.between(kind.load);
        self.known(user, arrives, peak, run, load, DEVICE_BYTES);
    }

    fn known(&mut self, user: u32, arrives: f64, peak: f64, run: f64, load: f64, device: u64) {
        let most = (device - CONTEXT_BYTES) as f64;
        let said_peak = (peak * self.wrong()).min(most);
        let said_run = run * self.wrong();
        self.jobs.push(MixJob {
            user,
            arrives: (arrives * S as f64) as Ns,
            peak: peak.min(most) as u64,
            said_peak: said_peak as u64,
            run: run as Ns,
            said_run: said_run as Ns,
            load,
            kind: Particular::default(),
        });
    }

    /// A pause of a Poisson process, s.
    fn pause(&mut self, mean: f64) -> f64 {
        -(1.0 - self.random.unit()).ln() * mean
    }

    /// A random kind of job: 90 in 100 short, 8 middle, 2 large.
    fn usual(&mut self) -> &'static JobKind {
        match self.random.unit() {
            part if part < 0.90 => &SHORT,
            part if part < 0.98 => &MIDDLE,
            _ => &LARGE,
        }
    }

    /// The next usual job of five users, who together bring one each `mean` seconds at random.
    fn next(&mut self, at: &mut f64, mean: f64) {
        *at += self.pause(mean);
        let user = (self.random.unit() * 5.0) as u32;
        let kind = self.usual();
        self.add(user, *at, kind);
    }

    fn mix(mut self, name: &str, about: &'static str, devices: Vec<u64>) -> JobMix {
        self.jobs.sort_by_key(|job| job.arrives);
        JobMix {
            name: name.to_string(),
            about,
            devices,
            jobs: self.jobs,
            weights: Vec::new(),
        }
    }
}

/// The generated mixes of a seed.
pub fn made(seed: u64, quick: bool) -> Vec<JobMix> {
    let count = if quick { 120 } else { 400 };
    vec![
        poisson(seed, count),
        bursts(seed, count),
        one_brings_most(seed, count),
        long_against_short(seed, count / 2),
        pressure(seed, count / 2, 0.15),
        pressure(seed, count / 2, 0.3),
        pressure(seed, count / 2, 0.5),
        two_devices(seed, count),
        odd(seed, count),
    ]
}

/// The mix of all cases that the others leave out. Its only aim: no job gets no memory because of a
/// neighbour.
pub const ODD: &str = "odd";

fn odd(seed: u64, count: usize) -> JobMix {
    // The assumed memory of a job that declares none: the broker's own part of the device.
    const UNKNOWN: u64 = DEVICE_BYTES / 64;
    let mut maker = Maker::new(seed, 8);
    let mut at = 0.0;
    for _ in 0..count {
        maker.next(&mut at, 170.0);
        let (says, ranks, managed, priority) = (
            maker.random.unit() >= 0.25,
            maker.random.unit() < 0.15,
            maker.random.unit() < 0.15,
            (maker.random.unit() * 10.0) as u8,
        );
        let Some(job) = maker.jobs.last_mut() else { continue };
        job.kind = Particular {
            processes: if ranks { 4 } else { 1 },
            priority,
            managed,
        };
        let most = DEVICE_BYTES - job.contexts();
        job.peak = job.peak.min(most);
        job.said_peak = if says || managed {
            job.said_peak.min(most)
        } else {
            UNKNOWN
        };
    }
    let about = "as poisson; a quarter say nothing of their memory, 15 % have four processes, 15 % managed memory, all priorities, one user counts for three";
    let mut mix = maker.mix(ODD, about, vec![DEVICE_BYTES]);
    mix.weights = vec![(1, 3)];
    mix
}

fn poisson(seed: u64, count: usize) -> JobMix {
    let mut maker = Maker::new(seed, 1);
    let mut at = 0.0;
    for _ in 0..count {
        maker.next(&mut at, 200.0);
    }
    let about = "five users, one job each 200 s by chance: 90 % short, 8 % middle, 2 % large";
    maker.mix("poisson", about, vec![DEVICE_BYTES])
}

fn bursts(seed: u64, count: usize) -> JobMix {
    let mut maker = Maker::new(seed, 2);
    let mut at = 0.0;
    while maker.jobs.len() < count {
        at += maker.pause(4_000.0);
        let user = (maker.random.unit() * 5.0) as u32;
        for _ in 0..20 {
            let kind = maker.usual();
            let late = maker.pause(2.0);
            maker.add(user, at + late, kind);
        }
    }
    let about = "as poisson, but twenty jobs of one user at a time (a sweep), one sweep each 4,000 s";
    maker.mix("bursts", about, vec![DEVICE_BYTES])
}

fn one_brings_most(seed: u64, count: usize) -> JobMix {
    let mut maker = Maker::new(seed, 3);
    let mut at = 0.0;
    for _ in 0..count {
        at += maker.pause(170.0);
        let other = 1 + (maker.random.unit() * 3.0) as u32;
        let user = if maker.random.unit() < 0.7 { 0 } else { other };
        let kind = maker.usual();
        maker.add(user, at, kind);
    }
    let about = "four users, one of whom brings 70 % of the jobs, one job each 170 s";
    maker.mix("one-brings-most", about, vec![DEVICE_BYTES])
}

fn long_against_short(seed: u64, count: usize) -> JobMix {
    let mut maker = Maker::new(seed, 4);
    let mut at = 0.0;
    for nth in 0..count {
        at += maker.pause(90.0);
        let user = (maker.random.unit() * 4.0) as u32;
        maker.add(user, at, &SHORT);
        if nth % 60 == 10 {
            maker.add(4, at, &LARGE);
        }
    }
    let about = "a fifth user's large jobs into an even stream of short ones of four users, one each 90 s";
    maker.mix("long-against-short", about, vec![DEVICE_BYTES])
}

fn pressure(seed: u64, count: usize, part: f64) -> JobMix {
    let mut maker = Maker::new(seed, 5 + (part * 100.0) as u64);
    let mut at = 0.0;
    for _ in 0..count {
        at += maker.pause(150.0);
        let user = (maker.random.unit() * 4.0) as u32;
        let peak = maker.between((0.5, 1.5)) * part * DEVICE_BYTES as f64;
        let run = maker.between((120f64.ln(), 1_800f64.ln())).exp() * S as f64;
        let load = maker.between((0.1, 0.4));
        maker.known(user, at, peak, run, load, DEVICE_BYTES);
    }
    let name = format!("pressure-{:.0}", part * 100.0);
    let about = "four users whose jobs take that many hundredths of the device in the mean, one each 150 s";
    maker.mix(&name, about, vec![DEVICE_BYTES])
}

fn two_devices(seed: u64, count: usize) -> JobMix {
    let mut maker = Maker::new(seed, 6);
    let mut at = 0.0;
    for _ in 0..count {
        maker.next(&mut at, 100.0);
    }
    let about = "as poisson, twice as often, on two devices";
    maker.mix("two-devices", about, vec![DEVICE_BYTES, DEVICE_BYTES])
}

/// A pod of the public trace.
#[derive(Debug, Clone, Copy)]
pub struct Pod {
    /// Its creation, s.
    pub came: f64,
    /// Its run, s.
    pub ran: f64,
    /// The part of one GPU that it requests.
    pub part: f64,
    /// Its number in the file.
    pub number: u64,
}

/// The pods of `openb_pod_list_default.csv` that requested one GPU or a part of one, ran and ended.
pub fn pods(text: &str) -> Vec<Pod> {
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    let column = |name: &str| head.iter().position(|found| *found == name);
    let columns = [
        "num_gpu",
        "gpu_milli",
        "creation_time",
        "deletion_time",
        "scheduled_time",
    ]
    .map(column);
    let [Some(gpus), Some(milli), Some(created), Some(deleted), Some(scheduled)] = columns else {
        return Vec::new();
    };
    let pod = |(number, line): (usize, &str)| {
        let cells: Vec<&str> = line.split(',').collect();
        let figure = |at: usize| cells.get(at)?.parse::<f64>().ok();
        let ran = figure(deleted)? - figure(scheduled)?;
        let fits = figure(gpus)? == 1.0 && ran >= 1.0;
        fits.then_some(Pod {
            came: figure(created)?,
            ran,
            part: figure(milli)? / 1000.0,
            number: number as u64,
        })
    };
    let mut pods: Vec<Pod> = lines.enumerate().filter_map(pod).collect();
    pods.sort_by(|a, b| a.came.total_cmp(&b.came));
    pods
}

/// The mix of `count` pods of the trace in their order, on four devices. The part of a GPU that a
/// pod requested is its part of the memory and its load. The trace is from 6,200 GPUs. So the time
/// between arrivals is stretched evenly until the pods' requests (their parts times their runs) are
/// nine tenths of the four devices' capacity. The trace names no users: a pod's number determines
/// which of five users it belongs to.
pub fn openb(pods: &[Pod], seed: u64, count: usize) -> Option<JobMix> {
    const DEVICES: usize = 4;
    const BUSY: f64 = 0.9;
    // A day: the few pods that ran for weeks are services, and would dominate the figure.
    const LONGEST: f64 = 86_400.0;
    let room = pods.len().checked_sub(count)?;
    let mut maker = Maker::new(seed, 7);
    let first = (maker.random.unit() * room as f64) as usize;
    let part: Vec<Pod> = pods
        .get(first..first + count)?
        .iter()
        .filter(|pod| pod.ran <= LONGEST)
        .copied()
        .collect();
    let (begin, end) = (part.first()?.came, part.last()?.came);
    let work: f64 = part.iter().map(|pod| pod.ran * pod.part).sum();
    let stretch = work / (BUSY * DEVICES as f64) / (end - begin).max(1.0);
    for pod in part {
        let user = (weft_random::at(7, [pod.number, 0, 0]) % 5) as u32;
        let peak = pod.part * DEVICE_BYTES as f64 * 0.98;
        maker.known(
            user,
            (pod.came - begin) * stretch,
            peak,
            pod.ran * S as f64,
            pod.part,
            DEVICE_BYTES,
        );
    }
    let about = "pods of the public trace openb that asked for one GPU or less, on four devices";
    Some(maker.mix("openb", about, vec![DEVICE_BYTES; DEVICES]))
}
