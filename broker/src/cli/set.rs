//! `weft set`: another priority for a job that runs.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{ArgGroup, value_parser};

use crate::daemon::admin::{self, Answer, Question};
use crate::daemon::places::Places;

/// Change the priority of a job that runs
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("who").required(true).args(["client", "pid"]))]
pub struct Args {
    /// By the number that `weft status` shows
    #[arg(long)]
    pub client: Option<u64>,
    /// By process
    #[arg(long)]
    pub pid: Option<u32>,
    /// 0 (matters most) to 9
    #[arg(long, short, value_parser = value_parser!(u8).range(0..=9))]
    pub priority: u8,
}

/// Sets it.
pub fn main(args: Args) -> Result<ExitCode> {
    let question = Question::Set {
        client: args.client,
        pid: args.pid,
        priority: args.priority,
    };
    match admin::ask(&Places::of_environment(), &question)? {
        Answer::Set(0) => bail!("no such client (weft status)"),
        Answer::Set(_) => Ok(ExitCode::SUCCESS),
        other => bail!("unexpected answer {other:?}"),
    }
}
