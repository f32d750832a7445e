// SPDX-License-Identifier: MIT OR Apache-2.0
//! The profile writer: makes profiles from stage-1 samples, on a thread because disks are slow.
//!
//! It writes every few seconds while samples arrive, when a client ends, and when `weft profile`
//! requests it. If a job is killed, only its last seconds are missing. A failed write changes no
//! file and is shown in `weft status`.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use weft_kernel_id::KernelId;
use weft_profiles::working_set::KernelWorkingSet;
use weft_profiles::{Aggregator, GpuIdentity};

use crate::clients::registry::Entry;
use weft_api::profile_path;
use weft_api::status::Sampled;
use weft_protocol::Ns;

/// Time between writes of a profile.
const FLUSH: Duration = Duration::from_secs(3);

/// A stage-1 sample or launches, for the profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observation {
    /// Kernel and number of launches.
    Launches(u64, u64),
    /// Kernel, time, gap.
    Sample(u64, Ns, Option<Ns>),
    /// Kernel, and how much its last sample may exceed its time and fall short of it.
    SampleError(u64, Ns, Ns),
}

/// A message to the profile writer.
#[derive(Debug)]
pub enum ProfileMessage {
    /// A client attached that samples into its profile.
    Attached(Arc<Entry>),
    /// A client named a kernel: client, hash, identity.
    Named(u64, u64, KernelId),
    /// A client uses this device.
    Device(u64, GpuIdentity),
    /// A kernel's working set, as a client saw it.
    WorkingSet(u64, KernelWorkingSet),
    /// Samples of a client.
    Seen(u64, Vec<Observation>),
    /// A client ended.
    Gone(Arc<Entry>),
    /// `weft profile` begins, for this profile.
    Begin(String),
    /// `weft profile` requests a write and the state.
    Flush(String, Sender<Sampled>),
    /// `weft profile` ends.
    End(String, Sender<Sampled>),
    /// The broker ends.
    Stop,
}

/// A handle to the profile writer.
#[derive(Debug, Clone)]
pub struct ProfileWriter {
    tells: Sender<ProfileMessage>,
    failures: Arc<AtomicU64>,
}

impl ProfileWriter {
    /// A handle without a thread: messages are dropped.
    pub fn deaf() -> ProfileWriter {
        ProfileWriter {
            tells: channel().0,
            failures: Arc::default(),
        }
    }

    /// Sends a message. Never waits.
    pub fn tell(&self, tell: ProfileMessage) {
        // The thread ends last; if it died, only profiles are lost.
        let _ = self.tells.send(tell);
    }

    /// Sends samples of a client.
    pub fn seen(&self, client: u64, seen: Vec<Observation>) {
        if !seen.is_empty() {
            self.tell(ProfileMessage::Seen(client, seen));
        }
    }

    /// Asks, and waits up to 8 s for the disk; `None`: no answer in time.
    pub fn ask(&self, question: impl FnOnce(Sender<Sampled>) -> ProfileMessage) -> Option<Sampled> {
        const PATIENCE: Duration = Duration::from_secs(8);
        let (way, answer) = channel();
        self.tell(question(way));
        answer.recv_timeout(PATIENCE).ok()
    }

    /// Profile writes that failed.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

/// Starts the thread.
pub fn start(gauges: impl Fn(String) + Send + 'static) -> std::io::Result<(ProfileWriter, JoinHandle<()>)> {
    let (tells, incoming) = channel();
    let failures = Arc::new(AtomicU64::new(0));
    let profile_writer = ProfileWriter {
        tells,
        failures: Arc::clone(&failures),
    };
    let thread = std::thread::Builder::new().name("weft-keeper".into()).spawn(move || {
        WriterThread {
            jobs: HashMap::new(),
            of: HashMap::new(),
            failures,
            complain: Box::new(gauges),
        }
        .run(&incoming);
    })?;
    Ok((profile_writer, thread))
}

/// One profile being taken.
#[derive(Debug)]
struct Job {
    aggregator: Aggregator,
    names: HashSet<u64>,
    active: HashMap<u64, Arc<Entry>>,
    clients: u64,
    /// Sums over the clients that ended.
    ended: LaneSums,
    samples: u64,
    dirty: bool,
    written: Instant,
    asked_for: bool,
    file: Option<PathBuf>,
    trouble: Option<String>,
    /// Whether the older profile of this name was set aside.
    set_aside: bool,
    kept: Option<String>,
}

impl Job {
    fn new(asked_for: bool) -> Job {
        Job {
            aggregator: Aggregator::new(),
            names: HashSet::new(),
            active: HashMap::new(),
            clients: 0,
            ended: LaneSums::default(),
            samples: 0,
            dirty: false,
            written: Instant::now(),
            asked_for,
            file: None,
            trouble: None,
            set_aside: false,
            kept: None,
        }
    }

    /// Adds the clients' memory peaks and run times.
    ///
    /// Peaks of clients attached at the same time are summed: for admission, a figure that is too
    /// high is safer. A client that attaches after another one's end does not add to it. Called
    /// before each client is removed.
    fn measure(&mut self) {
        let mut together = 0u64;
        for entry in self.active.values() {
            together = together.saturating_add(entry.lane.counters.memory_peak.load(Ordering::Relaxed));
            self.aggregator.ran(entry.ran());
        }
        self.aggregator.memory(together);
    }

    fn sampled(&self) -> Sampled {
        let mut sums = self.ended;
        self.active.values().for_each(|entry| sums.add(entry));
        Sampled {
            active: self.active.len() as u64,
            clients: self.clients,
            launches: sums.launches,
            stretches: sums.stretches,
            repeated: sums.repeated,
            samples: self.samples,
            kernels: self.names.len() as u64,
            file: self.file.clone(),
            trouble: self.trouble.clone(),
            kept: self.kept.clone(),
        }
    }
}

/// Sums over clients' lanes.
#[derive(Debug, Clone, Copy, Default)]
struct LaneSums {
    launches: u64,
    stretches: u64,
    repeated: u64,
}

impl LaneSums {
    fn add(&mut self, entry: &Entry) {
        let counters = &entry.lane.counters;
        // The counters are the client's: any value may stand there.
        let add = |sum: &mut u64, counter: &AtomicU64| *sum = sum.saturating_add(counter.load(Ordering::Relaxed));
        add(&mut self.launches, &counters.launches);
        add(&mut self.launches, &counters.graph_launches);
        add(&mut self.stretches, &counters.stretches);
        add(&mut self.repeated, &counters.repeated);
    }
}

struct WriterThread {
    jobs: HashMap<String, Job>,
    /// Profile by client.
    of: HashMap<u64, String>,
    failures: Arc<AtomicU64>,
    complain: Box<dyn Fn(String) + Send>,
}

impl WriterThread {
    fn run(mut self, incoming: &Receiver<ProfileMessage>) {
        loop {
            match incoming.recv_timeout(FLUSH) {
                Ok(ProfileMessage::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(tell) => self.take(tell),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let due: Vec<String> = self
                .jobs
                .iter()
                .filter(|(_, job)| job.dirty && job.written.elapsed() >= FLUSH)
                .map(|(called, _)| called.clone())
                .collect();
            for called in due {
                self.write(&called);
            }
        }
        for called in self.jobs.keys().cloned().collect::<Vec<_>>() {
            self.write(&called);
        }
    }

    fn take(&mut self, tell: ProfileMessage) {
        match tell {
            ProfileMessage::Attached(entry) => {
                let Some(called) = entry.profile.clone() else { return };
                let job = self.jobs.entry(called.clone()).or_insert_with(|| Job::new(false));
                job.clients += 1;
                job.active.insert(entry.client, Arc::clone(&entry));
                self.of.insert(entry.client, called);
            }
            ProfileMessage::Named(client, hash, id) => {
                if let Some(job) = self.job(client)
                    && job.names.len() < weft_profiles::MAX_KERNELS
                {
                    job.names.insert(hash);
                    job.aggregator.named(hash, id);
                    job.dirty = job.samples > 0;
                }
            }
            ProfileMessage::WorkingSet(client, set) => {
                if let Some(job) = self.job(client) {
                    job.aggregator.working_set(set);
                    job.dirty = true;
                }
            }
            ProfileMessage::Device(client, gpu) => {
                if let Some(job) = self.job(client) {
                    job.aggregator.device(gpu);
                }
            }
            ProfileMessage::Seen(client, seen) => {
                if let Some(job) = self.job(client) {
                    for one in seen {
                        match one {
                            Observation::Launches(hash, times) => {
                                job.aggregator.launched(hash, times);
                                job.dirty |= job.samples > 0;
                            }
                            Observation::Sample(hash, time, gap) => {
                                job.aggregator.sampled(hash, time, gap);
                                job.samples += 1;
                                job.dirty = true;
                            }
                            Observation::SampleError(hash, over, short) => {
                                job.aggregator.sample_error(hash, over, short);
                            }
                        }
                    }
                }
            }
            ProfileMessage::Gone(entry) => self.gone(&entry),
            ProfileMessage::Begin(called) => {
                let mut job = Job::new(true);
                if let Some(old) = self.jobs.remove(&called) {
                    job.active = old.active;
                    job.clients = job.active.len() as u64;
                }
                self.jobs.insert(called, job);
            }
            ProfileMessage::Flush(called, answer) => {
                self.write(&called);
                let _ = answer.send(self.jobs.get(&called).map(Job::sampled).unwrap_or_default());
            }
            ProfileMessage::End(called, answer) => {
                self.write(&called);
                let sampled = match self.jobs.get_mut(&called) {
                    Some(job) if !job.active.is_empty() => {
                        job.asked_for = false;
                        job.sampled()
                    }
                    _ => self.jobs.remove(&called).map(|job| job.sampled()).unwrap_or_default(),
                };
                let _ = answer.send(sampled);
            }
            ProfileMessage::Stop => {}
        }
    }

    fn job(&mut self, client: u64) -> Option<&mut Job> {
        self.jobs.get_mut(self.of.get(&client)?)
    }

    fn gone(&mut self, entry: &Arc<Entry>) {
        let Some(called) = self.of.remove(&entry.client) else {
            return;
        };
        if let Some(job) = self.jobs.get_mut(&called) {
            job.measure();
            job.ended.add(entry);
            job.active.remove(&entry.client);
        }
        self.write(&called);
        if self
            .jobs
            .get(&called)
            .is_some_and(|job| job.active.is_empty() && !job.asked_for)
        {
            self.jobs.remove(&called);
        }
    }

    /// Writes a profile if it has changed.
    fn write(&mut self, called: &str) {
        let Some(job) = self.jobs.get_mut(called) else { return };
        if !job.dirty {
            return;
        }
        job.dirty = false;
        job.written = Instant::now();
        job.measure();
        let taken = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let saved = profile_path::locate(called).and_then(|(store, name)| {
            // `weft profile` samples from the beginning; the old profile may be better.
            if job.asked_for && !job.set_aside {
                job.kept = store.set_aside(&name)?;
                job.set_aside = true;
            }
            let profile = job.aggregator.clone().finish(&name, taken);
            store.save(&profile)
        });
        match saved {
            Ok(file) => {
                job.file = Some(file);
                job.trouble = None;
            }
            Err(error) => {
                let said = error.to_string();
                self.failures.fetch_add(1, Ordering::Relaxed);
                if job.trouble.as_deref() != Some(&said) {
                    log::warn!("{said}");
                    (self.complain)(said.clone());
                }
                job.trouble = Some(said);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::registry::NewEntry;
    use weft_protocol::transport::map::SharedLane;

    fn process(client: u64, peak: u64) -> Arc<Entry> {
        let lane = SharedLane::lane().expect("a lane");
        lane.counters.memory_peak.store(peak, Ordering::Relaxed);
        Arc::new(Entry::new(NewEntry {
            client,
            pid: client as u32,
            command: String::new(),
            profile: Some("gang".into()),
            loaded: None,
            trouble: None,
            profiling: true,
            priority: 0,
            lane: Arc::new(lane),
        }))
    }

    #[test]
    fn stretches_are_those_of_all_processes() {
        let mut job = Job::new(true);
        let processes = [process(1, 0), process(2, 0)];
        for entry in &processes {
            entry.lane.counters.launches.store(100, Ordering::Relaxed);
            entry.lane.counters.stretches.store(20, Ordering::Relaxed);
            entry.lane.counters.repeated.store(5, Ordering::Relaxed);
        }
        job.ended.add(&processes[0]);
        job.active.insert(2, Arc::clone(&processes[1]));
        let sampled = job.sampled();
        assert_eq!((sampled.launches, sampled.stretches, sampled.repeated), (200, 40, 10));
        // A client may write anything.
        processes[1].lane.counters.stretches.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(job.sampled().stretches, u64::MAX);
    }

    #[test]
    fn a_job_takes_what_its_processes_take_together() {
        let mut thread = WriterThread {
            jobs: HashMap::new(),
            of: HashMap::new(),
            failures: Arc::default(),
            complain: Box::new(|_| {}),
        };
        let taken = |thread: &WriterThread| {
            let job = thread.jobs.get("gang").expect("it was asked for");
            job.aggregator.clone().finish("gang", 0).memory_peak
        };
        thread.take(ProfileMessage::Begin("gang".into()));
        let (first, second) = (process(1, 3_000), process(2, 2_000));
        for entry in [&first, &second] {
            thread.take(ProfileMessage::Attached(Arc::clone(entry)));
        }
        thread.take(ProfileMessage::Gone(first));
        assert_eq!(taken(&thread), 5_000);
        // After the first client's end, the second one's peak is not added to it.
        second.lane.counters.memory_peak.store(4_500, Ordering::Relaxed);
        thread.take(ProfileMessage::Gone(second));
        assert_eq!(taken(&thread), 5_000);
        let third = process(3, 4_900);
        thread.take(ProfileMessage::Attached(Arc::clone(&third)));
        thread.take(ProfileMessage::Gone(third));
        assert_eq!(taken(&thread), 5_000, "it came after them");
    }
}
