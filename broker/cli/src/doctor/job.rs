// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows about one job: a running process (`--pid`), or a command that is tried (`-- CMD`).
//!
//! A tried command is ended as soon as it has launched something, or after [`TRIED_S`]. Its output
//! goes to a separate file, so that it does not mix with the report.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::row::ReportRow;
use crate::environment::{self, Wishes};
use crate::outside::{self, LibraryFiles, Loaded};
use crate::{libraries, start, text};
use weft_api::admin::{self, AdminQuestion, Answer};
use weft_api::paths::Places;
use weft_api::status::{ClientStatus, Status};

/// Longest time for a tried command to launch something, s: large models load for minutes.
pub const TRIED_S: u64 = 120;

/// Interval between looks at a tried command.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// Time that a tried command has to end after SIGTERM.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// Longest part of a line of the command's output that is shown, characters.
const SAID: usize = 160;

/// Adds the rows of a running process.
pub fn process(places: &Places, pid: u32, rows: &mut Vec<ReportRow>) {
    if fs::read(format!("/proc/{pid}/environ")).is_err() {
        let there = Path::new(&format!("/proc/{pid}")).exists();
        let (found, advice) = match there {
            true => (
                format!("process {pid} belongs to another user"),
                "run this command as that user or as root",
            ),
            false => (format!("there is no process {pid}"), "weft status lists the jobs"),
        };
        rows.push(ReportRow::fail("process", found, advice));
        return;
    }
    let variable = |name: &str| outside::variable(pid, name);
    let command = text::command(&outside::command(pid), text::COMMAND);
    rows.push(ReportRow::ok("process", format!("{pid}: {command}")));
    let loaded = LibraryFiles::known().loaded_by(pid);
    rows.push(preload(&loaded, variable("LD_PRELOAD").as_deref()));
    if outside::is_off(pid) {
        let advice = "start the job without WEFT_MODE=off";
        rows.push(ReportRow::warn("mode", "weft is turned off in this process", advice));
    }
    rows.push(match loaded.driver {
        true => ReportRow::ok("driver", "the process has opened the driver"),
        false => ReportRow::warn(
            "driver",
            "the process has not opened the driver",
            "a job attaches at its first CUDA call: try again after it, or the process uses no GPU",
        ),
    });
    if loaded.weft.is_some() {
        let socket = variable("WEFT_SOCKET").map(PathBuf::from);
        attachment(places, pid, socket.as_deref(), loaded.driver, rows);
    }
}

fn preload(loaded: &Loaded, preloaded: Option<&str>) -> ReportRow {
    let own = libraries::find_weft();
    let named = preloaded.is_some_and(|list| list.contains("weft"));
    match (&loaded.weft, own) {
        (Some(path), Some(own)) if loaded.is(&own) || *path == own => {
            ReportRow::ok("libweft", format!("{} is loaded", path.display()))
        }
        (Some(path), _) => ReportRow::warn(
            "libweft",
            format!(
                "{} is loaded, and it is not the library of this weft command",
                path.display()
            ),
            "library and broker must be of one build: restart the job after an upgrade",
        ),
        (None, _) if named => ReportRow::fail(
            "libweft",
            "LD_PRELOAD names it, but it is not loaded",
            "the program is static or set-user-id, or its container does not have the file",
        ),
        (None, _) => ReportRow::fail(
            "libweft",
            "not loaded",
            "start the job with weft run; a running process cannot be put under weft",
        ),
    }
}

/// Whether the process is a job of the broker, and if not, why.
fn attachment(places: &Places, pid: u32, socket: Option<&Path>, driver: bool, rows: &mut Vec<ReportRow>) {
    let status = match admin::ask(places, &AdminQuestion::Status) {
        Ok(Answer::Status(status)) => Some(status),
        _ => None,
    };
    let client = status
        .as_ref()
        .and_then(|status| status.clients.iter().find(|client| client.pid == pid));
    if let (Some(status), Some(client)) = (&status, client) {
        rows.push(ReportRow::ok("broker", attached(client)));
        rows.extend(warnings(status, client));
        return;
    }
    let here = places.socket();
    let inside = PathBuf::from(format!("/proc/{pid}/root"));
    let seen = socket.unwrap_or(here);
    let within = inside.join(seen.strip_prefix("/").unwrap_or(seen));
    rows.push(if seen != here {
        ReportRow::fail(
            "broker",
            format!(
                "the process looks for its broker at {}, this command at {}",
                seen.display(),
                here.display()
            ),
            format!("WEFT_SOCKET={} weft doctor --pid {pid}", seen.display()),
        )
    } else if here.exists() && !libraries::same_file(&within, here) {
        let folder = places.directory();
        ReportRow::fail(
            "broker",
            format!("its container does not have the machine's {}", folder.display()),
            format!(
                "mount that folder in the container: docker run -v {0}:{0} ...",
                folder.display()
            ),
        )
    } else if !driver {
        ReportRow::ok("broker", "not attached yet")
    } else if status.is_none() {
        let advice = "start one by weft broker --background; jobs look for it once a second";
        ReportRow::fail("broker", format!("no broker answers at {}", here.display()), advice)
    } else {
        let advice = "read the reason on the job's stderr (WEFT_LOG=info logs more)";
        ReportRow::fail("broker", "the process is not a job of the broker", advice)
    });
}

fn attached(client: &ClientStatus) -> String {
    let launches = client.launches + client.graph_launches;
    format!(
        "client {}, priority {}, {}; {launches} launches and {} copies seen",
        client.client, client.priority, client.mode, client.transfers
    )
}

/// Rows for the broker's warnings about this job.
fn warnings(status: &Status, client: &ClientStatus) -> Vec<ReportRow> {
    let of_it = status
        .warnings
        .iter()
        .filter(|warning| warning.client == Some(client.client));
    let mut rows: Vec<ReportRow> = of_it
        .map(|warning| ReportRow::warn("protection", warning.text.clone(), "see docs/outcomes.md"))
        .collect();
    if client.troubles > 0 {
        rows.push(ReportRow::warn(
            "troubles",
            format!("weft passed {} calls through after internal errors", client.troubles),
            "report this with the output of WEFT_LOG=debug",
        ));
    }
    rows
}

/// Observations of a tried command.
#[derive(Debug, Default)]
struct TriedCommand {
    /// All its processes so far.
    pids: BTreeSet<u32>,
    /// Processes that opened the driver without weft.
    past: BTreeSet<u32>,
    /// The last status of each client among its processes.
    jobs: Vec<ClientStatus>,
    warnings: Vec<ReportRow>,
}

impl TriedCommand {
    fn look(&mut self, places: &Places, files: &LibraryFiles, gang: &str, child: u32) {
        self.pids.insert(child);
        self.pids.extend(outside::of_gang(gang));
        for pid in &self.pids {
            let loaded = files.loaded_by(*pid);
            if loaded.driver && loaded.weft.is_none() {
                self.past.insert(*pid);
            }
        }
        if let Ok(Answer::Status(status)) = admin::ask(places, &AdminQuestion::Status) {
            let ended = status.ended.iter().map(|ended| &ended.last);
            let mine = status
                .clients
                .iter()
                .chain(ended)
                .filter(|client| self.pids.contains(&client.pid));
            self.jobs = mine.cloned().collect();
            self.warnings = self.jobs.iter().flat_map(|client| warnings(&status, client)).collect();
        }
    }

    fn launches(&self) -> u64 {
        let launches = |client: &ClientStatus| client.launches + client.graph_launches;
        self.jobs.iter().map(launches).sum()
    }
}

/// Runs the command under weft until it launches something, and adds the rows.
pub fn command(places: &Places, words: &[OsString], rows: &mut Vec<ReportRow>) {
    let Some((program, arguments)) = words.split_first() else {
        return;
    };
    if let Some(unreached) = outside::reason(program, arguments) {
        rows.push(ReportRow::warn(
            "command",
            unreached.why,
            "try a program that loads libraries",
        ));
    }
    let tried = (|| {
        start::ensure(places, &start::idle_exit())?;
        let environment = environment::assemble(places, &Wishes::default())?;
        let said = tempfile(places)?;
        anyhow::Ok((environment, said))
    })();
    let (environment, said) = match tried {
        Ok(tried) => tried,
        Err(error) => {
            let advice = "see the rows sockets and broker";
            rows.push(ReportRow::fail("command", text::told(&error), advice));
            return;
        }
    };
    let gang = environment.set.iter().find(|(name, _)| *name == "WEFT_GANG");
    let gang = gang.map_or(String::new(), |(_, value)| value.to_string_lossy().into_owned());
    let (output, path) = said;
    let mut job = Command::new(program);
    job.args(arguments)
        .envs(environment.set.iter().cloned())
        .stdin(Stdio::null())
        .stdout(output.try_clone().map_or(Stdio::null(), Stdio::from))
        .stderr(output)
        .process_group(0);
    match job.spawn() {
        Ok(child) => watch(places, child, &gang, &path, rows),
        Err(error) => rows.push(ReportRow::fail(
            "command",
            format!("cannot start {}: {}", program.display(), text::why(&error)),
            "check that the command runs without weft",
        )),
    }
    let _ = fs::remove_file(&path);
    environment.tidy();
}

/// A private file of this user for the command's output.
fn tempfile(places: &Places) -> anyhow::Result<(File, PathBuf)> {
    let folder = match places.is_shared() {
        true => std::env::temp_dir(),
        false => places.directory(),
    };
    let path = folder.join(format!("doctor-{}.out", std::process::id()));
    let _ = fs::remove_file(&path);
    // Must be a new file, so that a link planted there is not followed.
    let file = File::options().write(true).create_new(true).open(&path)?;
    Ok((file, path))
}

fn watch(places: &Places, mut child: Child, gang: &str, output: &Path, rows: &mut Vec<ReportRow>) {
    let begin = Instant::now();
    let mut seen = TriedCommand::default();
    let mut ended = None;
    let files = LibraryFiles::known();
    while ended.is_none() && seen.launches() == 0 && begin.elapsed() < Duration::from_secs(TRIED_S) {
        std::thread::sleep(LOOK_PERIOD);
        ended = child.try_wait().ok().flatten();
        seen.look(places, &files, gang, child.id());
    }
    let ran = text::span(begin.elapsed().as_secs_f64());
    rows.push(match ended {
        Some(status) if status.success() => ReportRow::ok("command", format!("ran {ran} and succeeded")),
        Some(status) => ReportRow::fail(
            "command",
            format!("ended after {ran} with {}: {}", how(status), last_line(output)),
            "check that the command runs without weft",
        ),
        None => ReportRow::ok("command", format!("was ended after {ran}")),
    });
    end(&mut child, gang);
    rows.extend(found(&seen));
}

/// Rows about the observations.
fn found(seen: &TriedCommand) -> Vec<ReportRow> {
    let mut rows = Vec::new();
    let names = |pids: &BTreeSet<u32>| pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    if !seen.past.is_empty() {
        rows.push(ReportRow::fail(
            "command, past weft",
            format!("processes that opened the driver without weft: {}", names(&seen.past)),
            "check what removes LD_PRELOAD: sudo, a container, env -i",
        ));
    }
    let jobs: BTreeSet<u32> = seen.jobs.iter().map(|client| client.pid).collect();
    rows.push(match (jobs.is_empty(), seen.launches()) {
        (true, _) => ReportRow::fail(
            "attached",
            format!("none of its {} processes became a job of the broker", seen.pids.len()),
            "either it made no CUDA call in that time, or the rows above have the reason",
        ),
        (false, 0) => ReportRow::warn(
            "launches",
            "attached, but nothing was launched",
            "try a command that does a request or a step",
        ),
        (false, launches) => ReportRow::ok(
            "launches",
            format!(
                "{launches} seen, from {} of its {} processes",
                jobs.len(),
                seen.pids.len()
            ),
        ),
    });
    let unnamed: u64 = seen.jobs.iter().map(|client| client.unnamed).sum();
    if unnamed > 0 {
        rows.push(ReportRow::warn(
            "names",
            format!("{unnamed} launches of kernels without a known name"),
            "weft holds and times them, but a profile cannot tell them apart; report this",
        ));
    }
    rows.extend(seen.warnings.clone());
    rows
}

fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "no exit code".to_string(),
    }
}

/// The last line of the command's output.
fn last_line(output: &Path) -> String {
    let text = fs::read(output).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    last.map_or("it printed nothing".to_string(), |line| text::cut(line.trim(), SAID))
}

/// Ends the command and its child processes by SIGTERM, and the remaining ones by SIGKILL.
fn end(child: &mut Child, gang: &str) {
    let pid = |number: u32| i32::try_from(number).ok().and_then(Pid::from_raw);
    let group = pid(child.id());
    let signal = |signal: Signal| {
        if let Some(group) = group {
            // Fails only if no process of the group is left.
            let _ = kill_process_group(group, signal);
        }
        // Processes that made a group of their own.
        for process in outside::of_gang(gang).into_iter().filter_map(pid) {
            let _ = kill_process(process, signal);
        }
    };
    signal(Signal::TERM);
    let deadline = Instant::now() + END_PATIENCE;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
        std::thread::sleep(LOOK_PERIOD);
    }
    signal(Signal::KILL);
    let _ = child.wait();
}
