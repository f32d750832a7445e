// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows about the machine: sockets, broker, cores, profile folder.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::fs::{Access, access, statvfs};

use super::row::ReportRow;
use crate::config::{ConfigSources, LoadedConfig};
use crate::{outside, text};
use weft_api::admin::{self, AdminQuestion, Answer};
use weft_api::mps::{self, MpsDaemon, MpsMode, MpsState, MpsStatus};
use weft_api::paths::Places;
use weft_api::profile_path;
use weft_api::status::Status;
use weft_api::users::name_of;
use weft_protocol::VERSION;
use weft_protocol::kernel_module::KernelModule;
use weft_protocol::transport::{self, path};

/// Adds the rows.
pub fn rows(places: &Places, rows: &mut Vec<ReportRow>) {
    rows.push(sockets(places));
    rows.push(broker(places));
    let (mut trouble, mut allowed) = (None, None);
    if let Ok(Answer::Status(status)) = admin::ask(places, &AdminQuestion::Status) {
        allowed = Some(status.broker.checkpoint);
        trouble.clone_from(&status.broker.history_trouble);
        rows.extend(mixed(&status));
        rows.extend(own_mps(&status.broker.mps));
        rows.extend(elsewhere(&status));
    }
    rows.push(checkpoint(KernelModule::of_system().as_ref(), allowed));
    rows.extend(mps_servers());
    rows.extend(settings(&ConfigSources::of_environment(places.is_shared()).load()));
    rows.extend(private_mount(places));
    rows.push(cores());
    rows.push(profiles(&profile_path::folder()));
    rows.extend(history(places, trouble));
    rows.push(past_weft(places));
}

fn sockets(places: &Places) -> ReportRow {
    let directory = places.directory();
    let shown = directory.display().to_string();
    if places.is_shared() {
        // The folder belongs to another user by design; only root must have been able to create it.
        return match path::trusted(places.socket()) {
            Ok(owner) => ReportRow::ok(
                "sockets",
                format!("{shown} (of the shared broker, which belongs to user {owner})"),
            ),
            Err(error) => ReportRow::fail("sockets", error.to_string(), "jobs do not attach to a broker there"),
        };
    }
    match path::check_folder(places.socket(), false) {
        Ok(()) => ReportRow::ok("sockets", shown),
        Err(transport::TransportError::NoBroker(_)) => match directory.parent().map(writable) {
            Some(true) if path::may_make(&directory) => {
                ReportRow::ok("sockets", format!("{shown} (does not exist yet; it will be created)"))
            }
            _ => ReportRow::fail(
                "sockets",
                format!("{shown} does not exist and cannot be created"),
                "set WEFT_SOCKET to a path in a folder of your own",
            ),
        },
        Err(error) => ReportRow::fail(
            "sockets",
            error.to_string(),
            "weft does not put its socket there: set WEFT_SOCKET to a path in a folder of your own",
        ),
    }
}

/// Rows for errors in weft.toml.
fn settings(files: &LoadedConfig) -> Vec<ReportRow> {
    let wrong = files.errors.iter();
    let told = wrong.map(|wrong| {
        ReportRow::warn(
            "settings",
            wrong.to_string(),
            "correct it; until then weft ignores it (weft config show)",
        )
    });
    told.collect()
}

fn broker(places: &Places) -> ReportRow {
    match admin::ask(places, &AdminQuestion::Ping) {
        Ok(Answer::Pong { pid, protocol, version }) if protocol == VERSION => ReportRow::ok(
            "broker",
            format!(
                "process {pid}, version {version}, protocol {protocol}, at {}",
                places.socket().display()
            ),
        ),
        Ok(Answer::Pong { pid, protocol, .. }) => ReportRow::fail(
            "broker",
            format!("process {pid} uses protocol {protocol}, this weft {}", VERSION),
            "run weft stop, then start your jobs again",
        ),
        Ok(_) => ReportRow::fail("broker", "its answer does not fit the question", "run weft stop"),
        Err(error) if error.is_nobody() => ReportRow::ok("broker", "none runs; weft run starts one"),
        Err(error) => ReportRow::fail(
            "broker",
            format!("{error:#}"),
            "end the broker; jobs continue without weft meanwhile",
        ),
    }
}

/// Rows about devices that some jobs share under MPS and others do not.
fn mixed(status: &Status) -> Vec<ReportRow> {
    let devices = status.broker.devices.iter();
    let apart = devices.filter(|device| device.under_mps > 0 && device.not_under_mps > 0);
    let rows = apart.map(|device| {
        ReportRow::warn(
            "mps, jobs",
            format!(
                "{} of the jobs on {} share it under one MPS server, {} do not: weft treats the device as one that switches between processes",
                device.under_mps,
                device.uuid.as_deref().unwrap_or("the device"),
                device.not_under_mps
            ),
            "start either all jobs with one CUDA_MPS_PIPE_DIRECTORY and as one user, or none under MPS",
        )
    });
    rows.collect()
}

/// Row about the driver's checkpoint: whether the driver has it, its known hazards there, and
/// whether the broker allows it; `None`: no broker answers.
fn checkpoint(module: Option<&KernelModule>, allowed: Option<bool>) -> ReportRow {
    /// First branch of the driver with it, and first one that moves memory shared by CUDA IPC.
    const FIRST: u32 = 570;
    const SHARES: u32 = 610;
    const WHAT: &str = "checkpoint";
    let branch = module.and_then(KernelModule::branch);
    let driver = match (module, branch) {
        (Some(_), Some(branch)) if branch < FIRST => {
            return ReportRow::ok(WHAT, format!("not in driver {branch}: it begins with {FIRST}"));
        }
        (Some(module), Some(_)) => {
            let kind = if module.is_open { "open" } else { "proprietary" };
            format!("driver {}, {kind} kernel module", module.version)
        }
        _ => "the driver's branch is not known here".to_string(),
    };
    let word = match allowed {
        Some(true) => "the broker allows it: plain memory moves too",
        Some(false) => "the broker does not allow it: only movable memory moves",
        None => "no broker answers whether it is allowed (checkpoint in weft.toml)",
    };
    let found = format!("{driver}; {word}");
    let hazard = match branch {
        _ if module.is_some_and(KernelModule::hangs_after_checkpoint) => {
            "with this module, the end of a process that had been moved hung whole machines: weft moves no job that way here"
        }
        Some(595) => {
            "this driver lost jobs with managed memory, shared memory or an NCCL group on one GPU: weft refuses them once it has seen that"
        }
        Some(branch) if branch < SHARES => {
            "this driver lost jobs that share memory with other processes: weft refuses them once it has seen that"
        }
        _ => return ReportRow::ok(WHAT, found),
    };
    match allowed {
        Some(true) => ReportRow::warn(WHAT, found, hazard),
        _ => ReportRow::ok(WHAT, format!("{found}; {hazard}")),
    }
}

/// Row about the broker's own MPS daemon, if `--mps` asks for one.
pub fn own_mps(status: &MpsStatus) -> Option<ReportRow> {
    const WHAT: &str = "mps, broker";
    let found = crate::mps::line(status)?;
    Some(match (status.mode, status.state) {
        (MpsMode::On, MpsState::Off) => ReportRow::warn(
            WHAT,
            found,
            "remove the obstacle, and the broker tries again when a job begins; or use the daemon that it names",
        ),
        _ => ReportRow::ok(WHAT, found),
    })
}

/// A row for each MPS daemon that this user may ask, and one if there are several servers.
fn mps_servers() -> Vec<ReportRow> {
    const WHAT: &str = "mps servers";
    let Some(program) = mps::program() else {
        return Vec::new();
    };
    let mut rows = Vec::new();
    let mut all = 0;
    for daemon in mps::daemons().into_iter().filter(MpsDaemon::listens) {
        let called = format!("daemon {} of user {}", daemon.pid, name_of(daemon.uid));
        let Some(pipes) = &daemon.pipes else {
            all += 1;
            rows.push(ReportRow::ok(WHAT, format!("{called}, whose servers are not visible")));
            continue;
        };
        let ask = |arguments: &[&str], input: &str| {
            mps::control(Command::new(&program).args(arguments), pipes, input, mps::ANSWER_LIMIT)
        };
        match mps::servers(&ask) {
            Ok((version, servers)) => {
                all += servers.len();
                let mut shown: Vec<String> = servers.iter().map(ToString::to_string).collect();
                if shown.is_empty() {
                    shown.push("no server, because no job has used it yet".to_string());
                }
                let found = format!(
                    "{called}, version {version}, at {}: {}",
                    pipes.display(),
                    shown.join("; ")
                );
                rows.push(match servers.iter().any(|server| server.clients >= mps::MOST_CLIENTS) {
                    true => ReportRow::warn(
                        WHAT,
                        found,
                        "a server takes 60 clients a device (48 before CUDA 13.1): further jobs fail",
                    ),
                    false => ReportRow::ok(WHAT, found),
                });
            }
            Err(why) => rows.push(ReportRow::warn(
                WHAT,
                format!("{called}: {why}"),
                "read its control.log",
            )),
        }
    }
    if all > 1 {
        rows.push(ReportRow::warn(
            WHAT,
            format!("{all} servers"),
            "jobs of different servers take turns on a device: give all jobs of a device one CUDA_MPS_PIPE_DIRECTORY",
        ));
    }
    rows
}

/// Rows about other brokers that serve one of this broker's devices.
fn elsewhere(status: &Status) -> Vec<ReportRow> {
    let others = status.broker.others.iter();
    let rows = others.map(|other| {
        ReportRow::warn(
            "other broker",
            other.to_string(),
            "two brokers do not coordinate their jobs: let all jobs use one socket",
        )
    });
    rows.collect()
}

/// Warns if the socket's folder is private to this job: Slurm's job_container/tmpfs gives each its
/// own `/tmp`.
fn private_mount(places: &Places) -> Option<ReportRow> {
    let socket = places.directory();
    let folder = nearest(&socket)?;
    let own = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let machines = fs::read_to_string("/proc/1/mountinfo").ok()?;
    is_private(&own, &machines, &folder).then(|| {
        ReportRow::warn(
            "sockets, mount",
            format!(
                "{} is not the machine's {0}: the folder is private to this job, and jobs elsewhere do not reach a broker in it",
                folder.display()
            ),
            "start one weft broker --shared for the machine (by a prolog or systemd), whose /run/weft all jobs see",
        )
    })
}

/// Whether a folder is on another file system than for process 1, or on another part of it.
fn is_private(own: &str, machines: &str, folder: &Path) -> bool {
    match (mounted(own, folder), mounted(machines, folder)) {
        (Some(here), Some(there)) => here != there,
        _ => false,
    }
}

/// Device, and part of it, mounted at a folder (fields 3 and 4 of proc_pid_mountinfo(5)). The last
/// of several mounts counts.
fn mounted(mounts: &str, folder: &Path) -> Option<(String, String)> {
    let mut found: Option<(usize, (String, String))> = None;
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        let (Some(device), Some(root), Some(at)) = (fields.nth(2), fields.next(), fields.next()) else {
            continue;
        };
        // The kernel writes blanks as \040; weft's folders contain no blanks.
        let depth = Path::new(at).components().count();
        if folder.starts_with(at) && found.as_ref().is_none_or(|(deepest, _)| depth >= *deepest) {
            found = Some((depth, (device.to_string(), root.to_string())));
        }
    }
    found.map(|(_, what)| what)
}

fn cores() -> ReportRow {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    match cores {
        0..4 => ReportRow::warn(
            "cores",
            cores.to_string(),
            "jobs and broker compete for cores: gaps shorter than about 0.2 ms are not worth filling",
        ),
        _ => ReportRow::ok("cores", cores.to_string()),
    }
}

fn profiles(directory: &Path) -> ReportRow {
    if directory.as_os_str().is_empty() {
        return ReportRow::warn(
            "profiles",
            "no folder: neither WEFT_PROFILE_DIR nor HOME is set",
            "set WEFT_PROFILE_DIR: weft profile cannot save profiles",
        );
    }
    let shown = directory.display();
    let there = directory.is_dir();
    let can = match there {
        true => writable(directory),
        false => nearest(directory).is_some_and(|parent| writable(&parent)),
    };
    match (there, can) {
        (true, true) => {
            let count = weft_profiles::Store::at(directory)
                .names()
                .map_or(0, |names| names.len());
            ReportRow::ok("profiles", format!("{shown} ({count})"))
        }
        (false, true) => ReportRow::ok("profiles", format!("{shown} (does not exist yet; it will be created)")),
        (_, false) => ReportRow::warn(
            "profiles",
            format!("{shown} is not writable"),
            "set WEFT_PROFILE_DIR: weft profile cannot save profiles",
        ),
    }
}

/// Row about the history of jobs. `trouble`: the broker's. A shared broker's file is its owner's.
fn history(places: &Places, trouble: Option<String>) -> Option<ReportRow> {
    const WHAT: &str = "history";
    let cannot = |found| ReportRow::warn(WHAT, found, "weft history and weft report lack the jobs that end now");
    let file = match (trouble, weft_daemon::history::file(places)) {
        (Some(trouble), _) => return Some(cannot(trouble)),
        (None, _) if places.is_shared() => return None,
        (None, Err(error)) => return Some(cannot(error.to_string())),
        (None, Ok(file)) => file,
    };
    let there = file.ancestors().find(|path| path.exists())?;
    let can = match there == file {
        true => access(there, Access::WRITE_OK).is_ok(),
        false => there.is_dir() && writable(there),
    };
    let shown = file.display();
    let free = statvfs(there).map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    Some(match (can, free) {
        (true, LEAST_FREE_BYTES..) => ReportRow::ok(WHAT, shown.to_string()),
        (true, _) => cannot(format!("{shown}: its disk is full: free space there")),
        (false, _) => cannot(format!("{shown} is not writable: set WEFT_STATE_DIR to another folder")),
    })
}

/// Free space below which the history cannot be written: a batch of rows and its journal, bytes.
const LEAST_FREE_BYTES: u64 = 64 << 10;

fn past_weft(places: &Places) -> ReportRow {
    let attached = match admin::ask(places, &AdminQuestion::Status) {
        Ok(Answer::Status(status)) => status.clients.iter().map(|client| client.pid).collect(),
        _ => Vec::new(),
    };
    let outside: Vec<String> = outside::processes(&attached)
        .into_iter()
        .map(|process| format!("{} ({})", process.pid, text::cut(&process.command, text::COMMAND)))
        .collect();
    match outside.is_empty() {
        true => ReportRow::ok("past weft", "none of your processes has opened the driver past weft"),
        false => ReportRow::warn(
            "past weft",
            format!(
                "processes that opened the driver and are not jobs of this broker: {}",
                outside.join(", ")
            ),
            "start them with weft run; weft does not see a library that opens the driver by path from a scope or namespace of its own",
        ),
    }
}

fn writable(directory: &Path) -> bool {
    access(directory, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

/// Nearest existing parent of a folder.
fn nearest(directory: &Path) -> Option<std::path::PathBuf> {
    directory
        .ancestors()
        .find(|parent| parent.is_dir())
        .map(Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::row::RowVerdict;

    #[test]
    fn the_checkpoint_is_told_with_its_driver_its_hazard_and_the_brokers_word() {
        let row = |version: &str, is_open, allowed| {
            let version = version.to_string();
            checkpoint(Some(&KernelModule { version, is_open }), allowed)
        };
        let old = row("550.54.14", false, Some(true));
        assert_eq!(old.found, "not in driver 550: it begins with 570");
        let good = row("610.11", true, Some(true));
        assert_eq!(
            (good.verdict, good.found.as_str()),
            (
                RowVerdict::Ok,
                "driver 610.11, open kernel module; the broker allows it: plain memory moves too"
            )
        );
        let advice = |row: ReportRow| row.advice.unwrap_or_default();
        assert!(advice(row("595.71", true, Some(true))).contains("hung whole machines"));
        assert!(advice(row("595.71", false, Some(true))).contains("NCCL"));
        assert!(advice(row("580.159.04", false, Some(true))).contains("that share memory"));
        // If it is off there is nothing to do.
        let off = row("595.71", true, Some(false));
        assert_eq!((off.verdict, off.advice), (RowVerdict::Ok, None));
        assert!(off.found.contains("does not allow it") && off.found.contains("hung whole machines"));
        let unknown = checkpoint(None, None);
        assert!(unknown.found.contains("not known here") && unknown.found.contains("no broker answers"));
    }

    #[test]
    fn a_folder_of_a_jobs_own_is_told_from_the_machines() {
        let machines = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:40 / /run rw shared:5 - tmpfs tmpfs rw\n";
        let tmp = Path::new("/tmp");
        assert!(!is_private(machines, machines, tmp));
        // Like job_container/tmpfs: a folder of the job, bound over /tmp.
        let job = format!("{machines}41 22 8:1 /var/spool/job7/.7 /tmp rw - ext4 /dev/sda1 rw\n");
        assert!(is_private(&job, machines, tmp) && is_private(&job, machines, Path::new("/tmp/weft-1000")));
        assert!(!is_private(&job, machines, Path::new("/run/weft-1000")));
        assert!(
            !is_private(&job, machines, Path::new("/tmpx")),
            "a name that only begins alike"
        );
        // The later of two mounts at one place is on top. Unreadable lines are ignored.
        let back = format!("{job}42 41 8:1 / /tmp rw - ext4 /dev/sda1 rw\n");
        assert_eq!(mounted(&back, tmp), Some(("8:1".into(), "/".into())));
        assert!(!is_private("", machines, tmp) && !is_private(&job, "nonsense\n", tmp));
    }
}
