// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft pause`, `resume`, `cancel` and `wait`: jobs by name, client number or process.
//!
//! Signals go to the processes that the broker knows of a job, through descriptors that identify a
//! process and not just its number. Before a signal the broker is asked once more: if its client
//! still exists, the descriptor is that client's. The kernel decides who may signal a process.
#![forbid(unsafe_code)]

use std::fs;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::time::{ClockId, clock_gettime};

use super::eviction::OrderedMove;
use super::outside::LibraryFiles;
use super::status::{ATTACHED_AFTER_S, ask};
use super::{eviction, text, users};
use weft_api::admin::{self, AdminQuestion};
use weft_api::paths::Places;
use weft_api::status::{ClientStatus, EvictionStatus, FOR_MOVES, Status};
use weft_protocol::amount;
use weft_protocol::duration::parse as time;

/// Exit code of a wait that timed out, as in timeout(1).
pub const TIMED_OUT: u8 = 124;

/// Longest wait for a move: a hundred gigabytes at a slow link's rate.
const MOVE_TIMEOUT: &str = "60s";

/// Interval at which the broker is asked about a job whose processes are not visible here.
const ASKED_AGAIN: Duration = Duration::from_millis(500);

/// Interval at which a broker is asked that began a moment ago.
pub const ASKED_SOON: Duration = Duration::from_millis(50);

/// Tolerance for start times, seconds: a clock tick, and the time that a question takes.
const BEGIN_SLACK_S: f64 = 0.2;

/// Largest number of jobs listed in a message.
const MOST_LISTED: usize = 8;

/// Stop a job's processes until weft resume; other jobs have the GPU, and with --evict its memory
#[derive(Debug, clap::Args)]
#[command(after_help = JOBS)]
pub struct PauseArgs {
    /// Move the job's device memory to the host, instead of stopping its processes: they wait at
    /// their next call that uses the device. For jobs with --backing movable, and for others under
    /// a broker with --checkpoint allow
    #[arg(long)]
    pub evict: bool,
    /// Whether the job's next call that uses the device, such as a launch, brings the memory back,
    /// or only weft resume does. With on-launch a job that uses the device now does not move
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = WakeOn::Resume, requires = "evict")]
    pub wake: WakeOn,
    /// Longest wait for the move (60s, 500ms, 2m); exit code 124 after it
    #[arg(long, value_name = "TIME", value_parser = time, default_value = MOVE_TIMEOUT, requires = "evict")]
    pub timeout: Duration,
    /// Jobs: names, client numbers or process ids (train.py, client:3, pid:4711)
    #[arg(required = true, value_name = "JOB")]
    pub jobs: Vec<String>,
}

/// The event that brings the memory of a paused job back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum WakeOn {
    /// Only weft resume.
    #[value(name = "on-resume")]
    Resume,
    /// The job's next call that uses the device, too.
    #[value(name = "on-launch")]
    Launch,
}

/// Continue a paused job; an evicted one gets its memory back first
#[derive(Debug, clap::Args)]
#[command(after_help = JOBS)]
pub struct ResumeArgs {
    /// Longest wait until an evicted job has its memory back (60s, 500ms, 2m); exit code 124 after
    /// it, and the job returns as soon as its memory is free
    #[arg(long, value_name = "TIME", value_parser = time, default_value = MOVE_TIMEOUT)]
    pub timeout: Duration,
    /// Jobs: names, client numbers or process ids (train.py, client:3, pid:4711)
    #[arg(required = true, value_name = "JOB")]
    pub jobs: Vec<String>,
}

/// End a job by SIGTERM; it can save its state first
#[derive(Debug, clap::Args)]
#[command(after_help = JOBS)]
pub struct CancelArgs {
    /// Time for the job to end (10s, 500ms, 2m); after it the job is ended by SIGKILL
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub kill_after: Option<Duration>,
    /// Jobs: names, client numbers or process ids (train.py, client:3, pid:4711)
    #[arg(required = true, value_name = "JOB")]
    pub jobs: Vec<String>,
}

/// Wait until jobs have ended; exit code 124 if --timeout is over before that
#[derive(Debug, clap::Args)]
#[command(after_help = JOBS)]
pub struct WaitArgs {
    /// Longest time to wait (60s, 500ms, 2m, 1h); default: no limit
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub timeout: Option<Duration>,
    /// Jobs: names, client numbers or process ids (train.py, client:3, pid:4711)
    #[arg(required = true, value_name = "JOB")]
    pub jobs: Vec<String>,
}

const JOBS: &str = "\
A number is a client number, as weft status shows it, or a process id. It selects all attached
processes of that job (those that one weft run started). A name selects all jobs of that name.";

/// Stops jobs, or moves their memory to the host.
pub fn pause(args: &PauseArgs) -> Result<ExitCode> {
    let places = Places::of_environment();
    if args.evict {
        let ordered = match args.wake {
            WakeOn::Resume => OrderedMove::Out,
            WakeOn::Launch => OrderedMove::UntilCall,
        };
        return eviction::order(&places, &args.jobs, ordered, args.timeout);
    }
    let (processes, code) = signal(&args.jobs, &[Signal::STOP])?;
    if let Ok(status) = ask(&places) {
        let paused = |client: &&ClientStatus| processes.iter().any(|process| process.client == client.client);
        status
            .clients
            .iter()
            .filter(paused)
            .filter_map(kept)
            .for_each(|line| eprintln!("weft: {line}"));
    }
    Ok(code)
}

/// Line on the device memory that a stopped process keeps, and the way to free it. `None`: it keeps
/// none, or it was evicted before.
fn kept(client: &ClientStatus) -> Option<String> {
    let eviction = client.eviction.as_ref();
    if client.memory == 0 || eviction.is_some_and(EvictionStatus::is_away) {
        return None;
    }
    let (id, held) = (client.client, amount::shown(client.memory));
    Some(match eviction.filter(|eviction| eviction.movable > 0) {
        Some(_) => format!(
            "client {id} keeps {held} of device memory (weft resume {id}, then weft pause --evict {id} moves it to the host)"
        ),
        None => format!("client {id} keeps {held} of device memory, which stays: {FOR_MOVES}"),
    })
}

/// Continues jobs, also processes whose broker was killed while they were paused.
pub fn resume(args: &ResumeArgs) -> Result<ExitCode> {
    let places = Places::of_environment();
    let attached = attached(&places, &args.jobs).map_or_else(|_| Vec::new(), |status| status.clients);
    let is_done = |word: &&String| select(word, &attached).is_err() && resume_unattached(word);
    let rest: Vec<String> = args.jobs.iter().filter(|word| !is_done(word)).cloned().collect();
    if rest.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    // A stopped process would not bring its memory back.
    let (processes, code) = signal(&rest, &[Signal::CONT])?;
    let known: Vec<String> = processes.iter().map(|process| process.client.to_string()).collect();
    let moved = eviction::order(&places, &known, OrderedMove::Back, args.timeout)?;
    Ok(if code == ExitCode::SUCCESS { moved } else { code })
}

/// Continues the process that a word names, if it was a broker's job. Returns whether it did.
fn resume_unattached(word: &str) -> bool {
    let pid = numbers(word.trim()).1.and_then(|pid| i32::try_from(pid).ok());
    let Some(pid) = pid.and_then(Pid::from_raw) else {
        return false;
    };
    // The descriptor first: the process that is looked at is then the one that is signalled.
    let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) else {
        return false;
    };
    let loaded = LibraryFiles::known().loaded_by(pid.as_raw_nonzero().get().unsigned_abs());
    // Without a broker it has given its lane back.
    let is_job = loaded.weft.is_some() && (loaded.lane || loaded.driver);
    is_job && pidfd_send_signal(&fd, Signal::CONT).is_ok()
}

/// Ends jobs.
pub fn cancel(args: &CancelArgs) -> Result<ExitCode> {
    // A stopped process handles SIGTERM only when it continues.
    let (processes, code) = signal(&args.jobs, &[Signal::TERM, Signal::CONT])?;
    let advice = match args.kill_after {
        Some(_) => "",
        None => " (--kill-after ends it sooner)",
    };
    let clients = processes.iter().map(|process| process.client);
    eviction::bring_back(&Places::of_environment(), clients, advice);
    let Some(patience) = args.kill_after else {
        return Ok(code);
    };
    let left = wait_for(&processes, Some(Instant::now() + patience));
    let mut code = code;
    for process in left {
        if let Err(why) = process.send(Signal::KILL) {
            eprintln!("weft: {why}");
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}

/// Waits for the end of jobs.
pub fn wait(args: &WaitArgs) -> Result<ExitCode> {
    let deadline = args.timeout.map(|timeout| Instant::now() + timeout);
    let places = Places::of_environment();
    let status = attached(&places, &args.jobs)?;
    let mut wanted: Vec<ClientStatus> = Vec::new();
    let mut wrong = false;
    for word in &args.jobs {
        match select(word, &status.clients) {
            Ok(found) => wanted.extend(found.into_iter().cloned()),
            Err(_) if has_ended(word, &status) => {}
            Err(why) => {
                eprintln!("weft: {why}");
                wrong = true;
            }
        }
    }
    if wrong {
        return Ok(ExitCode::FAILURE);
    }
    let (far, near): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|client| client.elsewhere);
    let processes = open(&places, near)?;
    let mut over = wait_for(&processes, deadline).is_empty();
    while over && far.iter().any(|client| is_attached(&places, client)) {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match left {
            Some(Duration::ZERO) => over = false,
            _ => std::thread::sleep(left.unwrap_or(ASKED_AGAIN).min(ASKED_AGAIN)),
        }
    }
    Ok(match over {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(TIMED_OUT),
    })
}

/// Stops or continues the job of this client. An error is one line.
pub fn stop(places: &Places, client: u64, stopped: bool) -> Result<(), String> {
    let signal = if stopped { Signal::STOP } else { Signal::CONT };
    let sent = send(places, &[format!("client:{client}")], &[signal]);
    let (_, troubles) = sent.map_err(|error| text::told(&error))?;
    troubles.into_iter().next().map_or(Ok(()), Err)
}

/// Sends signals to jobs. Prints a line for each failure.
fn signal(jobs: &[String], signals: &[Signal]) -> Result<(Vec<SignalledProcess>, ExitCode)> {
    let (processes, troubles) = send(&Places::of_environment(), jobs, signals)?;
    troubles.iter().for_each(|why| eprintln!("weft: {why}"));
    let code = match troubles.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    };
    Ok((processes, code))
}

/// Sends signals to jobs. Returns their processes, and a line for each failure.
fn send(places: &Places, jobs: &[String], signals: &[Signal]) -> Result<(Vec<SignalledProcess>, Vec<String>)> {
    let status = attached(places, jobs)?;
    let (mut wanted, mut troubles) = (Vec::new(), Vec::new());
    for word in jobs {
        match select(word, &status.clients) {
            Ok(found) => wanted.extend(found.into_iter().cloned()),
            Err(why) => troubles.push(why),
        }
    }
    let (far, near): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|client| client.elsewhere);
    troubles.extend(far.iter().map(|client| {
        format!(
            "client {} runs in another container, whose processes are not visible here: signal it there",
            client.client
        )
    }));
    let processes = open(places, near)?;
    if signals.contains(&Signal::TERM) {
        let clients = processes.iter().map(|process| process.client).collect();
        // Must precede their end. A broker of an older weft does not record it.
        let _ = admin::ask(places, &AdminQuestion::Cancelled { clients });
    }
    for process in &processes {
        for signal in signals {
            if let Err(why) = process.send(*signal) {
                troubles.push(why);
                break;
            }
        }
    }
    Ok((processes, troubles))
}

fn is_attached(places: &Places, client: &ClientStatus) -> bool {
    // A broker that does not answer counts as the end of the job, because it cannot be asked again.
    let found = ask(places).map(|status| status.clients);
    found.is_ok_and(|clients| clients.iter().any(|other| is_same(other, client)))
}

fn is_same(one: &ClientStatus, other: &ClientStatus) -> bool {
    (one.client, one.pid, one.uid) == (other.client, other.pid, other.uid)
}

/// A process of a job.
#[derive(Debug)]
struct SignalledProcess {
    client: u64,
    pid: u32,
    uid: u32,
    fd: OwnedFd,
}

impl SignalledProcess {
    fn send(&self, signal: Signal) -> Result<(), String> {
        match pidfd_send_signal(&self.fd, signal) {
            // The process has already ended.
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(Errno::PERM) => Err(format!(
                "client {} (process {}) belongs to user {}: only that user and root may signal it",
                self.client,
                self.pid,
                users::name_of(self.uid)
            )),
            Err(error) => Err(format!("client {} (process {}): {error}", self.client, self.pid)),
        }
    }
}

/// Descriptors of the clients' processes, each once. Clients that have ended meanwhile have none.
fn open(places: &Places, clients: Vec<ClientStatus>) -> Result<Vec<SignalledProcess>> {
    let mut opened: Vec<(ClientStatus, OwnedFd)> = Vec::new();
    for client in clients {
        let known = opened.iter().any(|(other, _)| other.pid == client.pid);
        let pid = i32::try_from(client.pid).ok().and_then(Pid::from_raw);
        let (Some(pid), false) = (pid, known) else { continue };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => opened.push((client, fd)),
            Err(Errno::SRCH) => {}
            Err(error) => bail!("process {}: {error}", client.pid),
        }
    }
    if opened.is_empty() {
        return Ok(Vec::new());
    }
    // A number may have been reused between the broker's answer and the opening of the descriptor.
    let asked_at = since_boot_s();
    let status = ask(places)?;
    opened.retain(|(client, _)| {
        let mut now = status.clients.iter();
        now.find(|other| is_same(other, client))
            .is_some_and(|now| began_before(client.pid, asked_at - now.attached_s))
    });
    Ok(opened
        .into_iter()
        .map(|(client, fd)| SignalledProcess {
            client: client.client,
            pid: client.pid,
            uid: client.uid,
            fd,
        })
        .collect())
}

/// Whether the process with this number started before this time since boot, s. True if its start
/// cannot be read: the kernel then hides other users' processes.
fn began_before(pid: u32, attached_s: f64) -> bool {
    let Ok(line) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return true;
    };
    // Field 22; the first two fields end with the last parenthesis (proc_pid_stat(5)).
    let rest = line.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = rest
        .split_whitespace()
        .nth(19)
        .and_then(|field| field.parse::<f64>().ok());
    ticks.is_none_or(|ticks| ticks / clock_ticks_per_second() as f64 <= attached_s + BEGIN_SLACK_S)
}

fn since_boot_s() -> f64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Waits for processes to end; returns those that still run at the deadline.
fn wait_for(processes: &[SignalledProcess], deadline: Option<Instant>) -> Vec<&SignalledProcess> {
    let mut left: Vec<&SignalledProcess> = processes.iter().collect();
    while !left.is_empty() {
        let patience = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = patience.map(|patience| Timespec {
            tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(patience.subsec_nanos()),
        });
        let mut set: Vec<PollFd<'_>> = left.iter().map(|one| PollFd::new(&one.fd, PollFlags::IN)).collect();
        match poll(&mut set, timeout.as_ref()) {
            Ok(0) if patience == Some(Duration::ZERO) => break,
            Ok(_) | Err(Errno::INTR) => {}
            // Without poll the end cannot be observed.
            Err(_) => break,
        }
        let ended: Vec<bool> = set.iter().map(|entry| !entry.revents().is_empty()).collect();
        let mut ended = ended.into_iter();
        left.retain(|_| !ended.next().unwrap_or(false));
    }
    left
}

/// Whether jobs of an earlier broker may still attach to this one, which began a moment ago.
pub fn may_attach(places: &Places) -> bool {
    ask(places).is_ok_and(|status| status.broker.uptime_s < ATTACHED_AFTER_S)
}

/// The status, once these jobs have attached to a broker that began a moment ago.
pub fn attached(places: &Places, jobs: &[String]) -> Result<Box<Status>> {
    loop {
        let status = ask(places)?;
        let is_there = |word: &String| select(word, &status.clients).is_ok() || has_ended(word, &status);
        if status.broker.uptime_s >= ATTACHED_AFTER_S || jobs.iter().all(is_there) {
            return Ok(status);
        }
        std::thread::sleep(ASKED_SOON);
    }
}

/// The clients of the job that a word names by name, client number or process id, with its whole
/// gang. A name selects all jobs that have it.
pub fn select<'a>(word: &str, clients: &'a [ClientStatus]) -> Result<Vec<&'a ClientStatus>, String> {
    let word = word.trim();
    let (as_client, as_pid) = numbers(word);
    if (as_client, as_pid) == (None, None) {
        // Only a word that is not a number is a name, so a job named like a number is never hit.
        let called: Vec<&ClientStatus> = clients
            .iter()
            .filter(|client| !word.is_empty() && client.name == word)
            .collect();
        if called.is_empty() {
            return Err(format!("no job {word} is attached{}", listed(clients)));
        }
        let of_one = |client: &&ClientStatus| called.iter().any(|first| is_of_one_job(first, client));
        return Ok(clients.iter().filter(of_one).collect());
    }
    let named = |client: &&ClientStatus| as_client == Some(client.client) || as_pid == Some(u64::from(client.pid));
    let found: Vec<&ClientStatus> = clients.iter().filter(named).collect();
    let Some(first) = found.first() else {
        return Err(format!("no job {word} is attached{}", listed(clients)));
    };
    if found.iter().any(|other| !is_of_one_job(first, other)) {
        return Err(format!(
            "{word} is a client number and another client's process id: write client:{word} or pid:{word}"
        ));
    }
    Ok(clients.iter().filter(|client| is_of_one_job(first, client)).collect())
}

/// The client number and the process id that a word may mean.
fn numbers(word: &str) -> (Option<u64>, Option<u64>) {
    match (word.strip_prefix("client:"), word.strip_prefix("pid:")) {
        (Some(client), _) => (client.parse().ok(), None),
        (_, Some(pid)) => (None, pid.parse().ok()),
        _ => (word.parse().ok(), word.parse().ok()),
    }
}

fn is_of_one_job(one: &ClientStatus, other: &ClientStatus) -> bool {
    let process = one.pid == other.pid && !one.elsewhere && !other.elsewhere;
    let gang = one.uid == other.uid && one.gang == other.gang && !one.gang.is_empty();
    one.client == other.client || process || gang
}

/// Whether a word names a job that has ended.
fn has_ended(word: &str, status: &Status) -> bool {
    let (as_client, as_pid) = numbers(word.trim());
    let mut ended = status.ended.iter().map(|ended| &ended.last);
    ended.any(|last| last.name == word.trim() || as_client == Some(last.client) || as_pid == Some(u64::from(last.pid)))
}

/// List of the attached jobs for a message.
fn listed(clients: &[ClientStatus]) -> String {
    if clients.is_empty() {
        return ", nor is any other".to_string();
    }
    let shown = clients.iter().take(MOST_LISTED).map(|client| {
        let command = text::command(&client.command, text::COMMAND);
        // A shared broker hides the names of other users' jobs.
        let name = match client.name.as_str() {
            "" => format!("a job of user {}", users::name_of(client.uid)),
            name => name.to_string(),
        };
        format!("client {} = {name}, process {} {command}", client.client, client.pid)
            .trim_end()
            .to_string()
    });
    let mut all: Vec<String> = shown.collect();
    if clients.len() > MOST_LISTED {
        all.push(format!("{} more", clients.len() - MOST_LISTED));
    }
    format!("; attached are: {}", all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u64, pid: u32, gang: &str) -> ClientStatus {
        ClientStatus {
            client: number,
            pid,
            gang: gang.to_string(),
            command: "python train.py".to_string(),
            name: "train.py".to_string(),
            ..ClientStatus::default()
        }
    }

    #[test]
    fn a_name_means_all_jobs_that_have_it_and_no_number_is_one() {
        let named = |number, name: &str, gang: &str| ClientStatus {
            name: name.to_string(),
            ..client(number, 100 + number as u32, gang)
        };
        let clients = [
            named(1, "a", ""),
            named(2, "b", "g"),
            named(3, "", "g"),
            named(4, "a", ""),
            named(5, "2", ""),
        ];
        let selected = |word: &str| {
            let found = select(word, &clients)?;
            Ok::<Vec<u64>, String>(found.iter().map(|client| client.client).collect())
        };
        assert_eq!(selected("a"), Ok(vec![1, 4]));
        assert_eq!(selected("b"), Ok(vec![2, 3]), "its gang belongs to it");
        assert_eq!(
            selected("2"),
            Ok(vec![2, 3]),
            "a job that calls itself a number is not meant"
        );
        assert!(selected("c").is_err_and(|why| why.contains("no job c is attached; attached are: client 1 = a")));
        assert!(selected("").is_err());
    }

    #[test]
    fn a_job_is_its_gang_and_a_number_must_name_one() {
        let clients = [
            client(1, 100, "g"),
            client(2, 101, "g"),
            client(3, 102, ""),
            client(4, 103, ""),
            client(5, 103, ""),
            client(102, 104, ""),
        ];
        let selected = |word: &str| {
            let found = select(word, &clients)?;
            Ok::<Vec<u64>, String>(found.iter().map(|client| client.client).collect())
        };
        assert_eq!(selected("1"), Ok(vec![1, 2]));
        assert_eq!(selected("101"), Ok(vec![1, 2]));
        assert_eq!(selected("3"), Ok(vec![3]));
        assert_eq!(selected("103"), Ok(vec![4, 5]), "one process on two devices");
        assert_eq!(selected("client:102"), Ok(vec![102]));
        assert_eq!(selected("pid:102"), Ok(vec![3]));
        let both = selected("102").expect_err("two jobs");
        assert!(both.contains("write client:102 or pid:102"), "{both}");
        let none = selected("99").expect_err("no such job");
        assert!(
            none.starts_with("no job 99 is attached; attached are: client 1 = train.py, process 100 python train.py, "),
            "{none}"
        );
        assert!(select("x", &[]).is_err_and(|why| why == "no job x is attached, nor is any other"));
    }

    #[test]
    fn users_do_not_meet_in_a_gang() {
        let other = ClientStatus {
            uid: 1001,
            ..client(2, 101, "g")
        };
        assert_eq!(
            select("1", &[client(1, 100, "g"), other]).map(|found| found.len()),
            Ok(1)
        );
    }

    #[test]
    fn a_process_began_before_its_client_attached() {
        let own = std::process::id();
        assert!(began_before(own, since_boot_s()));
        assert!(!began_before(own, 0.0), "it began after the boot");
    }
}
