// SPDX-License-Identifier: MIT OR Apache-2.0
//! Refinement of profiles with samples of served jobs, on the profile writer's thread.
//!
//! At the end of a job's last process its profile is read again and written. A profile that was
//! taken again meanwhile, or cannot be read, remains unchanged. [`weft_profiles::refine`] decides
//! on the changes.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_kernel_id::KernelId;
use weft_profiles::refine::{Refined, Served, Timed, Unrefined};
use weft_profiles::{Error, Gpu, Profile};

use crate::clients::registry::Entry;
use weft_api::profile_path;

/// The outcome of a process's end.
#[derive(Debug)]
pub enum RefineOutcome {
    /// Other processes of the job still run.
    Goes,
    /// The profile was changed.
    Refined(Refined),
    /// The profile is unchanged, without an error.
    Stays,
    /// The profile is unchanged because of this error.
    Trouble(String),
}

#[derive(Debug, Default)]
struct Job {
    served: Served,
    active: HashMap<u64, Arc<Entry>>,
    /// Launches of ended processes.
    launches: u64,
    memory_peak: u64,
    ran: u64,
    /// Date of the profile at the job's start, if any.
    taken: Option<u64>,
}

/// The jobs, by profile name.
#[derive(Debug, Default)]
pub struct Refining {
    jobs: HashMap<String, Job>,
    of: HashMap<u64, String>,
}

impl Refining {
    /// Adds a process that is sampled while served.
    pub fn attached(&mut self, entry: Arc<Entry>) {
        let Some(called) = entry.profile.clone() else { return };
        let job = self.jobs.entry(called.clone()).or_default();
        job.taken = job.taken.or(entry.loaded.as_ref().map(|profile| profile.taken));
        self.of.insert(entry.client, called);
        job.active.insert(entry.client, entry);
    }

    /// Records a kernel's identity.
    pub fn named(&mut self, client: u64, hash: u64, id: &KernelId) {
        if let Some(job) = self.job(client) {
            job.served.named(hash, id.clone());
        }
    }

    /// Records a client's device.
    pub fn device(&mut self, client: u64, gpu: &Gpu) {
        if let Some(job) = self.job(client) {
            job.served.device(gpu.clone());
        }
    }

    /// Records a timed launch.
    pub fn timed(&mut self, client: u64, timed: &Timed) {
        if let Some(job) = self.job(client) {
            job.served.timed(timed);
        }
    }

    /// Ends a process. At the end of the job's last process, the samples are added to the profile.
    pub fn gone(&mut self, entry: &Entry) -> RefineOutcome {
        let Some(called) = self.of.remove(&entry.client) else {
            return RefineOutcome::Goes;
        };
        let Some(job) = self.jobs.get_mut(&called) else {
            return RefineOutcome::Goes;
        };
        let together = job
            .active
            .values()
            .map(|entry| counted(&entry.lane.counters.memory_peak));
        job.memory_peak = job.memory_peak.max(together.fold(0, u64::saturating_add));
        job.ran = job.ran.max(entry.ran());
        job.active.remove(&entry.client);
        let counters = &entry.lane.counters;
        let launches = counted(&counters.launches).saturating_add(counted(&counters.graph_launches));
        job.launches = job.launches.saturating_add(launches);
        if !job.active.is_empty() {
            return RefineOutcome::Goes;
        }
        match self.jobs.remove(&called) {
            Some(job) => ended(&called, &job),
            None => RefineOutcome::Goes,
        }
    }

    fn job(&mut self, client: u64) -> Option<&mut Job> {
        self.jobs.get_mut(self.of.get(&client)?)
    }
}

fn counted(counter: &std::sync::atomic::AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn ended(called: &str, job: &Job) -> RefineOutcome {
    let trouble = |error: &dyn std::fmt::Display| RefineOutcome::Trouble(error.to_string());
    let (store, name) = match profile_path::locate(called) {
        Ok(located) => located,
        Err(error) => return trouble(&error),
    };
    let mut profile = match store.load(&name) {
        Ok(profile) if job.taken.is_none_or(|taken| taken == profile.taken) => profile,
        // Stage 1 took it again meanwhile, which is better.
        Ok(_) => return RefineOutcome::Stays,
        // It was removed meanwhile and must not reappear.
        Err(Error::Missing { .. }) if job.taken.is_some() => return RefineOutcome::Stays,
        Err(Error::Missing { .. }) => {
            let mut new = Profile {
                name,
                runs: 1,
                taken: std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
                ..Profile::default()
            };
            new.took(job.memory_peak, job.ran);
            new
        }
        // An unreadable profile is left for its user to repair.
        Err(error) => return trouble(&error),
    };
    match profile.refine(&job.served, job.launches) {
        Ok(refined) => match store.save(&profile) {
            Ok(_) => RefineOutcome::Refined(refined),
            Err(error) => trouble(&error),
        },
        Err(Unrefined::Few(_)) => RefineOutcome::Stays,
        Err(error) => trouble(&error),
    }
}

#[cfg(test)]
mod tests {
    use weft_profiles::refine::OtherJobs;
    use weft_profiles::{Aggregator, Store};

    use super::*;
    use crate::clients::registry::NewEntry;
    use weft_protocol::transport::map::SharedLane;

    const KERNEL: u64 = 7;

    fn process(client: u64, called: &str) -> Arc<Entry> {
        let lane = SharedLane::lane().expect("a lane");
        lane.counters.launches.store(1_000, Ordering::Relaxed);
        lane.counters.memory_peak.store(3_000, Ordering::Relaxed);
        let new_client = NewEntry {
            client,
            pid: client as u32,
            command: String::new(),
            profile: Some(called.to_string()),
            loaded: profile_path::load(called).ok().map(Arc::new),
            trouble: None,
            profiling: false,
            priority: 0,
            lane: Arc::new(lane),
        };
        Arc::new(Entry::new(new_client).refining())
    }

    fn show(refining: &mut Refining, client: u64, time: u64) {
        for _ in 0..40 {
            let timed = Timed {
                kernel: KERNEL,
                time,
                gap: None,
                beside: OtherJobs::BackgroundJobs,
            };
            refining.timed(client, &timed);
        }
    }

    fn profile(time: u64) -> Profile {
        let mut run = Aggregator::new();
        (0..50).for_each(|_| run.sampled(KERNEL, time, None));
        run.finish("job", 100)
    }

    fn says(store: &Store) -> Option<u64> {
        store.load("job").ok()?.kernel(KERNEL)?.time.quantile(0.5)
    }

    #[test]
    fn a_profile_is_written_when_the_last_process_has_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::at(folder.path());
        let called = format!("{}/job", folder.path().display());
        store.save(&profile(50_000)).expect("written");
        let mut refining = Refining::default();
        let (first, second) = (process(1, &called), process(2, &called));
        for entry in [&first, &second] {
            refining.attached(Arc::clone(entry));
        }
        show(&mut refining, 1, 20_000);
        assert!(matches!(refining.gone(&first), RefineOutcome::Goes));
        assert_eq!(says(&store), Some(50_000));
        assert!(matches!(
            refining.gone(&second),
            RefineOutcome::Refined(Refined { replaced: 1, .. })
        ));
        assert_eq!(says(&store), Some(20_000));
        assert_eq!(store.load("job").expect("there").refined, 1);
        assert!(matches!(refining.gone(&second), RefineOutcome::Goes), "once");
        assert!(refining.jobs.is_empty() && refining.of.is_empty());
    }

    #[test]
    fn a_job_without_a_profile_has_one_after_it_was_served() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::at(folder.path().join("new"));
        let called = format!("{}/new/job", folder.path().display());
        let mut refining = Refining::default();
        let only = process(1, &called);
        refining.attached(Arc::clone(&only));
        refining.named(1, KERNEL, &KernelId::new(0, "k", [1; 3], [32, 1, 1], 0));
        show(&mut refining, 1, 20_000);
        assert!(matches!(
            refining.gone(&only),
            RefineOutcome::Refined(Refined { added: 1, .. })
        ));
        let new = store.load("job").expect("written");
        assert_eq!((says(&store), new.memory_peak), (Some(20_000), 3_000));
        assert_eq!(
            new.kernel(KERNEL)
                .map(|kernel| (kernel.launches, kernel.id.symbol.as_str())),
            Some((1_000, "k"))
        );
    }

    #[test]
    fn what_somebody_else_did_to_the_file_is_respected() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::at(folder.path());
        let called = format!("{}/job", folder.path().display());
        let run = |change: &dyn Fn()| {
            store.save(&profile(50_000)).expect("written");
            let mut refining = Refining::default();
            let only = process(1, &called);
            refining.attached(Arc::clone(&only));
            show(&mut refining, 1, 20_000);
            change();
            refining.gone(&only)
        };
        let anew = || {
            let mut anew = profile(60_000);
            anew.taken += 1;
            store.save(&anew).expect("written");
        };
        assert!(matches!(run(&anew), RefineOutcome::Stays));
        assert_eq!(says(&store), Some(60_000));
        assert!(matches!(
            run(&|| store.remove("job").expect("there")),
            RefineOutcome::Stays
        ));
        assert_eq!(says(&store), None);
        let torn = || std::fs::write(store.path("job").expect("a name"), "weftPROF torn").expect("written");
        assert!(matches!(run(&torn), RefineOutcome::Trouble(_)));
        assert_eq!(
            std::fs::read(store.path("job").expect("a name")).expect("there"),
            b"weftPROF torn"
        );
    }
}
