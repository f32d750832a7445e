//! `weft stop`: ends this user's broker; its jobs go on as without weft.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::event::PollFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use weft_daemon::admin::{self, Question};
use weft_daemon::places::Places;
use weft_protocol::transport::{HANDSHAKE, TimeLimit, client, fds, peer};

/// End the broker; jobs go on as without weft. A shared one ends for its owner or root alone
#[derive(Debug, clap::Args)]
pub struct StopArgs {}

/// Bound on the stop, as the broker writes its profiles and the books of its jobs first: as long as
/// its unit for systemd gives it.
const PATIENCE: Duration = Duration::from_secs(15);

/// Interval between looks at a broker whose process cannot be watched.
const STEP: Duration = Duration::from_millis(5);

/// Stops the broker.
pub fn main(_: StopArgs) -> Result<ExitCode> {
    end(&Places::of_environment())?;
    Ok(ExitCode::SUCCESS)
}

/// The process of the broker that listens; `None`: nobody listens, or it is of a namespace that is
/// not seen from here.
pub fn process(places: &Places) -> Option<Pid> {
    let socket = client::reach(places.socket(), TimeLimit::new(HANDSHAKE)).ok()?;
    Pid::from_raw(peer::peer(&socket).ok()?.pid?.try_into().ok()?)
}

/// Ends the broker, and waits until its process has ended: then all is written. Returns its
/// process, where that is seen.
pub fn end(places: &Places) -> Result<Option<Pid>> {
    let pid = process(places);
    // Before it ends: its number may be another's then.
    let watched = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    admin::ask(places, &Question::Stop)?;
    let deadline = Instant::now() + PATIENCE;
    let ended = match &watched {
        Some(process) => fds::ready(process, PollFlags::IN, deadline)?,
        None => loop {
            if !admin::pings(places) {
                break true;
            }
            if Instant::now() > deadline {
                break false;
            }
            std::thread::sleep(STEP);
        },
    };
    match (ended, pid) {
        (true, pid) => Ok(pid),
        (false, Some(pid)) => bail!("the broker (process {pid}) does not end within {PATIENCE:?}"),
        (false, None) => bail!("the broker does not end within {PATIENCE:?}"),
    }
}
