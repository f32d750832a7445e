// SPDX-License-Identifier: MIT OR Apache-2.0
//! NVIDIA's Multi-Process Service: its processes on this machine, its control program, and the MPS
//! of a broker. Under MPS the device does not switch between processes.
//!
//! [`MpsCheck`] is for clients whose driver does not report MPS (before CUDA 12.4). A daemon found
//! here need not serve the client, and one in another container is not visible.
//!
//! The answers of the control program are those of NVIDIA's pages "Legacy MPS v2 Interface" and
//! "MPS v3 Interface" (releases 615 and 620). Unknown columns and rows are passed over.
#![deny(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, getppid, kill_process_group, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use weft_protocol::device_share::{DEFAULT_PIPES, PIPES};

/// Name of the control program and of the daemon.
pub const CONTROL: &str = "nvidia-cuda-mps-control";

/// Clients that a server takes on one device, by NVIDIA's page "When to Use MPS".
pub const MOST_CLIENTS: usize = 60;

/// Longest wait for an answer of the control program. It takes milliseconds.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Whether a broker starts an MPS daemon (`--mps`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MpsMode {
    /// No.
    #[default]
    Off,
    /// If nothing stands in the way.
    Auto,
    /// As `Auto`; each job prints the reason if there is none.
    On,
}

impl FromStr for MpsMode {
    type Err = String;

    fn from_str(text: &str) -> Result<MpsMode, String> {
        match text {
            "off" => Ok(MpsMode::Off),
            "auto" => Ok(MpsMode::Auto),
            "on" => Ok(MpsMode::On),
            _ => Err(format!("{text} is not one of off, auto, on")),
        }
    }
}

impl fmt::Display for MpsMode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            MpsMode::Off => "off",
            MpsMode::Auto => "auto",
            MpsMode::On => "on",
        })
    }
}

/// State of a broker's MPS daemon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MpsState {
    /// There is none.
    #[default]
    Off,
    /// It starts.
    Starting,
    /// It takes clients.
    On,
}

/// MPS of a broker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MpsStatus {
    /// The option in force.
    pub mode: MpsMode,
    /// State of the daemon.
    pub state: MpsState,
    /// Why there is none; `None`: the mode is off.
    pub why: Option<String>,
    /// Process of the daemon.
    pub process: Option<u32>,
    /// Its folder of pipes, for `CUDA_MPS_PIPE_DIRECTORY`.
    pub pipes: Option<PathBuf>,
    /// `CUDA_VISIBLE_DEVICES` of the broker; `None`: the daemon serves all devices.
    pub visible: Option<String>,
    /// The daemon's `CUDA_VISIBLE_DEVICES`: the same devices by UUID.
    pub devices: Option<String>,
}

impl MpsStatus {
    /// There is none, or no longer.
    pub fn off(&mut self, why: String) {
        *self = MpsStatus {
            mode: self.mode,
            why: Some(why),
            ..MpsStatus::default()
        };
    }
}

/// Answer to a job that begins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joining {
    /// MPS of the broker.
    pub mps: MpsStatus,
    /// Whether this is the daemon's first job, which prints the risk.
    pub first: bool,
    /// Most important priority of the attached jobs; `None`: none is attached.
    pub most_important: Option<u8>,
}

/// A control daemon of MPS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MpsDaemon {
    /// Process id.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its folder of pipes; `None`: its environment cannot be read.
    pub pipes: Option<PathBuf>,
    /// Its `CUDA_VISIBLE_DEVICES`.
    pub devices: Option<String>,
}

impl MpsDaemon {
    /// The control daemon that is this process; `None`: it is none.
    pub fn of(pid: u32) -> Option<MpsDaemon> {
        let at = PathBuf::from(format!("/proc/{pid}"));
        if program_of(&fs::read(at.join("cmdline")).ok()?) != CONTROL.as_bytes() {
            return None;
        }
        let environment = fs::read(at.join("environ")).ok();
        let variable = |name: &str| {
            let mut lines = environment.as_ref()?.split(|byte| *byte == 0);
            let value = lines.find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
            Some(OsString::from_vec(value.to_vec()))
        };
        let pipes = || variable(PIPES).unwrap_or_else(|| DEFAULT_PIPES.into()).into();
        Some(MpsDaemon {
            pid,
            uid: fs::metadata(&at).ok()?.uid(),
            pipes: environment.as_ref().map(|_| pipes()),
            devices: variable("CUDA_VISIBLE_DEVICES").and_then(|value| value.into_string().ok()),
        })
    }

    /// Whether it takes clients, as far as its mount namespace is visible.
    pub fn listens(&self) -> bool {
        let root = PathBuf::from(format!("/proc/{}/root", self.pid));
        let inside = |pipes: &PathBuf| root.join(pipes.strip_prefix("/").unwrap_or(pipes));
        self.pipes
            .as_ref()
            .is_none_or(|pipes| inside(pipes).join("control").exists())
    }
}

/// The control daemons on this machine, as far as they are visible.
pub fn daemons() -> Vec<MpsDaemon> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| MpsDaemon::of(entry.file_name().to_str()?.parse().ok()?))
        .collect()
}

/// The control program, in `PATH` or in the folders of driver packages and containers.
pub fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/bin", "/usr/local/nvidia/bin"].map(PathBuf::from);
    let mut files = std::env::split_paths(&path)
        .chain(usual)
        .map(|folder| folder.join(CONTROL));
    files.find(|file| fs::metadata(file).is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0))
}

/// Runs the control program in a folder of pipes for at most `limit`. Returns its output, or one
/// line about its failure.
///
/// A program that hangs ends with this process or after `limit`, with the programs of a script that
/// stands in for it. A daemon that it has started is in a session of its own, and stays.
pub fn control(command: &mut Command, pipes: &Path, input: &str, limit: Duration) -> Result<String, String> {
    let system = |error: std::io::Error| error.to_string();
    // A daemon keeps the descriptors of its starter: a pipe would have no end.
    let mut output = File::from(memfd_create("weft-mps", MemfdFlags::CLOEXEC).map_err(|error| error.to_string())?);
    end_with_parent(command);
    let mut child = command
        .process_group(0)
        .env(PIPES, pipes)
        // The servers are no jobs.
        .env_remove("LD_PRELOAD")
        .env("WEFT_MODE", "off")
        .stdin(Stdio::piped())
        .stdout(output.try_clone().map_err(system)?)
        .stderr(output.try_clone().map_err(system)?)
        .spawn()
        .map_err(system)?;
    if let Some(mut stdin) = child.stdin.take() {
        // Fails for a program that reads nothing, whose output counts.
        let _ = stdin.write_all(input.as_bytes());
    }
    let deadline = Instant::now() + limit;
    let status = loop {
        match child.try_wait().map_err(system)? {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
                let _ = child.wait();
                return Err(format!("it did not answer within {} s", limit.as_secs()));
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let mut text = Vec::new();
    output
        .rewind()
        .and_then(|()| output.read_to_end(&mut text))
        .map_err(system)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    match status.success() {
        true => Ok(text),
        false => Err(text.lines().next().map_or_else(|| status.to_string(), str::to_string)),
    }
}

/// Has the kernel end the command's process when the calling thread does. Children of that process
/// do not inherit this.
#[allow(unsafe_code)]
fn end_with_parent(command: &mut Command) {
    let own = rustix::process::getpid();
    let ends = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent ended before that call.
        match getppid() == Some(own) {
            true => Ok(()),
            false => Err(std::io::ErrorKind::BrokenPipe.into()),
        }
    };
    // SAFETY: the closure makes two async-signal-safe system calls and allocates nothing.
    unsafe { command.pre_exec(ends) };
}

/// A server of MPS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MpsServer {
    /// Its name; under version 2 its process.
    pub name: String,
    /// Number of its clients.
    pub clients: usize,
    /// Further facts that its daemon reports, for people.
    pub facts: Vec<String>,
}

impl fmt::Display for MpsServer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "server {} with {} clients", self.name, self.clients)?;
        self.facts.iter().try_for_each(|fact| write!(out, ", {fact}"))
    }
}

/// Runs the control program with these arguments and this input. Returns its output, or the first
/// line of its error.
pub type AskControl<'a> = dyn Fn(&[&str], &str) -> Result<String, String> + 'a;

/// A daemon's version (2 or 3), and its servers.
pub fn servers(ask: &AskControl<'_>) -> Result<(u8, Vec<MpsServer>), String> {
    let list = |module: &str| ask(&[module, "list", "--format=csv"], "").map(|text| rows(&text));
    let listed = list("server").unwrap_or_default();
    let features = ask(&["feature", "describe", "--format=csv"], "")
        .map(|text| rows(&text))
        .unwrap_or_default();
    if listed.is_empty() && features.is_empty() {
        let numbers =
            |text: String| -> Vec<u32> { text.split_whitespace().filter_map(|word| word.parse().ok()).collect() };
        let found = numbers(ask(&[], "get_server_list\n")?)
            .into_iter()
            .map(|pid| MpsServer {
                name: pid.to_string(),
                clients: ask(&[], &format!("get_client_list {pid}\n")).map_or(0, |text| numbers(text).len()),
                facts: Vec::new(),
            });
        return Ok((2, found.collect()));
    }
    let clients = ask(&["client", "list", "--all", "--format=csv"], "")
        .map(|text| rows(&text))
        .unwrap_or_default();
    let namespaces = list("namespace").unwrap_or_default();
    let fact = |row: &BTreeMap<String, String>, column: &str, text: &str| {
        let value = row
            .get(column)
            .filter(|value| !["", "-", "none"].contains(&value.as_str()))?;
        Some(text.replace("{}", value))
    };
    let of_server = |row: &BTreeMap<String, String>| {
        let name = row.get("name").cloned().unwrap_or_default();
        let inside = |row: &&BTreeMap<String, String>| row.get("server") == Some(&name);
        let mut facts: Vec<String> = [
            ("uid", "user {}"),
            ("pid", "process {}"),
            ("status", "{}"),
            ("timeslice-pct", "{} % of the time"),
        ]
        .into_iter()
        .filter_map(|(column, text)| fact(row, column, text))
        .collect();
        for namespace in namespaces.iter().filter(inside) {
            let limits: Vec<String> = [
                ("pinned-memory-limit", "{} of memory"),
                ("active-thread-percentage", "{} % of the SMs"),
            ]
            .into_iter()
            .filter_map(|(column, text)| fact(namespace, column, text))
            .collect();
            if !limits.is_empty() {
                let called = namespace.get("name").map_or("", String::as_str);
                facts.push(format!("namespace {called} has {}", limits.join(", ")));
            }
        }
        let accounts = |row: &BTreeMap<String, String>| {
            let state = row.get("state").is_some_and(|state| state.starts_with("enabled"));
            state && row.get("feature").is_some_and(|name| name == "memacct")
        };
        if features.iter().any(accounts) {
            facts.push("memory accounted by cgroup".to_string());
        }
        MpsServer {
            clients: clients.iter().filter(inside).count(),
            name,
            facts,
        }
    };
    Ok((3, listed.iter().map(of_server).collect()))
}

/// Rows of a table in CSV by the names of its columns, in small letters with hyphens.
fn rows(text: &str) -> Vec<BTreeMap<String, String>> {
    let mut lines = text.lines().map(|line| line.split(',').map(str::trim));
    let Some(header) = lines.next() else { return Vec::new() };
    let header: Vec<String> = header
        .map(|name| name.to_ascii_lowercase().replace(['_', ' '], "-"))
        .collect();
    // The text of a refusal has no columns.
    if header.len() < 2 {
        return Vec::new();
    }
    lines
        .map(|row| header.iter().cloned().zip(row.map(str::to_string)).collect())
        .collect()
}

/// Time for which a result is valid; each check reads one file per process.
const HOLDS: Duration = Duration::from_secs(10);

/// The last result and its time.
#[derive(Debug, Default)]
pub struct MpsCheck(Option<(Instant, bool)>);

impl MpsCheck {
    /// [`runs`], cached.
    pub fn runs(&mut self) -> bool {
        let fresh = self.0.filter(|(at, _)| at.elapsed() < HOLDS);
        fresh.unwrap_or_else(|| *self.0.insert((Instant::now(), runs()))).1
    }
}

/// The programs of MPS.
const DAEMONS: [&[u8]; 2] = [CONTROL.as_bytes(), b"nvidia-cuda-mps-server"];

/// Whether a process of one of these names runs.
pub fn runs() -> bool {
    let Ok(entries) = fs::read_dir("/proc") else {
        return false;
    };
    entries.flatten().any(|entry| {
        // The kernel's process name is cut at 15 bytes; the command line is whole.
        fs::read(entry.path().join("cmdline")).is_ok_and(|line| is_daemon(&line))
    })
}

fn is_daemon(command_line: &[u8]) -> bool {
    DAEMONS.contains(&program_of(command_line))
}

/// Name of a command line's program.
fn program_of(command_line: &[u8]) -> &[u8] {
    let program = command_line.split(|byte| *byte == 0 || *byte == b' ').next();
    program
        .unwrap_or_default()
        .rsplit(|byte| *byte == b'/')
        .next()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of a daemon: (arguments, input) and output.
    fn told(answers: &[(&str, &str)]) -> Result<(u8, Vec<String>), String> {
        let ask = |arguments: &[&str], input: &str| {
            let question = format!("{}{}", arguments.join(" "), input.trim_end());
            let found = answers.iter().find(|(asked, _)| *asked == question);
            found
                .map(|(_, answer)| answer.to_string())
                .ok_or_else(|| "Unknown command".to_string())
        };
        let (version, servers) = servers(&ask)?;
        Ok((version, servers.iter().map(ToString::to_string).collect()))
    }

    #[test]
    fn servers_of_version_3_are_those_of_nvidias_pages() {
        // The rows of "MPS v3 Interface", release 615, below the columns that it lists.
        let page = [
            (
                "server list --format=csv",
                "name,uid,pid,status,pipe-directory,allowed-devices,context-ids\n\
                 training,1000,48201,Ready,/run/nvidia-mps/training,GPU-abcd-1234,-\n",
            ),
            (
                "client list --all --format=csv",
                "pid,server,device,namespace,cmd\n\
                 51023,training,0,default,python train.py\n\
                 51087,training,0,high_priority,python eval.py\n",
            ),
            (
                "namespace list --format=csv",
                "name,server,server-status,pinned-memory-limit,active-thread-percentage,client-priority,pipe-directory\n\
                 default,training,Ready,-,-,-,/run/nvidia-mps/training/default\n\
                 high_priority,training,Ready,4G,25,0,/run/nvidia-mps/training/high_priority\n",
            ),
        ];
        let server = "server training with 2 clients, user 1000, process 48201, Ready";
        let limits = "namespace high_priority has 4G of memory, 25 % of the SMs";
        assert_eq!(told(&page), Ok((3, vec![format!("{server}, {limits}")])));
        let features = (
            "feature describe --format=csv",
            "FEATURE,STATE,MODULE,COVERS\nmemacct,enabled (default),memacct,-\n",
        );
        let with_memory = [page[0], page[1], page[2], features];
        let memory = "memory accounted by cgroup";
        assert_eq!(
            told(&with_memory),
            Ok((3, vec![format!("{server}, {limits}, {memory}")]))
        );
        // Release 620 has `timeslice_pct` for a server. Columns that weft does not know, in any
        // order, and devices with commas in them change nothing.
        let newer = [(
            "server list --format=csv",
            "NAME,COLOUR,UID,PID,STATUS,TIMESLICE_PCT,PIPE DIRECTORY,ALLOWED DEVICES\n\
             training,red,1000,48201,Ready,50,/run/nvidia-mps/training,GPU-abcd-1234,GPU-efgh-5678\n\
             pipe1,-,1000,-,Configured,-,/run/nvidia-mps/pipe1\n",
        )];
        let both = [
            "server training with 0 clients, user 1000, process 48201, Ready, 50 % of the time",
            "server pipe1 with 0 clients, user 1000, Configured",
        ];
        assert_eq!(told(&newer), Ok((3, both.map(str::to_string).to_vec())));
        // A daemon of version 3 without a server.
        assert_eq!(told(&[features]), Ok((3, Vec::new())));
    }

    #[test]
    fn servers_of_version_2_are_numbers() {
        // "Legacy MPS v2 Interface": lists of process ids.
        let page = [
            ("get_server_list", "28941\n28950\n"),
            ("get_client_list 28941", "30112\n30119\n30204\n"),
            ("get_client_list 28950", ""),
        ];
        let both = ["server 28941 with 3 clients", "server 28950 with 0 clients"];
        assert_eq!(told(&page), Ok((2, both.map(str::to_string).to_vec())));
        assert_eq!(told(&[("get_server_list", "")]), Ok((2, Vec::new())));
        assert_eq!(told(&[]), Err("Unknown command".to_string()), "no daemon");
    }

    #[test]
    fn a_mode_is_one_of_three() {
        for mode in [MpsMode::Off, MpsMode::Auto, MpsMode::On] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("yes".parse::<MpsMode>().is_err());
    }

    #[test]
    fn the_program_decides_not_its_arguments() {
        assert!(is_daemon(b"/usr/bin/nvidia-cuda-mps-control\0-d\0"));
        assert!(is_daemon(b"nvidia-cuda-mps-server"));
        assert!(!is_daemon(b"grep\0nvidia-cuda-mps-control\0"));
        assert!(!is_daemon(b""));
    }
}
