// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft metrics`: the broker's metrics, once.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::{Result, bail};

use super::text;
use weft_api::admin::{self, AdminQuestion, Answer};
use weft_api::paths::Places;

/// Print the broker's metrics once, in Prometheus' text format: for reading, or for the textfile
/// collector of the node exporter
#[derive(Debug, clap::Args)]
pub struct MetricsArgs {
    /// Use the format OpenMetrics 1.0.0
    #[arg(long)]
    pub openmetrics: bool,
}

/// Prints the metrics.
pub fn main(args: MetricsArgs) -> Result<ExitCode> {
    let openmetrics = args.openmetrics;
    let Answer::Metrics(page) = admin::ask(&Places::of_environment(), &AdminQuestion::Metrics { openmetrics })? else {
        bail!("unexpected answer");
    };
    text::put(page.as_bytes());
    Ok(ExitCode::SUCCESS)
}
