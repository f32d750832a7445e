// SPDX-License-Identifier: MIT OR Apache-2.0
//! The daemon: drives the pure crates (scheduler, paging, admission) with real time and clients.
//!
//! Dependencies go one way: `weft-cli` -> `weft-daemon` -> the pure crates -> `weft-protocol`.
//! The modules also depend on each other in one direction: `scripts/harness/ci/layers.toml` lists
//! them from the lowest up.
//!
//! From the top down, with their threads:
//! * [`reception`]: `acceptor` (the main thread) lets clients in and notices the broker's end.
//!   `control` reads clients' less urgent messages and notices their deaths;
//! * [`operation`]: `query` answers questions, `reload` reads the options again on SIGHUP,
//!   `supervisor` notifies systemd;
//! * [`scheduling`]: `thread` (reached through its [`scheduler_mailbox`]) reads lanes, asks the
//!   core, writes orders, waits. Only this thread uses the core and writes orders;
//! * [`outcomes`] sums up each job's GPU time, losses and costs;
//! * [`admission`] decides which jobs may take device memory (called by the control thread). Its
//!   `heartbeat` shows waiting jobs that the broker is alive;
//! * [`memory`] plans managed memory;
//! * [`history`] writes ended jobs to disk;
//! * [`profiles`]: `writer` writes samples into profiles on disk;
//! * [`metrics`] answers scrapers, at the lowest priority;
//! * [`web`], the HTTP server, [`clients`], the table of attached clients, [`server`], the
//!   transport, and [`base`].
//!
//! Invariants: no thread waits for a client. An ended client holds nothing. When the broker ends,
//! no client is left waiting.
#![deny(unsafe_code)]

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use weft_api::paths::Places;
use weft_api::profile_path;

use crate::server::{Host, Listener};

mod admission;
mod base;
mod clients;
pub mod history;
mod memory;
pub mod metrics;
mod operation;
mod outcomes;
mod profiles;
mod reception;
mod scheduler_mailbox;
mod scheduling;
pub mod server;
#[doc(hidden)]
pub mod test_driver;
pub mod web;

pub use base::{log_file, options};

/// Readers of foreign bytes, for fuzzing.
#[doc(hidden)]
pub mod fuzzed {
    pub use crate::admission::fuzzed as admission;
    pub use crate::server::fuzzed as transport;
}

use base::thread_priority::ThreadPriority;
use options::Options;

/// Runs a broker until it is asked to end. `given`: its socket, if a service manager passed one. An
/// error means that the broker did not start.
pub fn run(places: &Places, options: &Options, given: Option<OwnedFd>) -> Result<()> {
    let mut listener = match given {
        Some(socket) => Listener::given(socket, places.socket(), options.door)?,
        None => Listener::open(places.socket(), options.door)?,
    };
    let metrics_doors = metrics::open(places, options.door, &options.metrics)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot take signals")?;
    }
    let reload = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::clone(&reload)).context("cannot take signals")?;
    // With a handler, a file beyond the size limit is a write error and does not end the broker.
    let full = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, full).context("cannot take signals")?;
    let trace = match &options.trace {
        Some(path) => base::trace::Trace::to(path).with_context(|| format!("cannot write {}", path.display()))?,
        None => base::trace::Trace::none(),
    };
    let host = Arc::new(match options.door.is_shared() {
        true => Host::shared()?,
        false => Host::make()?,
    });
    let registry = Arc::new(clients::registry::Registry::default());
    let gauges = Arc::new(OnceLock::new());
    let (profile_writer, profile_writer_thread) =
        profiles::writer::start(scheduler_mailbox::complaints(Arc::clone(&gauges))).context("cannot start a thread")?;
    let (memory, memory_thread) =
        memory::start(memory::MemorySettings::of(options), trace.another()).context("cannot start a thread")?;
    let (history, history_end) = keep_history(places, options);
    let (to_outcomes, outcome_thread) = outcomes::start(outcomes::OutcomeSettings {
        delay_bound: options.core.delay_bound,
        longest_wait: options.longest_wait,
        history: history.clone(),
        shared: options.door.is_shared(),
        clock: base::clock::now,
    })
    .context("cannot start a thread")?;
    let (to_scheduler, scheduler_thread) = scheduling::thread::start(scheduling::thread::Setup {
        config: options.core.clone(),
        listens: !options.switch_cost_said,
        // On two cores, a spin takes the core of a job's own thread.
        spin: std::thread::available_parallelism().map_or(1, usize::from) > 2,
        host: Arc::clone(&host),
        registry: Arc::clone(&registry),
        profile_writer: profile_writer.clone(),
        trace,
        memory: memory.clone(),
        outcomes: to_outcomes.clone(),
        clock: base::clock::now,
    })
    .context("cannot start a thread")?;
    let _ = gauges.set(Arc::clone(&to_scheduler.gauges));
    memory.tell(memory::MemoryMessage::Scheduler(to_scheduler.clone()));
    let (mut known, mut ledger) = (
        profile_path::folder().join(admission::DEVICE_FACTS_FILE),
        places.ledger(),
    );
    // A shared broker neither reads nor writes a user's own file.
    if options.door.is_shared() {
        let kept = kept_places(places);
        (known, ledger) = (kept.known(), kept.ledger());
    }
    let admission = admission::AdmissionHandle::new(Some(ledger))
        .shared(options.door.is_shared())
        .measuring(&known);
    admission.set_rights(&options.rights);
    for (uid, weight) in &options.rights.weights {
        admission.weigh(&uid.to_string(), *weight);
    }
    let flags = reception::control::ControlFlags {
        accounts: listener.accounts(),
        ..reception::control::ControlFlags::default()
    };
    let (control, control_thread) = reception::control::start(
        Arc::clone(&registry),
        reception::control::ControlHearers {
            to_scheduler: to_scheduler.clone(),
            profile_writer: profile_writer.clone(),
            memory: memory.clone(),
            admission: admission.clone(),
            outcomes: to_outcomes.clone(),
        },
        options.core.unknown_cost,
        flags.clone(),
    )?;
    let beat = admission::heartbeat::start(Arc::clone(&registry), Arc::clone(&flags.rounds))
        .context("cannot start a thread")?;
    let other_brokers = server::other_brokers::OtherBrokers::default();
    to_outcomes.tell(outcomes::OutcomeMessage::Scheduler(
        to_scheduler.clone(),
        other_brokers.clone(),
    ));
    let live = Arc::new(operation::reload::LiveOptions::new(options));
    let mps = operation::mps::MpsService::start(places, options).context("cannot start a thread")?;
    let answers = operation::query::QueryHandler {
        admission: admission.clone(),
        registry: Arc::clone(&registry),
        to_scheduler: to_scheduler.clone(),
        outcomes: to_outcomes.clone(),
        profile_writer: profile_writer.clone(),
        stop: Arc::clone(&stop),
        since: Instant::now(),
        socket: places.socket().to_path_buf(),
        policy: options.core.policy.to_string(),
        delay_bound: Duration::from_nanos(options.core.delay_bound),
        longest_wait: options.longest_wait,
        checkpoint: options.checkpoint,
        shared: options.door.is_shared(),
        live: Arc::clone(&live),
        other_brokers: other_brokers.clone(),
        pods: clients::pods::PodNames::of_environment(),
        metrics: metrics::MetricsCache::default(),
        mps: mps.clone(),
        history,
    };
    let scraped = answers.clone();
    let texts = Box::new(move |format, audience| scraped.metrics(format, audience));
    let metrics_server = web::WebServer::start(
        "weft-metrics",
        metrics_doors,
        metrics::handler(options.door.is_shared(), texts),
    )
    .context("cannot start a thread")?;
    let acceptor = reception::acceptor::Acceptor {
        host,
        registry: Arc::clone(&registry),
        to_scheduler: to_scheduler.clone(),
        profile_writer: profile_writer.clone(),
        control,
        answers,
        stop,
        options: Arc::new(options.clone()),
        entering: server::user_threads::UserThreads::new("weft-welcome", listener.accounts()),
        asking: server::user_threads::UserThreads::new("weft-answer", listener.accounts()),
        guest_profiles: Arc::default(),
        most: reception::acceptor::most(),
        other_brokers,
        reloader: Arc::new(operation::reload::Reloader {
            in_force: std::sync::Mutex::new(options.clone()),
            live,
            asked: reload,
            admission: admission.clone(),
            to_scheduler: to_scheduler.clone(),
        }),
    };
    log::info!(
        "process {} at {}, policy {}",
        std::process::id(),
        places.socket().display(),
        options.core.policy
    );
    // Later threads get this priority or a lower one.
    if options.door.is_shared() {
        ThreadPriority::Guests.take();
    }
    operation::supervisor::ready();
    let why = acceptor.keep(&mut listener);
    operation::supervisor::stopping();
    // A job that ended a moment ago did not outlive the broker.
    registry.wait_for_deaths(LAST_DEATHS);
    // Nor did one whose connection was closed first.
    admission.tick();
    log::info!("ends: {why}; {} clients continue without weft", registry.count());
    // The threads that end below let clients go; that must free no memory.
    admission.close();
    // Before the socket is removed: the next broker must not find a daemon that ends.
    mps.end(registry.count());
    // The socket is removed first: later clients start or find another broker.
    drop(listener);
    drop(acceptor);
    drop(metrics_server);
    // The memory thread ends before the scheduler, whose trace handle waits for the last line.
    memory.tell(memory::MemoryMessage::Stop);
    let _ = memory_thread.join();
    to_scheduler.tell(scheduler_mailbox::Notice::Stop);
    let _ = scheduler_thread.join();
    // The outcome thread ends after the scheduler, which reports all clients' ends to it.
    to_outcomes.tell(outcomes::OutcomeMessage::Stop);
    let _ = outcome_thread.join();
    if let Some(history_end) = history_end {
        history_end.wait();
    }
    flags.stop.store(true, Ordering::Release);
    let _ = control_thread.join();
    drop(beat);
    profile_writer.tell(profiles::writer::ProfileMessage::Stop);
    let _ = profile_writer_thread.join();
    Ok(())
}

/// Longest wait of a broker that ends, until the deaths of clients are handled: two rounds of the
/// control thread, and more on a busy machine. With ten busy threads on two cores, half of this
/// handled 187 of 200 deaths. A job whose death it missed is in no record.
const LAST_DEATHS: Duration = Duration::from_secs(6);

/// Starts the thread that stores ended jobs. If it cannot start, the broker serves without it.
fn keep_history(places: &Places, options: &Options) -> (history::HistoryWriter, Option<history::HistoryEnd>) {
    let file = match history::file_of(places, options.door.is_shared()) {
        Ok(file) => file,
        Err(error) => {
            let line = format!("{error}; jobs that end now are not recorded");
            log::warn!("{line}");
            return (history::HistoryWriter::deaf(Some(line)), None);
        }
    };
    match history::start(file) {
        Ok((writer, end)) => (writer, Some(end)),
        Err(error) => {
            let line = format!("cannot start the thread for the history: {error}; jobs that end now are not recorded");
            log::warn!("{line}");
            (history::HistoryWriter::deaf(Some(line)), None)
        }
    }
}

/// The places of a shared broker's files that name jobs and their commands: with the history.
/// Containers have the socket's folder, and their root can read root's files there.
fn kept_places(places: &Places) -> Places {
    let history = history::file_of(places, true).ok();
    let Some(folder) = history.as_deref().and_then(Path::parent) else {
        return places.clone();
    };
    // Several brokers may have one folder. A socket's path is short enough for a name.
    let name = places.socket().to_string_lossy().replace('/', "%");
    let kept = Places::at(folder.join(name));
    if folder == places.directory() || history::make_folder(folder).is_err() {
        return places.clone();
    }
    // Earlier versions left them next to the socket.
    for (here, there) in [(places.ledger(), kept.ledger()), (places.known(), kept.known())] {
        if !there.exists() && std::fs::copy(&here, &there).is_ok() {
            log::info!("moved {} to {}", here.display(), there.display());
        }
        let _ = std::fs::remove_file(here);
    }
    kept
}
