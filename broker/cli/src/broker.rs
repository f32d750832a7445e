// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft broker`: the broker itself, in the foreground or detached.
#![deny(unsafe_code)]

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::{Access, access};
use rustix::process::Pid;

use super::config::keys::{self, ConfigSection};
use super::config::{self, ConfigSources, LoadedConfig};
use super::{activation, mps, start, stop, text, users};
use weft_api::admin;
use weft_api::metrics_address::MetricsAddress;
use weft_api::mps::MpsMode;
use weft_api::paths::Places;
use weft_daemon::log_file;
use weft_daemon::options::{Constants, Door, Options, OptionsSource, Rights};
use weft_protocol::latency_budget;
use weft_scheduler::{Config, PolicyName};

/// Run this user's broker (weft run starts one if needed), or a shared one for all users
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = FILES)]
pub struct BrokerArgs {
    /// How the GPU is shared; default: weft
    #[arg(long, value_name = "weft|fikit")]
    pub policy: Option<PolicyName>,
    /// Detach from the terminal; the log goes to a file next to the socket
    #[arg(long)]
    pub background: bool,
    /// Replace the running broker: it is asked to end, and this one starts when it has ended (up to
    /// a minute later if the disk is slow). Its jobs keep running and attach to this broker, which
    /// carries on their figures
    #[arg(long)]
    pub replace: bool,
    /// Exit after this many seconds without an attached client
    #[arg(long, value_name = "SECONDS", value_parser = text::whole::<u64>)]
    pub idle_exit: Option<u64>,
    /// Socket to which clients connect; default: WEFT_SOCKET, else the user's own socket (with
    /// --shared /run/weft/broker.sock)
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Serve all users of the machine: jobs try this broker before their user's own. Every user may
    /// read its state; only a job's user, this broker's user and root may change the job
    #[arg(long)]
    pub shared: bool,
    /// Serve only this group
    #[arg(long, value_name = "GROUP", requires = "shared", value_parser = users::group)]
    pub group: Option<u32>,
    /// Weight of a user in the memory queue, 1 to 100; default: 1 (repeatable)
    #[arg(long, value_name = "USER=WEIGHT", requires = "shared", value_parser = users::weight)]
    pub weight_of: Vec<(u32, u32)>,
    /// Most important priority that a user's jobs may have (0 to 9, or high, normal, low, idle);
    /// default: 5; 0 for root and this broker's user (repeatable)
    #[arg(long, value_name = "USER=PRIORITY", requires = "shared", value_parser = users::priority)]
    pub priority_of: Vec<(u32, u8)>,
    /// Most jobs that a user may run at once; further jobs wait. The user * is all users without an
    /// entry, except root and this broker's user (repeatable)
    #[arg(long, value_name = "USER=JOBS", requires = "shared", value_parser = users::jobs)]
    pub jobs_of: Vec<(Option<u32>, u32)>,
    /// Most device memory that a user's jobs may have at once, on all devices together (24GiB); *
    /// as for --jobs-of (repeatable)
    #[arg(long, value_name = "USER=SIZE", requires = "shared", value_parser = users::memory)]
    pub memory_of: Vec<(Option<u32>, u64)>,
    /// Most predicted work of other jobs that may delay the foreground job
    #[arg(long, value_name = "MICROSECONDS", value_parser = text::whole::<u64>)]
    pub delay_bound: Option<u64>,
    /// Largest mean slowdown of a foreground job that sets none itself, as a part of its time (2%,
    /// 0.02, 0); default: 1%
    #[arg(long, value_name = "PART", value_parser = latency_budget::parse_slowdown, allow_hyphen_values = true)]
    pub slowdown: Option<u32>,
    /// Longest wait of a launch at the gate; after it the launch passes and is counted
    #[arg(long, value_name = "MILLISECONDS", value_parser = text::whole::<u64>)]
    pub longest_wait: Option<u64>,
    /// Longest time that a job is swapped out while other jobs of its priority have their turns,
    /// because their memory does not fit the device together; default: 500
    #[arg(long, value_name = "MILLISECONDS", value_parser = text::whole::<u64>)]
    pub max_swapped_out: Option<u64>,
    /// Raise --max-swapped-out up to this if turns are too short for the memory that they move;
    /// default: they stay too short. `weft status` shows the limit that they need
    #[arg(long, hide_short_help = true, value_name = "MILLISECONDS", value_parser = text::whole::<u64>)]
    pub swapped_out_limit: Option<u64>,
    /// Cost of a switch of the device from one process to another; default: 100, and 0 on a device
    /// whose jobs share it under MPS
    #[arg(long, hide_short_help = true, value_name = "MICROSECONDS", value_parser = text::whole::<u64>)]
    pub switch_cost: Option<u64>,
    /// Start an MPS daemon of this user, so that jobs share the device instead of taking turns:
    /// auto: if nothing stands in the way; on: each job also prints why not; default: off. A fatal
    /// fault of one job under MPS ends all of them
    #[arg(long, value_name = "auto|on|off", conflicts_with = "shared")]
    pub mps: Option<MpsMode>,
    /// Whether plain memory may move by the driver's checkpoint (driver 570 and newer): by weft
    /// pause --evict, to make room, and with --evict-idle; default: off. No real GPU has run it:
    /// docs/limits.md has the hazards
    #[arg(long, value_name = "off|allow", value_parser = text::checkpoint)]
    pub checkpoint: Option<bool>,
    /// File with the times and rates that other options do not give (weft config constants prints
    /// the defaults)
    #[arg(long, hide_short_help = true, value_name = "FILE", value_parser = constants)]
    pub constants: Option<(PathBuf, Box<Constants>)>,
    /// Write decisions and records to a file, one JSON value per line
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Also serve Prometheus metrics here: 127.0.0.1:9431, [::1]:9431 or unix:/path (repeatable).
    /// A unix socket next to the broker's, with .metrics appended to its path, always serves them,
    /// unless one ADDRESS is off
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Vec<MetricsAddress>,
    /// Log level: off, error, warn, info, debug or trace; default: info [env: WEFT_LOG]
    #[arg(long, value_name = "LEVEL", value_parser = log_level)]
    pub log: Option<String>,
    /// Started for a job: do not print the broker's socket, and ignore errors in weft.toml
    #[arg(long, short, hide = true)]
    pub quiet: bool,
    /// The second half of --background
    #[arg(long, hide = true, conflicts_with = "background")]
    pub detached: bool,
}

const FILES: &str = "\
Settings not given on the command line come from weft.toml (weft config show), else they have their
defaults. A running broker reads the file again on SIGHUP.";

/// How long `--background` waits for the broker's first answer.
const START_TIMEOUT: Duration = Duration::from_secs(15);

/// Interval at which a broker is asked whether it answers.
const STEP: Duration = Duration::from_millis(2);

/// Runs the broker, or starts it and returns.
pub fn main(args: BrokerArgs) -> Result<ExitCode> {
    let places = match &args.socket {
        Some(socket) => Places::at(std::path::absolute(socket).context("the socket's path")?),
        None if args.shared => Places::shared(),
        None => Places::own(),
    };
    match args.shared {
        true => places.prepare_shared(),
        false => places.prepare(),
    }?;
    let sources = ConfigSources::of_environment(args.shared);
    let loaded = sources.load();
    if !args.quiet && !loaded.errors.is_empty() {
        loaded.errors.iter().for_each(|wrong| eprintln!("weft: {wrong}"));
        return Ok(ExitCode::from(2));
    }
    if args.replace {
        check_files(&merged(&args, &loaded)).context("the running broker was not replaced")?;
    }
    if args.background {
        start::check_place(&places)?;
        return background(&args, &places, &sources);
    }
    if args.detached {
        // Keeps signals of the starting terminal away.
        let _ = rustix::process::setsid();
        let _ = std::env::set_current_dir("/");
    }
    let given = activation::socket()?;
    if given.is_none() {
        start::check_place(&places)?;
    }
    keep_channels_at(&places.directory());
    let merged = merged(&args, &loaded);
    let own = args.detached.then(|| places.log());
    let _log = log_file::begin(merged.log.as_deref(), args.log.is_some(), own);
    for wrong in &loaded.errors {
        log_file::warn(&format!("{wrong}; ignored"));
    }
    let turn = match args.replace {
        true => Some(end_running(&places)?.0),
        false => None,
    };
    if let Some(turn) = turn {
        // Keeps jobs from starting another broker until this one answers.
        let places = places.clone();
        let thread = std::thread::Builder::new().name("weft-turn".into());
        let hold = move || {
            let deadline = Instant::now() + START_TIMEOUT;
            while !admin::pings(&places) && Instant::now() < deadline {
                std::thread::sleep(STEP);
            }
            drop(turn);
        };
        thread.spawn(hold).context("cannot start a thread")?;
    }
    let options = Options {
        source: Some(OptionsSource::new(move || again(&args, &sources))),
        ..options(&merged)
    };
    weft_daemon::run(&places, &options, given)?;
    Ok(ExitCode::SUCCESS)
}

/// Ends the running broker, if any. Returns the lock on starting a broker, and the ended process.
fn end_running(places: &Places) -> Result<(File, Option<Pid>)> {
    let turn = start::turn(places)?;
    if !admin::pings(places) {
        return Ok((turn, None));
    }
    if let Some(pid) = stop::process(places)
        && let Some(unit) = unit_of(pid)
    {
        bail!("the broker (process {pid}) runs as systemd's {unit}: replace it by systemctl restart {unit}");
    }
    Ok((turn, stop::give_way(places)?))
}

/// Fails if a broker could not write the files that its options name. A broker that cannot start
/// must not end the running one.
fn check_files(args: &BrokerArgs) -> Result<()> {
    if let Some(path) = &args.trace {
        let opened = File::options().create(true).append(true).open(path);
        opened.with_context(|| format!("cannot write {}", path.display()))?;
    }
    for address in &args.metrics {
        let MetricsAddress::Unix(path) = absolute(address) else {
            continue;
        };
        let folder = path.parent().unwrap_or(&path);
        access(folder, Access::WRITE_OK | Access::EXEC_OK)
            .with_context(|| format!("metrics at {address}: cannot make a socket in {}", folder.display()))?;
        if fs::symlink_metadata(&path).is_ok_and(|facts| !facts.file_type().is_socket()) {
            bail!("metrics at {address}: path exists and is not a socket: remove it or choose another");
        }
    }
    Ok(())
}

/// weft's systemd unit that a process belongs to; `None` if this process belongs to it too.
fn unit_of(pid: Pid) -> Option<String> {
    let group = |of: &str| fs::read_to_string(format!("/proc/{of}/cgroup")).ok();
    let its = group(&pid.to_string()).filter(|its| Some(its) != group("self").as_ref())?;
    let units = its.lines().filter_map(|line| line.rsplit('/').next());
    let mut weft = units.filter(|unit| unit.starts_with("weft-broker") && unit.ends_with(".service"));
    weft.next().map(str::to_string)
}

/// Puts the control channels of a private broker into the socket's folder instead of `/tmp`. A
/// container with that folder mounted at the same path then has the channels too.
#[allow(unsafe_code)]
fn keep_channels_at(folder: &Path) {
    // A socket's path has 107 bytes, and ipc-channel appends a folder and a name.
    const LONGEST_FOLDER_BYTES: usize = 80;
    if folder.as_os_str().len() > LONGEST_FOLDER_BYTES {
        return;
    }
    // ipc-channel takes its folder only from this variable.
    // SAFETY: this process has no other thread yet, so no thread reads the environment now.
    unsafe { std::env::set_var("TMPDIR", folder) };
}

/// The options from the files as they are now, or the first error: then no file counts.
fn again(args: &BrokerArgs, sources: &ConfigSources) -> Result<Options, String> {
    let loaded = sources.load();
    match loaded.errors.first() {
        Some(wrong) => Err(wrong.to_string()),
        None => Ok(options(&merged(args, &loaded))),
    }
}

/// The given options, with the files' values for those that were not given.
fn merged(given: &BrokerArgs, files: &LoadedConfig) -> BrokerArgs {
    fn fill<T, E>(option: &mut Option<T>, said: Option<&str>, parse: impl Fn(&str) -> Result<T, E>) {
        if option.is_none() {
            *option = said.and_then(|text| parse(text).ok());
        }
    }
    let mut args = given.clone();
    let said = |key| files.text(ConfigSection::Broker, key);
    let number = text::whole::<u64>;
    fill(&mut args.policy, said("policy"), str::parse);
    fill(&mut args.slowdown, said("slowdown"), latency_budget::parse_slowdown);
    fill(&mut args.delay_bound, said("delay-bound"), number);
    fill(&mut args.longest_wait, said("longest-wait"), number);
    fill(&mut args.max_swapped_out, said("max-swapped-out"), number);
    fill(&mut args.swapped_out_limit, said("swapped-out-limit"), number);
    fill(&mut args.switch_cost, said("switch-cost"), number);
    fill(&mut args.mps, said("mps"), str::parse);
    fill(&mut args.checkpoint, said("checkpoint"), text::checkpoint);
    fill(&mut args.trace, said("trace"), str::parse);
    fill(&mut args.log, said("log"), log_level);
    if args.metrics.is_empty() {
        args.metrics = said("metrics").and_then(|text| text.parse().ok()).into_iter().collect();
    }
    // A broker started for a job (`--quiet`) gets its idle time from a program, so the file wins.
    if let Some(said) = said("idle-exit")
        && (args.idle_exit.is_none() || args.quiet)
    {
        args.idle_exit = keys::idle_exit(said).unwrap_or(args.idle_exit);
    }
    if args.shared {
        fill(&mut args.group, said("group"), users::group);
        let weights = files.weights.iter().map(|(uid, (weight, _))| (*uid, *weight));
        // The last value for a user counts: the option's.
        args.weight_of = weights.chain(given.weight_of.iter().copied()).collect();
        let priorities = files.priorities.iter().map(|(uid, (priority, _))| (*uid, *priority));
        args.priority_of = priorities.chain(given.priority_of.iter().copied()).collect();
        let jobs = files.jobs.iter().map(|(uid, (jobs, _))| (*uid, *jobs));
        args.jobs_of = jobs.chain(given.jobs_of.iter().copied()).collect();
        let memory = files.memory.iter().map(|(uid, (bytes, _))| (*uid, *bytes));
        args.memory_of = memory.chain(given.memory_of.iter().copied()).collect();
    }
    args
}

fn log_level(text: &str) -> Result<String, String> {
    match log_file::level(text) {
        Some(_) => Ok(text.trim().to_string()),
        None => Err("off, error, warn, info, debug or trace".to_string()),
    }
}

/// Reads a file of constants. Returns its absolute path too: the broker works in /.
fn constants(file: &str) -> Result<(PathBuf, Box<Constants>), String> {
    let path = std::path::absolute(file).map_err(|error| error.to_string())?;
    let text = fs::read_to_string(&path).map_err(|error| error.to_string())?;
    let constants = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    Ok((path, constants))
}

fn options(args: &BrokerArgs) -> Options {
    let constants = match &args.constants {
        Some((_, constants)) => Constants::clone(constants),
        None => Constants::default(),
    };
    let mut core = Config {
        policy: args.policy.unwrap_or_default(),
        ..constants.core
    };
    if let Some(us) = args.switch_cost {
        core.switch_cost = us.saturating_mul(1_000);
    }
    if let Some(us) = args.delay_bound {
        core.delay_bound = us.saturating_mul(1_000);
    }
    if let Some(slowdown) = args.slowdown {
        core.slowdown = latency_budget::part(slowdown);
    }
    if let Some(ms) = args.max_swapped_out {
        core.max_swapped_out = ms.saturating_mul(1_000_000);
    }
    if let Some(ms) = args.swapped_out_limit {
        core.swapped_out_limit = ms.saturating_mul(1_000_000);
    }
    Options {
        door: match args.shared {
            true => Door::Shared { group: args.group },
            false => Door::Private,
        },
        rights: Rights {
            weights: args.weight_of.iter().copied().collect(),
            priorities: args.priority_of.iter().copied().collect(),
            jobs: args.jobs_of.iter().copied().collect(),
            memory: args.memory_of.iter().copied().collect(),
        },
        core,
        switch_cost_said: args.switch_cost.is_some(),
        idle_exit: args.idle_exit.map(Duration::from_secs),
        longest_wait: args
            .longest_wait
            .map_or(Duration::from_nanos(constants.longest_wait), Duration::from_millis),
        longest_wait_said: args.longest_wait.is_some(),
        speed: constants.speed,
        link_mb_per_s: constants.link_mb_per_s,
        trace: args.trace.clone(),
        metrics: args.metrics.iter().map(absolute).collect(),
        log: args.log.clone(),
        source: None,
        checkpoint: args.checkpoint.unwrap_or(false),
        mps: args.mps.unwrap_or_default(),
        mps_devices: Some(mps::devices),
    }
}

/// The address with an absolute path, valid in every working directory.
fn absolute(address: &MetricsAddress) -> MetricsAddress {
    match address {
        MetricsAddress::Unix(path) => MetricsAddress::Unix(std::path::absolute(path).unwrap_or_else(|_| path.clone())),
        other => other.clone(),
    }
}

fn background(args: &BrokerArgs, places: &Places, sources: &ConfigSources) -> Result<ExitCode> {
    if !args.replace && admin::pings(places) {
        return runs_already(args, places);
    }
    let log = File::options()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(places.log())
        .with_context(|| format!("cannot write {}", places.log().display()))?;
    // One of several starters starts a broker; the others wait for its answer.
    let (_turn, replaced) = match args.replace {
        true => end_running(places)?,
        false => (start::turn(places)?, None),
    };
    if admin::pings(places) {
        return runs_already(args, places);
    }
    let _ = log_file::turn_over(&log, &places.log());
    let program = fs::read_link("/proc/self/exe").context("cannot find this program")?;
    let mut command = Command::new(program);
    command.args(["broker", "--detached", "--socket"]).arg(places.socket());
    // Only the given options: the broker reads the files itself, and again on SIGHUP.
    for (flag, value) in [
        ("--policy", args.policy.map(|policy| policy.to_string())),
        ("--log", args.log.clone()),
        ("--mps", args.mps.map(|mode| mode.to_string())),
        (
            "--checkpoint",
            args.checkpoint
                .map(|allowed| if allowed { "allow" } else { "off" }.to_string()),
        ),
    ] {
        if let Some(value) = value {
            command.arg(flag).arg(value);
        }
    }
    if args.quiet {
        command.arg("--quiet");
    }
    if let Some(named) = sources.named() {
        // The broker works in /.
        command.env(config::VARIABLE, named);
    }
    for (flag, value) in [
        ("--idle-exit", args.idle_exit),
        ("--delay-bound", args.delay_bound),
        ("--longest-wait", args.longest_wait),
        ("--max-swapped-out", args.max_swapped_out),
        ("--swapped-out-limit", args.swapped_out_limit),
        ("--switch-cost", args.switch_cost),
    ] {
        if let Some(value) = value {
            command.arg(flag).arg(value.to_string());
        }
    }
    if let Some(slowdown) = args.slowdown {
        command.arg("--slowdown").arg(latency_budget::slowdown_text(slowdown));
    }
    if args.shared {
        command.arg("--shared");
    }
    if let Some(group) = args.group {
        command.arg("--group").arg(group.to_string());
    }
    for (uid, weight) in &args.weight_of {
        command.arg("--weight-of").arg(format!("{uid}={weight}"));
    }
    for (uid, priority) in &args.priority_of {
        command.arg("--priority-of").arg(format!("{uid}={priority}"));
    }
    let who = |uid: &Option<u32>| uid.map_or_else(|| users::OTHERS.to_string(), |uid| uid.to_string());
    for (uid, jobs) in &args.jobs_of {
        command.arg("--jobs-of").arg(format!("{}={jobs}", who(uid)));
    }
    for (uid, bytes) in &args.memory_of {
        command.arg("--memory-of").arg(format!("{}={bytes}", who(uid)));
    }
    if let Some((file, _)) = &args.constants {
        command.arg("--constants").arg(file);
    }
    if let Some(trace) = &args.trace {
        // The broker works in /.
        command.arg("--trace").arg(std::path::absolute(trace)?);
    }
    for address in &args.metrics {
        command.arg("--metrics").arg(absolute(address).to_string());
    }
    seal();
    let mut child = command
        .env_remove("LD_PRELOAD")
        // The service manager of a job must not take this broker's notifications for the job's.
        .env_remove("NOTIFY_SOCKET")
        .env_remove("LISTEN_PID")
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("cannot share the log")?)
        .stderr(log)
        .spawn()
        .context("cannot start the broker")?;
    let deadline = Instant::now() + START_TIMEOUT;
    while !admin::pings(places) {
        if let Some(status) = child.try_wait().context("cannot wait for the broker")? {
            if admin::pings(places) {
                // Another broker came first.
                return runs_already(args, places);
            }
            bail!("the broker ended ({status}); its log is {}", places.log().display());
        }
        if Instant::now() > deadline {
            bail!(
                "the broker did not start in time; its log is {}",
                places.log().display()
            );
        }
        std::thread::sleep(STEP);
    }
    if !args.quiet {
        let replaced = replaced.map_or_else(String::new, |pid| format!(", which replaces {pid}"));
        eprintln!("weft: broker {} at {}{replaced}", child.id(), places.socket().display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Fails unless `--quiet`: the options that the user asked for are not in force.
fn runs_already(args: &BrokerArgs, places: &Places) -> Result<ExitCode> {
    if args.quiet {
        return Ok(ExitCode::SUCCESS);
    }
    bail!(
        "a broker already runs at {} and was not changed; replace it (--replace), or stop it (weft stop)",
        places.socket().display()
    )
}

/// Marks inherited descriptors close-on-exec: a pipe left open in the broker would block its
/// reader.
#[allow(unsafe_code)]
fn seal() {
    const ABOVE_STDERR: libc::c_uint = 3;
    // A system call: the function needs glibc 2.34.
    // SAFETY: closes nothing, so nothing that this process uses changes; an older kernel refuses.
    let _ = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            ABOVE_STDERR,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
}
