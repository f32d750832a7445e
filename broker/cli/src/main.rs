// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `weft` command, with one file per subcommand.
//!
//! On stderr an error is one line, with exit code 2 for a wrong command line, else 1. A started job
//! keeps its exit code, signals and stdout.

#![deny(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use weft_protocol::variables;

mod activation;
mod broker;
mod browser;
mod cluster;
mod columns;
mod completions;
mod config;
mod device_share;
mod doctor;
mod environment;
mod eviction;
mod gpus;
mod history;
mod inherited;
mod job;
mod libraries;
mod metrics;
mod mps;
mod outside;
mod predict;
mod probe;
mod probe_child;
mod profile;
mod queue;
mod report;
mod run;
mod serve;
mod set;
mod start;
mod status;
mod stop;
mod terminal;
mod text;
mod top;
mod trace;
mod users;
mod waiting;

const EXAMPLES: &str = "\
Profile a job once, run it together with another, inspect both, and check this machine:

  weft profile --name resnet -- python serve.py
  weft run --priority 0 --profile resnet -- python serve.py
  weft run --priority 5 -- python train.py
  weft status
  weft history
  weft report
  weft doctor";

/// Lets several CUDA jobs share one GPU without hurting the one that matters.
#[derive(Debug, Parser)]
#[command(name = "weft", version, after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::RunArgs),
    Profile(profile::ProfileArgs),
    Status(status::StatusArgs),
    Queue(queue::QueueArgs),
    Top(top::TopArgs),
    History(history::HistoryArgs),
    Metrics(metrics::MetricsArgs),
    Report(report::ReportArgs),
    Serve(serve::ServePageArgs),
    Predict(predict::PredictArgs),
    Trace(trace::TraceArgs),
    Set(set::SetArgs),
    Pause(job::PauseArgs),
    Resume(job::ResumeArgs),
    Cancel(job::CancelArgs),
    Wait(job::WaitArgs),
    Config(config::ConfigArgs),
    Doctor(doctor::DoctorArgs),
    Check(doctor::check::CheckArgs),
    Broker(broker::BrokerArgs),
    Stop(stop::StopArgs),
    Cluster(cluster::ClusterPolicyArgs),
    Completions(completions::CompletionsArgs),
    #[command(hide = true)]
    Man(completions::ManArgs),
    #[command(hide = true)]
    Probe(probe::ProbeArgs),
}

/// Parses and runs the command line, and reports errors.
fn main() -> ExitCode {
    let cli = match parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    // A job under weft reports them itself.
    if !matches!(cli.command, Command::Run(_) | Command::Profile(_)) {
        let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
        for (why, name) in names.filter_map(|name| Some((variables::mistyped(&name)?, name))) {
            eprintln!("weft: {name}: {why}");
        }
    }
    let outcome = match cli.command {
        Command::Run(args) => run::main(args),
        Command::Profile(args) => profile::main(args),
        Command::Status(args) => status::main(args),
        Command::Queue(args) => queue::main(args),
        Command::Top(args) => top::main(args),
        Command::History(args) => history::main(args),
        Command::Metrics(args) => metrics::main(args),
        Command::Report(args) => report::main(args),
        Command::Serve(args) => serve::main(args),
        Command::Predict(args) => predict::main(args),
        Command::Trace(args) => trace::main(args),
        Command::Set(args) => set::main(args),
        Command::Pause(args) => job::pause(&args),
        Command::Resume(args) => job::resume(&args),
        Command::Cancel(args) => job::cancel(&args),
        Command::Wait(args) => job::wait(&args),
        Command::Config(args) => config::main(args),
        Command::Doctor(args) => doctor::main(args),
        Command::Check(args) => doctor::check::main(&args),
        Command::Broker(args) => broker::main(args),
        Command::Stop(args) => stop::main(args),
        Command::Cluster(args) => cluster::main(&args),
        Command::Completions(args) => completions::completions(args, Cli::command()),
        Command::Man(args) => completions::man(args, Cli::command()),
        Command::Probe(args) => probe::main(args),
    };
    outcome.unwrap_or_else(|error| {
        // The chain in one line: `what failed: why: why`.
        eprintln!("weft: {}", text::told(&error));
        ExitCode::FAILURE
    })
}

/// Parses a command line. A negative number is a value, so that its option can name its fault.
fn parse(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Cli, clap::Error> {
    fn with_negatives(command: clap::Command) -> clap::Command {
        let is_value = |arg: &clap::Arg| arg.get_action().takes_values() && !arg.is_trailing_var_arg_set();
        command
            .mut_args(|arg| match is_value(&arg) {
                true => arg.allow_negative_numbers(true),
                false => arg,
            })
            .mut_subcommands(with_negatives)
    }
    Cli::from_arg_matches(&with_negatives(Cli::command()).try_get_matches_from(words)?)
}

/// Prints a wrong command line's error in one line, or the requested help or version.
fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            text::printed(error.use_stderr(), || error.print());
            ExitCode::from(if error.use_stderr() { 2 } else { 0 })
        }
        _ => {
            let words: Vec<_> = std::env::args_os().skip(1).collect();
            let words: Vec<_> = words.iter().filter_map(|word| word.to_str()).collect();
            let said = no_action(&words).unwrap_or_else(|| in_one_line(&error.to_string()));
            eprintln!("weft: {said} ({} --help)", command_of(&words));
            ExitCode::from(2)
        }
    }
}

/// Hint for an unknown word after `weft profile`, which clap would treat as the job.
fn no_action(words: &[&str]) -> Option<String> {
    let [profile, word, ..] = words else { return None };
    let command = Cli::command();
    let actions = command.find_subcommand(profile).filter(|_| *profile == "profile")?;
    if word.starts_with('-') || actions.find_subcommand(word).is_some() {
        return None;
    }
    let names: Vec<&str> = actions.get_subcommands().map(clap::Command::get_name).collect();
    Some(format!(
        "'{word}' is not one of {}; to profile a job, give a name: weft profile --name NAME -- {word} ...",
        names.join(", ")
    ))
}

/// clap's message and suggestions in one line.
fn in_one_line(said: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    for paragraph in said.split("\n\n") {
        let lines: Vec<&str> = paragraph
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        let text = lines.join(" ").replace(" tip: ", "; ").replace("tip: ", "");
        let usage = text.starts_with("Usage:") || text.starts_with("For more information");
        if !usage && !text.is_empty() {
            parts.push(text.strip_prefix("error: ").unwrap_or(&text).to_string());
        }
    }
    parts.join("; ")
}

/// The most specific command that was named.
fn command_of(words: &[&str]) -> String {
    let (mut command, mut name) = (Cli::command(), "weft".to_string());
    for word in words {
        let Some(found) = command.find_subcommand(word).cloned() else {
            break;
        };
        name = format!("{name} {word}");
        command = found;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_job_may_be_given_with_and_without_dashes() {
        for line in [
            &["weft", "run", "--priority", "3", "--", "python", "-c", "x"][..],
            &["weft", "run", "--priority", "3", "python", "-c", "x"][..],
        ] {
            let Command::Run(args) = parse(line).expect("parses").command else {
                panic!("another command");
            };
            assert_eq!(args.command, ["python", "-c", "x"]);
            assert_eq!(args.priority, Some(3));
        }
    }

    #[test]
    fn a_mistyped_option_is_no_command() {
        for line in [
            &["weft", "run", "--profle", "resnet", "--", "python", "x"][..],
            &["weft", "run", "--prioriy=0", "true"],
            &["weft", "run", "-x", "true"],
            &["weft", "run", "--help-me", "true"],
            &["weft", "profile", "--name", "q", "--outt", "x", "--", "true"],
        ] {
            assert!(parse(line).is_err(), "{line:?}");
        }
        let said = |line: &[&str]| in_one_line(&parse(line).expect_err("wrong").to_string());
        let option = said(&["weft", "run", "--profle", "resnet", "--", "python", "x"]);
        assert!(
            option.contains("'--profle'") && option.contains("'--profile'") && !option.contains('\n'),
            "{option}"
        );
        assert!(option.contains("'--profile'; to pass"), "{option}");
        let negative = said(&["weft", "broker", "--delay-bound", "-1"]);
        assert!(negative.contains("'--delay-bound <MICROSECONDS>'"), "{negative}");
        let command = said(&["weft", "statsu"]);
        assert!(command.contains("'status'"), "{command}");
        let figure = said(&["weft", "run", "--priority", "hgih", "--", "true"]);
        assert!(figure.contains("0 (matters most) to 9"), "{figure}");
        assert!(figure.contains("high (0), normal (5), low (7), idle (9)"), "{figure}");
        // All words after the command or the dashes belong to the job.
        for line in [
            &["weft", "run", "python", "-u", "x.py", "--profle"][..],
            &["weft", "run", "--", "-x", "--profle"],
            &["weft", "run", "-p", "3", "--", "python", "-u", "--", "x"],
        ] {
            assert!(parse(line).is_ok(), "{line:?}");
        }
        assert_eq!(command_of(&["run", "--profle"]), "weft run");
        assert_eq!(command_of(&["profile", "keep", "x"]), "weft profile keep");
        assert_eq!(command_of(&["statsu"]), "weft");
    }

    #[test]
    fn a_job_to_profile_may_be_given_without_dashes() {
        for line in [
            &["weft", "profile", "--name", "q", "--", "python", "-u", "x.py"][..],
            &["weft", "profile", "--name", "q", "python", "-u", "x.py"],
        ] {
            let Command::Profile(args) = parse(line).expect("parses").command else {
                panic!("another command");
            };
            assert_eq!(args.command, ["python", "-u", "x.py"]);
        }
        let said = no_action(&["profile", "lst"]).expect("no command");
        assert!(
            said.starts_with("'lst' is not one of show, list, keep, delete"),
            "{said}"
        );
        for known in [
            &["profile", "keep", "x"][..],
            &["profile", "--nme", "q"],
            &["profile"],
            &["statsu", "x"],
        ] {
            assert_eq!(no_action(known), None, "{known:?}");
        }
        assert!(parse(["weft", "profile", "show", "q"]).is_ok());
        assert!(parse(["weft", "profile", "list"]).is_ok());
        assert!(parse(["weft", "profile", "--name", "q"]).is_err());
    }

    #[test]
    fn priorities_end_at_nine() {
        assert!(parse(["weft", "run", "--priority", "10", "--", "true"]).is_err());
        assert!(parse(["weft", "set", "--pid", "7", "--priority", "9"]).is_ok());
        assert!(parse(["weft", "set", "--priority", "9"]).is_err());
    }

    #[test]
    fn a_job_may_be_told_several_things_at_once() {
        let line = "weft set --pid 7 --priority 0 --slowdown 2% --slo 50ms";
        let Command::Set(args) = parse(line.split(' ')).expect("parses").command else {
            panic!("another command");
        };
        assert_eq!((args.priority, args.slowdown), (Some(0), Some(20_000)));
        assert_eq!(args.slo, Some(50_000_000));
    }

    #[test]
    fn weights_are_users_and_priorities_jobs() {
        assert!(parse(["weft", "set", "--user", "ann", "--weight", "3"]).is_ok());
        for wrong in [
            &["weft", "set", "--user", "ann", "--priority", "3"][..],
            &["weft", "set", "--user", "ann", "--slo", "3ms"][..],
            &["weft", "set", "--pid", "7", "--slo", "3ms", "--weight", "3"][..],
            &["weft", "set", "--pid", "7"][..],
            &["weft", "set", "--pid", "7", "--weight", "3"][..],
            &["weft", "set", "--user", "ann"][..],
            &["weft", "set", "--user", "ann", "--weight", "0"][..],
            &[
                "weft",
                "set",
                "--pid",
                "7",
                "--user",
                "ann",
                "--priority",
                "3",
                "--weight",
                "3",
            ][..],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
