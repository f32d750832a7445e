//! The daemon: drives the pure crates (scheduler, paging, admission) with real time and clients.
//!
//! Dependencies go one way: `weft-cli` -> `weft-daemon` -> the pure crates -> `weft-protocol`.
//!
//! Threads and what they touch:
//! * [`acceptor`] (the main thread) lets clients in, answers questions ([`query`]), notices the
//!   end;
//! * [`scheduler`] (told by its [`mailbox`]) reads lanes ([`lanes`]), asks the core, writes orders,
//!   waits ([`waiting`]). Only it touches the core and the orders;
//! * [`control`] hears clients' slow messages and deaths; [`heartbeat`] tells waiting jobs that it
//!   lives;
//! * [`admission`] decides which jobs may take device memory (told by the control thread);
//! * [`profile_writer`] writes samples into profiles on disk;
//! * [`metrics`] answers scrapers, at the lowest rank;
//! * [`reload`] reads the options again on SIGHUP;
//! * [`outcomes`] sums up what each job had, lost and cost; [`history`] writes jobs that ended to
//!   disk.
//!
//! What holds: no thread waits for a client. A client that is gone holds nothing. When the broker
//! ends, no client is left waiting.
#![deny(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::server::{Host, Listener};

mod acceptor;
pub mod admin;
pub mod admission;
mod clock;
mod co_runners;
mod control;
mod cores;
pub mod figures;
mod guest_profiles;
mod heartbeat;
pub mod history;
mod job_end;
pub mod job_name;
mod lanes;
pub mod log_file;
mod mailbox;
mod memory;
pub mod metrics;
pub mod mps;
pub mod options;
mod other_brokers;
pub mod outcome;
mod outcomes;
pub mod places;
mod process;
mod profile_writer;
mod query;
pub mod recording;
mod refining;
mod registry;
pub mod reload;
mod rota;
mod scheduler;
pub mod server;
pub mod status;
pub mod store;
mod supervisor;
#[doc(hidden)]
pub mod test_driver;
pub mod text;
mod thread_priority;
mod trace;
mod user_log;
mod user_pages;
mod user_threads;
pub mod users;
mod waiting;

use options::Options;
use places::Places;
use thread_priority::ThreadPriority;

/// Runs a broker until it is asked to end, on the socket `given` by a service manager, if any. An
/// error means that it did not start.
pub fn run(places: &Places, options: &Options, given: Option<OwnedFd>) -> Result<()> {
    let mut listener = match given {
        Some(socket) => Listener::given(socket, places.socket(), options.door)?,
        None => Listener::open(places.socket(), options.door)?,
    };
    let metrics_doors = metrics::MetricsDoors::open(places, options.door, &options.metrics)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot take signals")?;
    }
    let reload = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::clone(&reload)).context("cannot take signals")?;
    // A file beyond the size limit is then a write error and does not end the broker.
    let full = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, full).context("cannot take signals")?;
    let trace = match &options.trace {
        Some(path) => trace::Trace::to(path).with_context(|| format!("cannot write {}", path.display()))?,
        None => trace::Trace::none(),
    };
    let host = Arc::new(match options.door.is_shared() {
        true => Host::shared()?,
        false => Host::make()?,
    });
    let registry = Arc::new(registry::Registry::default());
    let gauges = Arc::new(OnceLock::new());
    let (profile_writer, profile_writer_thread) =
        profile_writer::start(profile_writer::complaints(Arc::clone(&gauges))).context("cannot start a thread")?;
    let (memory, memory_thread) =
        memory::start(memory::MemorySettings::of(options), trace.another()).context("cannot start a thread")?;
    let (history, history_end) = keep_history(places, options);
    let (to_outcomes, outcome_thread) = outcomes::start(outcomes::OutcomeSettings {
        delay_bound: options.core.delay_bound,
        longest_wait: options.longest_wait,
        history,
        clock: clock::now,
    })
    .context("cannot start a thread")?;
    let (to_scheduler, scheduler_thread) = scheduler::start(scheduler::Setup {
        config: options.core.clone(),
        listens: !options.switch_cost_said,
        spin: options.spin.decided(),
        host: Arc::clone(&host),
        registry: Arc::clone(&registry),
        profile_writer: profile_writer.clone(),
        trace,
        memory: memory.clone(),
        outcomes: to_outcomes.clone(),
        clock: clock::now,
    })
    .context("cannot start a thread")?;
    let _ = gauges.set(Arc::clone(&to_scheduler.gauges));
    memory.tell(memory::MemoryMessage::Scheduler(to_scheduler.clone()));
    // A shared broker neither uses nor fills one user's knowledge.
    let known = match options.door.is_shared() {
        true => places.known(),
        false => store::folder().join(admission::DEVICE_FACTS_FILE),
    };
    let admission = admission::AdmissionHandle::new(options.admission, Some(places.ledger()))
        .shared(options.door.is_shared())
        .measuring(&known);
    admission.set_rights(&options.rights);
    for (uid, weight) in &options.rights.weights {
        admission.weigh(&uid.to_string(), *weight);
    }
    let flags = control::ControlFlags {
        accounts: listener.accounts(),
        ..control::ControlFlags::default()
    };
    let (control, control_thread) = control::start(
        Arc::clone(&registry),
        control::ControlHearers {
            to_scheduler: to_scheduler.clone(),
            profile_writer: profile_writer.clone(),
            memory: memory.clone(),
            admission: admission.clone(),
            outcomes: to_outcomes.clone(),
        },
        options.core.unknown_cost,
        flags.clone(),
    )?;
    let beat = heartbeat::start(Arc::clone(&registry), Arc::clone(&flags.rounds)).context("cannot start a thread")?;
    let other_brokers = other_brokers::OtherBrokers::default();
    to_outcomes.tell(outcomes::OutcomeMessage::Scheduler(
        to_scheduler.clone(),
        other_brokers.clone(),
    ));
    let live = Arc::new(reload::LiveOptions::new(options));
    let answers = query::QueryHandler {
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
        dilation: options.dilation,
        shared: options.door.is_shared(),
        live: Arc::clone(&live),
        other_brokers: other_brokers.clone(),
        metrics: metrics::MetricsCache::default(),
    };
    let scraped = answers.clone();
    let metrics_server = metrics::MetricsServer::start(
        metrics_doors,
        options.door.is_shared(),
        Box::new(move |format, named| scraped.metrics(format, named)),
    )
    .context("cannot start a thread")?;
    let acceptor = acceptor::Acceptor {
        host,
        registry: Arc::clone(&registry),
        to_scheduler: to_scheduler.clone(),
        profile_writer: profile_writer.clone(),
        control,
        answers,
        stop,
        options: Arc::new(options.clone()),
        entering: user_threads::UserThreads::new("weft-welcome", listener.accounts()),
        asking: user_threads::UserThreads::new("weft-answer", listener.accounts()),
        guest_profiles: Arc::default(),
        most: acceptor::most(),
        other_brokers,
        reloader: Arc::new(reload::Reloader {
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
    // Later threads get this rank or a lower one.
    if options.door.is_shared() {
        ThreadPriority::Acceptor.take();
    }
    supervisor::ready();
    let why = acceptor.keep(&mut listener);
    supervisor::stopping();
    log::info!("ends: {why}; {} clients continue without weft", registry.count());
    // Threads that end let clients go, which frees no memory.
    admission.close();
    // The socket goes first: later clients start or find another broker.
    drop(listener);
    drop(acceptor);
    drop(metrics_server);
    // Before the scheduler, whose trace handle waits for the last line.
    memory.tell(memory::MemoryMessage::Stop);
    let _ = memory_thread.join();
    to_scheduler.tell(mailbox::Notice::Stop);
    let _ = scheduler_thread.join();
    // After the scheduler, which has told of all clients' ends.
    to_outcomes.tell(outcomes::OutcomeMessage::Stop);
    let _ = outcome_thread.join();
    if let Some(history_end) = history_end {
        history_end.wait();
    }
    flags.stop.store(true, Ordering::Release);
    let _ = control_thread.join();
    drop(beat);
    profile_writer.tell(profile_writer::ProfileMessage::Stop);
    let _ = profile_writer_thread.join();
    Ok(())
}

/// Starts the thread that keeps jobs that ended. Without it the broker serves all the same.
fn keep_history(places: &Places, options: &Options) -> (history::HistoryWriter, Option<history::HistoryEnd>) {
    let file = match history::file_of(places, options.door.is_shared()) {
        Ok(file) => file,
        Err(error) => {
            log::warn!("{error}; ended jobs are not recorded");
            return (history::HistoryWriter::deaf(), None);
        }
    };
    match history::start(file) {
        Ok((writer, end)) => (writer, Some(end)),
        Err(error) => {
            log::warn!("cannot start the thread for the history of jobs: {error}; ended jobs are not recorded");
            (history::HistoryWriter::deaf(), None)
        }
    }
}
