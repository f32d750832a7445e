//! What a person types: `weft run, profile, trace, broker, status, queue, set, doctor`.
//!
//! One file a subcommand. What holds: a mistake on the command line is one line on stderr and exit code 2; a trouble is one line and exit code 1; a job that
//! is started keeps its own exit code, signals and stdout.

#![deny(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod broker;
mod cache;
mod doctor;
mod environment;
mod gpus;
mod inherited;
mod libraries;
mod mps;
mod outside;
mod people;
mod probe;
mod profile;
mod queue;
mod run;
mod set;
mod start;
mod status;
mod stop;
mod text;
mod top;
mod trace;
mod waiting;

const EXAMPLES: &str = "\
Learn two jobs once, serve them side by side, look at them, and see what this machine has:

  weft profile --name resnet -- python serve.py
  weft run --priority 0 --profile resnet -- python serve.py
  weft run --priority 5 -- python train.py
  weft status
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
    Run(run::Args),
    Profile(profile::Args),
    Status(status::Args),
    Queue(queue::Args),
    Top(top::Args),
    Trace(trace::Args),
    Set(set::Args),
    Doctor(doctor::Args),
    Broker(broker::Args),
    Stop(stop::Args),
    #[command(hide = true)]
    Probe(probe::Args),
}

/// Parses the command line, does it and says how it went.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let outcome = match cli.command {
        Command::Run(args) => run::main(args),
        Command::Profile(args) => profile::main(args),
        Command::Status(args) => status::main(args),
        Command::Queue(args) => queue::main(args),
        Command::Top(args) => top::main(args),
        Command::Trace(args) => trace::main(args),
        Command::Set(args) => set::main(args),
        Command::Doctor(args) => doctor::main(args),
        Command::Broker(args) => broker::main(args),
        Command::Stop(args) => stop::main(args),
        Command::Probe(args) => probe::main(args),
    };
    outcome.unwrap_or_else(|error| {
        // The chain in one line: `what failed: why: why`.
        eprintln!("weft: {error:#}");
        ExitCode::FAILURE
    })
}

/// A wrong command line is one line; help and version are what was asked for.
fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            error.exit()
        }
        _ => {
            let text = error.to_string();
            // Several missing arguments stand on lines of their own, up to the first empty line.
            let first: Vec<&str> = text
                .lines()
                .map(str::trim)
                .take_while(|line| !line.is_empty())
                .collect();
            let line = first.join(" ");
            eprintln!("weft: {} (weft --help)", line.strip_prefix("error: ").unwrap_or(&line));
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

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
            let Command::Run(args) = Cli::try_parse_from(line).expect("parses").command else {
                panic!("another command");
            };
            assert_eq!(args.command, ["python", "-c", "x"]);
            assert_eq!(args.priority, Some(3));
        }
    }

    #[test]
    fn priorities_end_at_nine() {
        assert!(Cli::try_parse_from(["weft", "run", "--priority", "10", "--", "true"]).is_err());
        assert!(Cli::try_parse_from(["weft", "set", "--pid", "7", "--priority", "9"]).is_ok());
        assert!(Cli::try_parse_from(["weft", "set", "--priority", "9"]).is_err());
    }

    #[test]
    fn weights_are_users_and_priorities_jobs() {
        assert!(Cli::try_parse_from(["weft", "set", "--user", "ann", "--weight", "3"]).is_ok());
        for wrong in [
            &["weft", "set", "--user", "ann", "--priority", "3"][..],
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
            assert!(Cli::try_parse_from(wrong).is_err(), "{wrong:?}");
        }
    }
}
