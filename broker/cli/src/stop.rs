//! `weft stop`: ends this user's broker; its jobs go on as without weft.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use weft_daemon::admin::{self, Question};
use weft_daemon::places::Places;

/// End the broker; jobs go on as without weft. A shared one ends for its owner or root alone
#[derive(Debug, clap::Args)]
pub struct StopArgs {}

/// Bound on the stop, as the broker writes its profiles first.
const PATIENCE: Duration = Duration::from_secs(10);

/// Stops the broker.
pub fn main(_: StopArgs) -> Result<ExitCode> {
    let places = Places::of_environment();
    admin::ask(&places, &Question::Stop)?;
    let deadline = Instant::now() + PATIENCE;
    while admin::pings(&places) {
        if Instant::now() > deadline {
            bail!("the broker does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(ExitCode::SUCCESS)
}
