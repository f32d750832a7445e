//! Rows about the machine: sockets, broker, cores, profile folder.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

use rustix::fs::{Access, access};

use super::row::ReportRow;
use crate::config::{ConfigSources, LoadedConfig};
use crate::{outside, text};
use weft_api::admin::{self, Answer, Question};
use weft_api::paths::Places;
use weft_api::profile_path;
use weft_api::status::Status;
use weft_protocol::VERSION;
use weft_protocol::transport::{self, path};

/// Adds the rows.
pub fn rows(places: &Places, rows: &mut Vec<ReportRow>) {
    rows.push(sockets(places));
    rows.push(broker(places));
    rows.extend(dilation(places));
    if let Ok(Answer::Status(status)) = admin::ask(places, &Question::Status) {
        rows.extend(mps(&status));
        rows.extend(elsewhere(&status));
    }
    rows.extend(settings(&ConfigSources::of_environment(places.is_shared()).load()));
    rows.extend(private_mount(places));
    rows.push(cores());
    rows.push(profiles(&profile_path::folder()));
    rows.push(past_weft(places));
}

fn sockets(places: &Places) -> ReportRow {
    let directory = places.directory();
    let shown = directory.display().to_string();
    if places.is_shared() {
        // Another user's folder by intent: what counts is that only root can have put it there.
        return match path::trusted(places.socket()) {
            Ok(owner) => ReportRow::ok(
                "sockets",
                format!("{shown} (of the broker of all users, user {owner}'s)"),
            ),
            Err(error) => ReportRow::fail("sockets", error.to_string(), "jobs will not attach to a broker there"),
        };
    }
    match path::check_folder(places.socket(), false) {
        Ok(()) => ReportRow::ok("sockets", shown),
        Err(transport::Error::NoBroker(_)) => match nearest(&directory).map(|parent| writable(&parent)) {
            Some(true) => ReportRow::ok("sockets", format!("{shown} (not there yet; it will be made)")),
            _ => ReportRow::fail(
                "sockets",
                format!("{shown} is not there and cannot be made"),
                "set WEFT_SOCKET to a path in a folder of your own",
            ),
        },
        Err(error) => ReportRow::fail("sockets", error.to_string(), "weft will not put its socket there"),
    }
}

/// What is wrong with weft.toml.
fn settings(files: &LoadedConfig) -> Vec<ReportRow> {
    let wrong = files.errors.iter();
    let told = wrong.map(|wrong| {
        ReportRow::warn(
            "settings",
            wrong.to_string(),
            "correct it; until then it counts as not said (weft config show)",
        )
    });
    told.collect()
}

fn broker(places: &Places) -> ReportRow {
    match admin::ask(places, &Question::Ping) {
        Ok(Answer::Pong { pid, protocol, version }) if protocol == VERSION => ReportRow::ok(
            "broker",
            format!(
                "process {pid}, version {version}, protocol {protocol}, at {}",
                places.socket().display()
            ),
        ),
        Ok(Answer::Pong { pid, protocol, .. }) => ReportRow::fail(
            "broker",
            format!("process {pid} speaks protocol {protocol}, this weft {}", VERSION),
            "weft stop, then start your jobs again",
        ),
        Ok(_) => ReportRow::fail("broker", "gives an answer to another question", "weft stop"),
        Err(error) if error.is_nobody() => ReportRow::ok("broker", "none runs; weft run starts one"),
        Err(error) => ReportRow::fail(
            "broker",
            format!("{error:#}"),
            "end it; jobs go on as without weft meanwhile",
        ),
    }
}

/// Checks a simulated GPU's dilation. A broker that does not know it takes each kernel for a long
/// one.
fn dilation(places: &Places) -> Option<ReportRow> {
    let said = std::env::var("SIMGPU_DILATION").ok()?;
    let device: f64 = said.trim().parse().ok().filter(|factor| *factor != 1.0)?;
    let start = format!("weft stop; weft broker --background --dilation {device}");
    Some(match admin::ask(places, &Question::Status) {
        Ok(Answer::Status(status)) if (status.broker.dilation - device).abs() < 1e-3 * device => {
            ReportRow::ok("dilation", format!("{device}, of device and broker"))
        }
        Ok(Answer::Status(status)) => ReportRow::warn(
            "dilation",
            format!(
                "the simulated GPU is {device} times slower (SIMGPU_DILATION), and the broker counts with {}: it protects nobody",
                status.broker.dilation
            ),
            &start,
        ),
        _ => ReportRow::warn(
            "dilation",
            format!(
                "the simulated GPU is {device} times slower (SIMGPU_DILATION); a broker that weft run starts does not know it"
            ),
            format!("weft broker --background --dilation {device}"),
        ),
    })
}

/// Devices that some jobs share under MPS and others do not.
fn mps(status: &Status) -> Vec<ReportRow> {
    let devices = status.broker.devices.iter();
    let apart = devices.filter(|device| device.under_mps > 0 && device.not_under_mps > 0);
    let rows = apart.map(|device| {
        ReportRow::warn(
            "mps, jobs",
            format!(
                "{} of the jobs on {} share it under MPS, {} do not: they take turns, and the device counts as one that switches",
                device.under_mps,
                device.uuid.as_deref().unwrap_or("the device"),
                device.not_under_mps
            ),
            "start all of them with one CUDA_MPS_PIPE_DIRECTORY, as one user, or none",
        )
    });
    rows.collect()
}

/// Other brokers that serve one of this broker's devices.
fn elsewhere(status: &Status) -> Vec<ReportRow> {
    let others = status.broker.others.iter();
    let rows = others.map(|other| {
        ReportRow::warn(
            "other broker",
            other.to_string(),
            "jobs of two brokers get no gaps and no room from one another: have all of them use one socket",
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
                "{} is not the machine's {0}: this job has it for itself, and jobs elsewhere do not meet the broker there",
                folder.display()
            ),
            "have one weft broker --shared started for the machine (a prolog, systemd), whose /run/weft all jobs see",
        )
    })
}

/// Whether a folder is on another file system than for process 1, or another part of it.
fn is_private(own: &str, machines: &str, folder: &Path) -> bool {
    match (mounted(own, folder), mounted(machines, folder)) {
        (Some(here), Some(there)) => here != there,
        _ => false,
    }
}

/// Device and part of it that are mounted at a folder (fields 3 and 4 of proc_pid_mountinfo(5)). Of
/// several the last counts.
fn mounted(mounts: &str, folder: &Path) -> Option<(String, String)> {
    let mut found: Option<(usize, (String, String))> = None;
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        let (Some(device), Some(root), Some(at)) = (fields.nth(2), fields.next(), fields.next()) else {
            continue;
        };
        // The kernel writes blanks as \040; weft's folders have none.
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
            "jobs and broker take each other's core: filling gaps shorter than about 0.2 ms will not pay",
        ),
        _ => ReportRow::ok("cores", cores.to_string()),
    }
}

fn profiles(directory: &Path) -> ReportRow {
    if directory.as_os_str().is_empty() {
        return ReportRow::warn(
            "profiles",
            "there is no place for them: neither WEFT_PROFILE_DIR nor HOME is set",
            "set WEFT_PROFILE_DIR; weft profile cannot keep what it learns",
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
        (false, true) => ReportRow::ok("profiles", format!("{shown} (not there yet; it will be made)")),
        (_, false) => ReportRow::warn(
            "profiles",
            format!("{shown} cannot be written"),
            "set WEFT_PROFILE_DIR; weft profile cannot keep what it learns",
        ),
    }
}

fn past_weft(places: &Places) -> ReportRow {
    let attached = match admin::ask(places, &Question::Status) {
        Ok(Answer::Status(status)) => status.clients.iter().map(|client| client.pid).collect(),
        _ => Vec::new(),
    };
    let outside: Vec<String> = outside::processes(&attached)
        .into_iter()
        .map(|process| format!("{} ({})", process.pid, text::cut(&process.command, text::COMMAND)))
        .collect();
    match outside.is_empty() {
        true => ReportRow::ok("past weft", "no process of yours has opened the driver past weft"),
        false => ReportRow::warn(
            "past weft",
            format!(
                "opened the driver and are no jobs of this broker: {}",
                outside.join(", ")
            ),
            "start them with weft run; a library that opens the driver by its path, from a scope or namespace of its own, stays unseen",
        ),
    }
}

fn writable(directory: &Path) -> bool {
    access(directory, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

/// Nearest existing parent folder.
fn nearest(directory: &Path) -> Option<std::path::PathBuf> {
    directory
        .ancestors()
        .find(|parent| parent.is_dir())
        .map(Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_a_jobs_own_is_told_from_the_machines() {
        let machines = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:40 / /run rw shared:5 - tmpfs tmpfs rw\n";
        let tmp = Path::new("/tmp");
        assert!(!is_private(machines, machines, tmp));
        // As job_container/tmpfs does: a folder of the job, bound over /tmp.
        let job = format!("{machines}41 22 8:1 /var/spool/job7/.7 /tmp rw - ext4 /dev/sda1 rw\n");
        assert!(is_private(&job, machines, tmp) && is_private(&job, machines, Path::new("/tmp/weft-1000")));
        assert!(!is_private(&job, machines, Path::new("/run/weft-1000")));
        assert!(
            !is_private(&job, machines, Path::new("/tmpx")),
            "a name that only begins alike"
        );
        // Two at one place: the later one is on top. Unreadable lines are no finding.
        let back = format!("{job}42 41 8:1 / /tmp rw - ext4 /dev/sda1 rw\n");
        assert_eq!(mounted(&back, tmp), Some(("8:1".into(), "/".into())));
        assert!(!is_private("", machines, tmp) && !is_private(&job, "nonsense\n", tmp));
    }
}
