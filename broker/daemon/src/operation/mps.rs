// SPDX-License-Identifier: MIT OR Apache-2.0
//! The broker's own MPS daemon (`--mps`), as NVIDIA's page "Common Tasks" starts one for a single
//! user.
//!
//! A thread starts the daemon, so clients do not wait for it. The daemon outlives a killed broker,
//! because its end would end its clients. The next broker adopts it, or ends it if it serves other
//! devices. `quit` never ends a client: the daemon then takes no new ones, and ends with its last.
//!
//! Invariants: at most one daemon, in the folder [`Places::mps`]. Every wait has a bound. Whatever
//! fails, the broker serves without MPS.
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::base::options::{MpsDevices, Options};
use weft_api::mps::{self, CONTROL, MpsDaemon, MpsMode, MpsState, MpsStatus};
use weft_api::paths::Places;
use weft_api::users::name_of;
use weft_protocol::device_share::PIPES;
use weft_protocol::transport::path;

/// Longest start of the daemon, which takes some 10 ms on an idle machine.
const START_LIMIT: Duration = Duration::from_secs(5);

/// Least time between two starts: a start may take [`START_LIMIT`], which the job waits for.
const TRIED_AGAIN: Duration = Duration::from_secs(10);

/// Longest wait for the end of a daemon without clients, whose server closes its contexts.
const QUIT_LIMIT: Duration = Duration::from_secs(5);

/// Longest folder of pipes: driver 535.261.03 starts at 87 bytes and fails at 88, with which
/// `/control_privileged` fills a socket's path.
const LONGEST_PIPES_BYTES: usize = 87;

/// Variables of a job that would count for all clients of a daemon.
const OF_CLIENTS: [&str; 5] = [
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_CLIENT_PRIORITY",
    "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_VISIBLE_DEVICES",
];

/// The broker's MPS.
#[derive(Debug, Clone)]
pub struct MpsService(Arc<MpsCell>);

#[derive(Debug)]
struct MpsCell {
    status: Mutex<MpsStatus>,
    /// Held while the daemon starts. `true`: the broker ends, and no daemon may start.
    ended: Mutex<bool>,
    /// Whether a job has printed the risk.
    warned: AtomicBool,
    folder: PathBuf,
    options: Options,
    /// When the last start began.
    tried: Mutex<Instant>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MpsService {
    /// Starts a thread that starts the daemon if the options ask for it, or ends one that an
    /// earlier broker left.
    pub fn start(places: &Places, options: &Options) -> io::Result<MpsService> {
        let wanted = options.mps != MpsMode::Off;
        let status = MpsStatus {
            mode: options.mps,
            state: if wanted { MpsState::Starting } else { MpsState::Off },
            ..MpsStatus::default()
        };
        let service = MpsService(Arc::new(MpsCell {
            status: Mutex::new(status),
            ended: Mutex::new(false),
            warned: AtomicBool::new(false),
            folder: places.mps(),
            options: options.clone(),
            tried: Mutex::new(Instant::now()),
        }));
        if wanted || service.0.folder.exists() {
            service.spawn()?;
        }
        Ok(service)
    }

    fn spawn(&self) -> io::Result<()> {
        let service = self.clone();
        let thread = std::thread::Builder::new().name("weft-mps".into());
        thread.spawn(move || service.begin()).map(|_| ())
    }

    /// The state for a job that begins. If there is no daemon, the obstacle may have gone. A job's
    /// driver would wait for one that hangs.
    pub fn joined(&self) -> MpsStatus {
        let status = self.status();
        if let (MpsState::On, Some(pipes), Some(process)) = (status.state, &status.pipes, status.process)
            && !mps::program().is_some_and(|program| answers(&program, pipes))
        {
            self.lose(format!("its daemon (process {process}) does not answer, or ends"));
            return self.status();
        }
        if self.0.options.mps == MpsMode::Off || status.state != MpsState::Off {
            return status;
        }
        let mut tried = lock(&self.0.tried);
        if tried.elapsed() < TRIED_AGAIN {
            return status;
        }
        *tried = Instant::now();
        lock(&self.0.status).state = MpsState::Starting;
        if self.spawn().is_err() {
            lock(&self.0.status).state = MpsState::Off;
        }
        self.status()
    }

    /// The present state.
    pub fn status(&self) -> MpsStatus {
        let status = lock(&self.0.status).clone();
        if let (MpsState::On, Some(pipes), Some(process)) = (status.state, &status.pipes, status.process)
            && MpsDaemon::of(process).is_none_or(|daemon| daemon.pipes.as_ref() != Some(pipes))
        {
            self.lose(format!("its daemon (process {process}) has ended"));
            return lock(&self.0.status).clone();
        }
        status
    }

    /// Notes that jobs cannot have the daemon.
    fn lose(&self, why: String) {
        log::warn!("MPS: {why}; jobs that begin now take turns on the device");
        lock(&self.0.status).off(why);
    }

    /// Whether the caller is the first: the risk of MPS is printed once.
    pub fn warns(&self) -> bool {
        lock(&self.0.status).state == MpsState::On && !self.0.warned.swap(true, Ordering::Relaxed)
    }

    fn begin(&self) {
        let (folder, options) = (self.0.folder.as_path(), &self.0.options);
        if options.mps == MpsMode::Off {
            match here(folder) {
                Some(left) => drop(quit(folder, &left)),
                None => drop(fs::remove_dir_all(folder)),
            }
            return;
        }
        let possible = possible(folder, options);
        let ended = lock(&self.0.ended);
        if *ended {
            return;
        }
        let made = possible.and_then(|(program, devices)| self.make(folder, &program, &devices));
        let mut status = lock(&self.0.status);
        match made {
            Ok(made) => {
                *status = MpsStatus {
                    mode: options.mps,
                    state: MpsState::On,
                    ..made
                }
            }
            Err(why) => {
                if options.mps == MpsMode::On {
                    log::warn!("MPS: {why}; jobs take turns on the device");
                } else {
                    log::info!("no MPS: {why}");
                }
                status.off(why);
            }
        }
    }

    /// Adopts or starts a daemon; an error is the reason why there is none.
    fn make(&self, folder: &Path, program: &Path, devices: &MpsDevices) -> Result<MpsStatus, String> {
        let made = |daemon: MpsDaemon| MpsStatus {
            process: Some(daemon.pid),
            pipes: Some(folder.to_path_buf()),
            visible: devices.visible.clone(),
            devices: daemon.devices,
            ..MpsStatus::default()
        };
        if let Some(left) = here(folder) {
            if left.devices == devices.uuids && answers(program, folder) {
                log::info!("MPS: takes over the daemon of an earlier broker (process {})", left.pid);
                self.0.warned.store(true, Ordering::Relaxed);
                return Ok(made(left));
            }
            if !quit(folder, &left) {
                return Err(format!(
                    "process {}, the daemon of an earlier broker, ends with its last job",
                    left.pid
                ));
            }
        }
        if let Some(other) = mps::daemons().iter().find(|other| other.listens()) {
            let own = other.uid == rustix::process::geteuid().as_raw();
            let usable = other.pipes.as_ref().filter(|_| own);
            let way = usable.map(|pipes| format!("; jobs with {PIPES}={} share it", pipes.display()));
            return Err(format!(
                "process {} of user {} is an MPS daemon, and the device takes turns between two{}",
                other.pid,
                name_of(other.uid),
                way.unwrap_or_default()
            ));
        }
        path::check_folder(&folder.join("control"), true).map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        for name in OF_CLIENTS {
            command.env_remove(name);
        }
        command
            .arg("-d")
            .env("CUDA_MPS_LOG_DIRECTORY", folder)
            .env("CUDA_MPS_PROTOCOL_VERSION", "2");
        if let Some(uuids) = &devices.uuids {
            command.env("CUDA_VISIBLE_DEVICES", uuids);
        }
        let started = mps::control(&mut command, folder, "", START_LIMIT);
        let daemon = here(folder);
        match (started, daemon) {
            (Ok(_), Some(daemon)) if answers(program, folder) => {
                log::info!(
                    "MPS: daemon {} at {}; a fatal fault of one job ends all jobs under it",
                    daemon.pid,
                    folder.display()
                );
                Ok(made(daemon))
            }
            (started, daemon) => {
                // It has no client yet.
                if let Some(pid) = daemon.and_then(|daemon| Pid::from_raw(daemon.pid.try_into().ok()?)) {
                    let _ = kill_process(pid, Signal::KILL);
                }
                let why = started.err().unwrap_or_else(|| "it does not answer".to_string());
                Err(format!(
                    "{CONTROL} -d failed: {}; its logs are in {} until the broker ends",
                    why.trim_end_matches('.'),
                    folder.display()
                ))
            }
        }
    }

    /// Ends the daemon, or leaves it to the next broker if jobs still use it.
    pub fn end(&self, jobs: usize) {
        // Waits for a start that is under way, at most START_LIMIT and two answers.
        *lock(&self.0.ended) = true;
        let status = self.status();
        let folder = &self.0.folder;
        let Some(daemon) = here(folder) else {
            // The logs of a daemon that did not start.
            let _ = fs::remove_dir_all(folder);
            return;
        };
        if status.state != MpsState::On {
            return;
        }
        // Jobs of an earlier broker may not have attached to this one.
        let clients = jobs.max(clients(folder));
        if clients > 0 {
            log::info!(
                "MPS: {clients} jobs use daemon {}; the next broker takes it over",
                daemon.pid
            );
        } else if !quit(folder, &daemon) {
            log::warn!(
                "MPS: daemon {} has not ended yet; it ends with its last client",
                daemon.pid
            );
        }
    }
}

/// The program and the devices of a daemon, or the reason why there can be none.
fn possible(folder: &Path, options: &Options) -> Result<(PathBuf, MpsDevices), String> {
    if options.door.is_shared() {
        return Err("a shared broker starts none, because MPS serves one user at a time".to_string());
    }
    if let Some(pipes) = std::env::var_os(PIPES).filter(|pipes| !pipes.is_empty()) {
        return Err(format!(
            "{PIPES}={} is set in the broker's environment, so jobs use the daemon there",
            pipes.display()
        ));
    }
    if folder.as_os_str().len() > LONGEST_PIPES_BYTES {
        let folder = folder.display();
        return Err(format!(
            "{folder} has more than {LONGEST_PIPES_BYTES} bytes, too many for the daemon's sockets: give a shorter --socket"
        ));
    }
    let program = mps::program().ok_or_else(|| format!("{CONTROL} is not in PATH: install it with the driver"))?;
    let devices = options
        .mps_devices
        .map_or_else(|| Ok(MpsDevices::default()), |find| find())?;
    Ok((program, devices))
}

/// The daemon of this folder of pipes.
fn here(folder: &Path) -> Option<MpsDaemon> {
    let own = rustix::process::geteuid().as_raw();
    let is_ours = |daemon: &MpsDaemon| daemon.uid == own && daemon.pipes.as_deref() == Some(folder);
    mps::daemons().into_iter().find(is_ours)
}

/// Whether the daemon takes clients. One that ends answers with that.
fn answers(program: &Path, folder: &Path) -> bool {
    let answer = mps::control(
        &mut Command::new(program),
        folder,
        "get_server_list\n",
        mps::ANSWER_LIMIT,
    );
    answer.is_ok_and(|text| text.split_whitespace().all(|word| word.parse::<u32>().is_ok()))
}

/// Clients of the daemon of this folder, as far as it answers.
fn clients(folder: &Path) -> usize {
    let Some(program) = mps::program() else { return 0 };
    let ask = |arguments: &[&str], input: &str| {
        mps::control(Command::new(&program).args(arguments), folder, input, mps::ANSWER_LIMIT)
    };
    let servers = mps::servers(&ask).map_or_else(|_| Vec::new(), |(_, servers)| servers);
    servers.iter().map(|server| server.clients).sum()
}

/// Asks a daemon to end, and removes its folder when it has ended. Returns whether it has.
fn quit(folder: &Path, daemon: &MpsDaemon) -> bool {
    let deadline = Instant::now() + QUIT_LIMIT;
    if let Some(program) = mps::program()
        && let Err(why) = mps::control(&mut Command::new(program), folder, "quit\n", QUIT_LIMIT)
    {
        log::debug!("MPS: quit of daemon {}: {why}", daemon.pid);
    }
    while here(folder).is_some() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = fs::remove_dir_all(folder);
    true
}
