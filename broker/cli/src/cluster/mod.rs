// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft cluster`: a policy of the cluster core orders Slurm's queue.
//!
//! Each round reads jobs and nodes from Slurm, passes them to the core, and turns its advice into
//! Slurm commands: nice values that give jobs the policy's order, and, if the administrator allows
//! it, requeues of jobs that make room. Slurm still decides the start and nodes of a job.
//!
//! Invariants: no job is held, so the queue keeps working after a crash. The former nice value of
//! a job is kept in its administrator comment in Slurm. Each command has a time limit, each round
//! a limit on the number of commands. A failed command is counted, and the next round reads the
//! actual state.

mod books;
mod commands;
mod nice;
mod service;
mod slurm;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use clap::builder::PossibleValuesParser;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use books::QueueBooks;
use commands::{CommandTrouble, Done, Hands, RealHands};
use nice::Ranked;
use service::Service;
use slurm::{QueuedJob, SlurmNode, SlurmState};
use weft_cluster::policies;
use weft_protocol::duration::parse as time;

use crate::text;

/// Longest time for taking back nice values: a service manager waits for 90 s before it kills.
const UNDO_LONGEST: Duration = Duration::from_secs(60);
/// Interval at which signals are checked between two rounds.
const LOOKS_EVERY: Duration = Duration::from_millis(100);
/// Number of rounds in which a nice value is set before weft gives up on it.
const ASKED_AT_MOST: u32 = 2;

/// Order Slurm's queue by a policy
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ClusterPolicyArgs {
    /// Order in which jobs get GPUs (docs/cluster-policies.md has a table of the policies)
    #[arg(long, value_name = "POLICY", value_parser = PossibleValuesParser::new(policies::NAMES),
          required_unless_present = "undo")]
    pub policy: Option<String>,
    /// Only jobs of these partitions (a,b); default: all partitions with GPUs or shards
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub partition: Vec<String>,
    /// Print the commands, carry out none
    #[arg(long)]
    pub dry_run: bool,
    /// One round; the nice values that it set stay
    #[arg(long)]
    pub once: bool,
    /// Take back the nice values of an earlier run, and exit
    #[arg(long, conflicts_with_all = ["policy", "once"])]
    pub undo: bool,
    /// Time between two rounds (10s, 500ms, 2m)
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10s")]
    pub interval: Duration,
    /// How a running job makes room if the policy asks for it; requeue: its run is lost
    #[arg(long, value_name = "HOW", value_parser = ["no", "requeue"], default_value = "no")]
    pub pause: String,
    /// Most commands in a round that change something
    #[arg(long, hide_short_help = true, value_name = "COUNT", default_value_t = 200)]
    pub commands: usize,
    /// Longest time that a Slurm command may take
    #[arg(long, hide_short_help = true, value_name = "TIME", value_parser = time, default_value = "10s")]
    pub command_time: Duration,
    /// Exit if slurmctld has not answered for this time
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10m")]
    pub wait: Duration,
    /// Command that asks a node's broker for measured GPU time: 'ssh {node} weft status --json'
    #[arg(long, value_name = "COMMAND")]
    pub brokers: Option<String>,
    /// Leave the nice values as they are at exit
    #[arg(long)]
    pub leave: bool,
    /// Also print each command
    #[arg(long, short)]
    pub verbose: bool,
}

const EXAMPLES: &str = "\
Examples:
  weft cluster --policy tiresias --dry-run --once
  weft cluster --policy astraea --partition gpu,gpu-long --brokers 'ssh {node} weft status --json'
  weft cluster --policy shortest-remaining --pause requeue --interval 30s
  weft cluster --undo

It needs the rights of a Slurm operator. docs/cluster-policies.md lists the values that it sets, and those that stay after a crash";

/// Reason why a round did not take place.
#[derive(Debug)]
enum NoRound {
    /// Permanent: no later round can succeed.
    Never(String),
    /// The command line names something that does not exist.
    Wrong(String),
    /// Temporary: Slurm does not answer now.
    Later(String),
}

/// Result of a round.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct RoundReport {
    waits: usize,
    runs: usize,
    /// Commands, each with its error, if any.
    commands: Vec<(Vec<String>, Option<String>)>,
    /// Number of changes beyond the round's limit, left for later.
    left: usize,
    /// Number of jobs whose priority was set by hand.
    fixed: usize,
}

/// A command that changes something.
struct QueueChange {
    words: Vec<String>,
    /// The job and its new nice value, for an update.
    nice: Option<(u64, i64)>,
}

/// One policy applied to one Slurm cluster.
struct Adaptor<'a> {
    hands: &'a dyn Hands,
    args: &'a ClusterPolicyArgs,
    books: QueueBooks,
    service: Service,
    /// Requested nice value and number of requests by job, until Slurm shows the value.
    asked: BTreeMap<u64, (i64, u32)>,
    /// Whether a changing command has ever succeeded.
    may: bool,
}

/// Runs the command.
pub fn main(args: &ClusterPolicyArgs) -> Result<ExitCode> {
    let hands = RealHands {
        longest: args.command_time,
    };
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, ended.clone()).context("cannot take signals")?;
    }
    if args.undo {
        return undo(&hands, args);
    }
    let name = args.policy.as_deref().unwrap_or_default();
    let policy = policies::named(name).with_context(|| format!("{name}: no such policy"))?;
    let settings = hands.run(&["scontrol", "show", "config"].map(str::to_string));
    if slurm::by_number(&settings.stdout) {
        eprintln!("weft: Slurm's sched/builtin with priority/basic starts jobs by number: a policy has no effect");
    }
    run(Adaptor::new(&hands, args, policy), &ended)
}

fn run(mut adaptor: Adaptor<'_>, ended: &AtomicBool) -> Result<ExitCode> {
    let args = adaptor.args;
    let mut heard = Instant::now();
    let mut silent = false;
    let mut last = None;
    while !ended.load(Ordering::Relaxed) {
        let begin = Instant::now();
        match adaptor.round(epoch_s()) {
            Ok(report) => {
                if silent {
                    text::print("Slurm answers again");
                }
                (heard, silent) = (Instant::now(), false);
                let lines = adaptor.told(&report);
                // Prints nothing for a round like the one before.
                if last.as_ref() != Some(&lines) || !report.commands.is_empty() {
                    lines.iter().for_each(|line| text::print(line));
                }
                last = Some(lines);
            }
            Err(NoRound::Wrong(why)) => {
                eprintln!("weft: {why}");
                return Ok(ExitCode::from(2));
            }
            Err(NoRound::Never(why)) => bail!(why),
            Err(NoRound::Later(why)) if args.once => bail!(why),
            Err(NoRound::Later(why)) => {
                if !silent {
                    eprintln!("weft: {why}; trying again");
                }
                silent = true;
                if heard.elapsed() >= args.wait {
                    bail!("{why}, for {} s", heard.elapsed().as_secs());
                }
            }
        }
        if args.once {
            return Ok(ExitCode::SUCCESS);
        }
        let every = adaptor.books.look_every().map_or(args.interval, Duration::from_nanos);
        let every = every.min(args.interval);
        while begin.elapsed() < every && !ended.load(Ordering::Relaxed) {
            thread::sleep(LOOKS_EVERY.min(every.saturating_sub(begin.elapsed())));
        }
    }
    match args.leave || args.dry_run {
        true => Ok(ExitCode::SUCCESS),
        false => undo(adaptor.hands, args),
    }
}

fn epoch_s() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

/// Output of a command that only reads.
fn ask(hands: &dyn Hands, program: &str) -> std::result::Result<String, NoRound> {
    let done = hands.run(&[program.to_string(), "--json".to_string()]);
    match done.trouble {
        None => Ok(done.stdout),
        Some(CommandTrouble::NotThere) => Err(NoRound::Never(format!(
            "{program} is not in PATH: run weft cluster where Slurm's commands are installed"
        ))),
        Some(CommandTrouble::TooLong) => Err(NoRound::Later(format!("slurmctld did not answer {program} in time"))),
        Some(CommandTrouble::Failed) => Err(NoRound::Later(format!("{program} --json: {}", done.said()))),
    }
}

fn later(error: anyhow::Error) -> NoRound {
    NoRound::Later(format!("slurmctld did not answer: {error:#}"))
}

fn queue(hands: &dyn Hands) -> std::result::Result<Vec<QueuedJob>, NoRound> {
    slurm::jobs(&ask(hands, "squeue")?).map_err(later)
}

impl<'a> Adaptor<'a> {
    fn new(hands: &'a dyn Hands, args: &'a ClusterPolicyArgs, policy: Box<dyn policies::ClusterPolicy>) -> Adaptor<'a> {
        Adaptor {
            hands,
            args,
            books: QueueBooks::new(policy, args.pause == "requeue"),
            service: Service::default(),
            asked: BTreeMap::new(),
            may: false,
        }
    }

    /// One look at Slurm and the resulting commands.
    fn round(&mut self, now: u64) -> std::result::Result<RoundReport, NoRound> {
        let nodes = slurm::nodes(&ask(self.hands, "sinfo")?).map_err(later)?;
        let partitions = self.partitions(&nodes)?;
        let queued = queue(self.hands)?;
        let ours = |names: &[String]| names.iter().all(|name| partitions.contains(name));
        let jobs: Vec<QueuedJob> = queued
            .into_iter()
            .filter(|job| ours(&job.partitions) && (job.gpus > 0 || job.shards > 0))
            .collect();
        let nodes: Vec<SlurmNode> = nodes
            .into_iter()
            .filter(|node| node.partitions.iter().any(|name| partitions.contains(name)))
            .collect();
        let of = |state: SlurmState| jobs.iter().filter(move |job| job.state == state);
        let busy: BTreeSet<String> = of(SlurmState::Runs)
            .flat_map(|job| job.placed.iter().map(|(node, _)| node.clone()))
            .collect();
        self.service.keep(&jobs.iter().map(|job| job.id).collect());
        if let Some(command) = &self.args.brokers {
            self.service.ask(self.hands, command, &busy);
        }
        let advice = self.books.look(now, &jobs, &nodes, &self.service.worked());
        let by_id: BTreeMap<u64, &QueuedJob> = jobs.iter().map(|job| (job.id, job)).collect();
        let mut report = RoundReport {
            waits: of(SlurmState::Waits).count(),
            runs: of(SlurmState::Runs).count(),
            ..RoundReport::default()
        };
        let (updates, fixed) = self.updates(&advice.order, &by_id);
        report.fixed = fixed;
        let change = |(job, nice): (&QueuedJob, i64)| QueueChange {
            words: update(job, nice),
            nice: Some((job.id, nice)),
        };
        let mut commands: Vec<QueueChange> = updates.into_iter().map(change).collect();
        // After the nice values, so that the room goes to the job that it is made for.
        for (paused, _) in &advice.pauses {
            let job = by_id.get(paused).filter(|job| job.requeue);
            commands.extend(job.map(|job| QueueChange {
                words: commands::requeue(&job.called),
                nice: None,
            }));
        }
        report.left = commands.len().saturating_sub(self.args.commands);
        commands.truncate(self.args.commands);
        for QueueChange { words, nice } in commands {
            let wrong = self.carry_out(&words)?;
            if let (Some((job, nice)), None) = (nice, &wrong) {
                let times = self.asked.get(&job).map_or(0, |(_, times)| *times);
                self.asked.insert(job, (nice, times + 1));
            }
            report.commands.push((words, wrong));
        }
        Ok(report)
    }

    fn partitions(&self, nodes: &[SlurmNode]) -> std::result::Result<BTreeSet<String>, NoRound> {
        let of = |nodes: &mut dyn Iterator<Item = &SlurmNode>| -> BTreeSet<String> {
            nodes.flat_map(|node| node.partitions.iter().cloned()).collect()
        };
        let with_gpus = of(&mut nodes.iter().filter(|node| node.gpus > 0 || node.shards > 0));
        if self.args.partition.is_empty() {
            return Ok(with_gpus);
        }
        let all = of(&mut nodes.iter());
        match self.args.partition.iter().find(|name| !all.contains(*name)) {
            Some(name) => Err(NoRound::Wrong(format!(
                "--partition {name}: Slurm has no such partition; there are {}",
                all.into_iter().collect::<Vec<_>>().join(", ")
            ))),
            None => Ok(self.args.partition.iter().cloned().collect()),
        }
    }

    /// Nice values to set, the first job's first, and the number of jobs that refuse theirs.
    fn updates<'j>(
        &mut self,
        order: &[u64],
        jobs: &BTreeMap<u64, &'j QueuedJob>,
    ) -> (Vec<(&'j QueuedJob, i64)>, usize) {
        self.asked.retain(|id, (nice, _)| {
            let shown = jobs.get(id).map(|job| job.nice);
            shown.is_some_and(|shown| shown != *nice)
        });
        let ordered = order.iter().filter_map(|id| jobs.get(id).copied());
        // Slurm ignores a nice value if the priority was set by hand: such jobs keep theirs.
        let fixed = |job: &&QueuedJob| {
            self.asked
                .get(&job.id)
                .is_some_and(|(_, times)| *times >= ASKED_AT_MOST)
        };
        let (fixed, ordered): (Vec<&QueuedJob>, Vec<&QueuedJob>) = ordered.partition(fixed);
        let ranked: Vec<Ranked> = ordered
            .iter()
            .map(|job| Ranked {
                priority: job.priority,
                nice: job.nice,
            })
            .collect();
        let changes = nice::changes(&ranked).into_iter();
        (changes.map(|(at, nice)| (ordered[at], nice)).collect(), fixed.len())
    }

    /// Carries out a command. Returns its error, if any, or that no command can succeed.
    fn carry_out(&mut self, words: &[String]) -> std::result::Result<Option<String>, NoRound> {
        if self.args.dry_run {
            return Ok(None);
        }
        let done = self.hands.run(words);
        if commands::forbidden(&done) && !self.may {
            return Err(NoRound::Never(format!(
                "Slurm does not let this user change other users' jobs ({}): run it as SlurmUser or as an operator",
                done.said()
            )));
        }
        self.may |= done.trouble.is_none();
        Ok(wrong(&done))
    }

    fn told(&self, report: &RoundReport) -> Vec<String> {
        let failed = report.commands.iter().filter(|(_, wrong)| wrong.is_some()).count();
        let count = report.commands.len();
        let mut parts = vec![
            format!("{} wait, {} run", report.waits, report.runs),
            match self.args.dry_run {
                true => format!("{count} commands, not carried out"),
                false => format!("{count} commands, {failed} failed"),
            },
        ];
        parts.extend((report.left > 0).then(|| format!("{} left for the next round", report.left)));
        parts.extend((report.fixed > 0).then(|| format!("{} with a priority set by hand", report.fixed)));
        let (answered, asked) = (self.service.answered, self.service.asked);
        parts.push(match self.args.brokers.is_some() && answered > 0 {
            true => format!("service measured by {answered} of {asked} brokers, else by the clock"),
            false => "service by the clock, times GPUs".to_string(),
        });
        let name = self.args.policy.as_deref().unwrap_or_default();
        let mut lines = vec![format!("{name}: {}", parts.join("; "))];
        for (words, wrong) in &report.commands {
            match wrong {
                Some(wrong) => lines.push(format!("  failed: {}: {wrong}", shown(words))),
                None if self.args.verbose || self.args.dry_run => lines.push(format!("  {}", shown(words))),
                None => {}
            }
        }
        lines
    }
}

fn update(job: &QueuedJob, nice: i64) -> Vec<String> {
    commands::update(&job.called, nice, job.marked().as_deref())
}

fn wrong(done: &Done) -> Option<String> {
    done.trouble.map(|trouble| match trouble {
        CommandTrouble::TooLong => "no answer in time".to_string(),
        CommandTrouble::NotThere => "not in PATH".to_string(),
        CommandTrouble::Failed => done.said(),
    })
}

/// The words quoted for a shell.
fn shown(words: &[String]) -> String {
    let quoted = words.iter().map(|word| match word.contains([' ', '[', '(']) {
        true => format!("'{word}'"),
        false => word.clone(),
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// Takes back every nice value that has weft's mark.
fn undo(hands: &dyn Hands, args: &ClusterPolicyArgs) -> Result<ExitCode> {
    let begin = Instant::now();
    let jobs = match queue(hands) {
        Ok(jobs) => jobs,
        Err(NoRound::Never(why) | NoRound::Wrong(why) | NoRound::Later(why)) => {
            bail!("nice values were not taken back: {why}; try weft cluster --undo")
        }
    };
    let (mut back, mut left, mut why) = (0, 0, None);
    for job in &jobs {
        let Some((nice, comment)) = job.before().filter(|_| job.state != SlurmState::Gone) else {
            continue;
        };
        let words = commands::update(&job.called, nice, Some(&comment));
        if args.dry_run {
            text::print(&format!("  {}", shown(&words)));
            continue;
        }
        let wrong = match begin.elapsed() < UNDO_LONGEST {
            true => wrong(&hands.run(&words)),
            false => Some(format!("no time left after {} s", UNDO_LONGEST.as_secs())),
        };
        match wrong {
            None => back += 1,
            // The job has ended meanwhile.
            Some(wrong) if commands::gone(&wrong) => {}
            Some(wrong) => {
                left += 1;
                why.get_or_insert(wrong);
            }
        }
    }
    if let Some(why) = why {
        bail!("{back} nice values were taken back, {left} were not: {why}");
    }
    if !args.dry_run {
        text::print(&format!("{back} nice values were taken back"));
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests;
