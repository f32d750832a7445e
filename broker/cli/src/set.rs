// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft set`: changes a job's priority or allowed slowdown, or a user's weight.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::ArgGroup;

use super::{job, text, users};
use weft_api::admin::{self, AdminQuestion, Answer};
use weft_api::paths::Places;
use weft_protocol::latency_budget::{self, LatencyBudget};

/// Change the priority or the allowed slowdown of a running or waiting job, or the weight of a user
/// in the queue for memory
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(group = ArgGroup::new("who").required(true).args(["job", "client", "pid", "user"]))]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["priority", "slowdown", "slo", "at_least", "weight"]))]
pub struct SetArgs {
    /// Job by its name, or else as client:3 or pid:4711: all its processes
    #[arg(long, value_name = "NAME")]
    pub job: Option<String>,
    /// Job by its client number, as `weft status` shows it
    #[arg(long, value_parser = text::whole::<u64>)]
    pub client: Option<u64>,
    /// Job by its process id
    #[arg(long, value_parser = text::whole::<u32>)]
    pub pid: Option<u32>,
    /// User as in WEFT_USER; "" is all jobs without one. With a shared broker a name or uid, which
    /// only the broker's owner or root may set
    #[arg(long, conflicts_with_all = ["priority", "slowdown", "slo", "at_least"])]
    pub user: Option<String>,
    /// 0 (matters most) to 9, or high (0), normal (5), low (7), idle (9)
    #[arg(long, short, value_parser = text::priority)]
    pub priority: Option<u8>,
    /// Largest mean slowdown by background jobs, as a part of the job's time (2%, 0.02, 0)
    #[arg(long, value_parser = latency_budget::parse_slowdown, allow_hyphen_values = true)]
    pub slowdown: Option<u32>,
    /// Longest latency, from first launch to next wait, within which that may be used (50ms)
    #[arg(long, value_name = "TIME", value_parser = latency_budget::parse_slo, allow_hyphen_values = true)]
    pub slo: Option<u64>,
    /// Part of the GPU's time that the job has at least as a background job (30%; 0: none)
    #[arg(long, value_name = "PART", value_parser = latency_budget::parse_at_least, allow_hyphen_values = true)]
    pub at_least: Option<u32>,
    /// Share of memory and time relative to a user of weight 1 while both have jobs queued
    #[arg(long, value_parser = weight, conflicts_with_all = ["job", "client", "pid"])]
    pub weight: Option<u32>,
}

const EXAMPLES: &str = "\
Examples:
  weft set --job train.py --priority 7
  weft set --client 1 --priority 0
  weft set --pid 4711 --slowdown 2% --slo 50ms
  weft set --user ann --weight 3";

fn weight(text: &str) -> Result<u32, String> {
    let weight = text.parse().ok().filter(|weight| (1..=100).contains(weight));
    weight.ok_or_else(|| "a weight is a whole number from 1 to 100".to_string())
}

/// Sends the change.
pub fn main(args: SetArgs) -> Result<ExitCode> {
    let who = match (args.client, args.pid, &args.job) {
        (Some(client), ..) => format!("client {client}"),
        (None, None, Some(job)) => format!("job {job}"),
        (None, pid, _) => format!("process {}", pid.unwrap_or_default()),
    };
    let places = Places::of_environment();
    let set = |client, pid, job| AdminQuestion::Set {
        client,
        pid,
        job,
        priority: args.priority,
        budget: LatencyBudget {
            slowdown: args.slowdown,
            slo: args.slo,
            at_least: args.at_least,
        },
    };
    // A name has precedence over a number.
    let number = |kind| args.job.as_ref()?.strip_prefix(kind)?.parse::<u64>().ok();
    let pid = number("pid:").and_then(|pid| u32::try_from(pid).ok());
    let client = number("client:");
    let numbered = (client.is_some() || pid.is_some()).then(|| set(client, pid, None));
    let question = match (&args.user, args.weight) {
        (Some(user), Some(weight)) if places.is_shared() => {
            // A shared broker uses the uid from the kernel as the label.
            let uid = users::user(user).map_err(anyhow::Error::msg)?;
            AdminQuestion::Weight {
                user: uid.to_string(),
                weight,
            }
        }
        (Some(user), Some(weight)) => AdminQuestion::Weight {
            user: user.clone(),
            weight,
        },
        (None, None) => set(args.client, args.pid, args.job.clone()),
        _ => bail!("--weight needs --user; the other options need --job, --client or --pid"),
    };
    loop {
        let answer = match (admin::ask(&places, &question)?, &numbered) {
            (Answer::Set(0), Some(numbered)) => admin::ask(&places, numbered)?,
            (answer, _) => answer,
        };
        match answer {
            Answer::Set(0) if job::may_attach(&places) => std::thread::sleep(job::ASKED_SOON),
            Answer::Set(0) => bail!("{who} is not attached (weft status)"),
            Answer::Set(_) | Answer::Done => return Ok(ExitCode::SUCCESS),
            other => bail!("unexpected answer {other:?}"),
        }
    }
}
