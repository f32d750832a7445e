// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft stop`: ends this user's broker; its jobs continue without weft.
#![forbid(unsafe_code)]

use std::fmt;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::PollFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::text;
use weft_api::admin::{self, AdminQuestion};
use weft_api::paths::Places;
use weft_protocol::transport::{HANDSHAKE, TimeLimit, client, fds, peer};

/// End the broker; jobs continue without weft. Only its owner or root can end a shared broker
#[derive(Debug, clap::Args)]
pub struct StopArgs {}

/// Longest time for the stop, in which the broker writes profiles and the outcomes of its jobs: the
/// same time as in its systemd unit.
const PATIENCE: Duration = Duration::from_secs(15);

/// Further wait for a broker that is replaced: together with [`PATIENCE`] the time for which jobs
/// that wait for memory miss their broker.
const LONGEST_END: Duration = Duration::from_secs(45);

/// Interval at which a broker is checked whose process cannot be watched.
const STEP: Duration = Duration::from_millis(5);

/// Stops the broker.
pub fn main(_: StopArgs) -> Result<ExitCode> {
    end(&Places::of_environment())?;
    Ok(ExitCode::SUCCESS)
}

/// The process of the listening broker; `None` if there is none, or if its pid namespace is not
/// visible here.
pub fn process(places: &Places) -> Option<Pid> {
    let socket = client::reach(places.socket(), TimeLimit::new(HANDSHAKE)).ok()?;
    Pid::from_raw(peer::peer(&socket).ok()?.pid?.try_into().ok()?)
}

/// Ends the broker, and waits until its process has ended, because all files are written then.
/// Returns its process, if visible.
pub fn end(places: &Places) -> Result<Option<Pid>> {
    let ending = EndingBroker::asked(places)?;
    match ending.has_ended(places, PATIENCE)? {
        true => Ok(ending.pid),
        false => bail!("{ending} did not end within {PATIENCE:?}"),
    }
}

/// Ends the broker so that another one can replace it. A broker that has given up its socket is
/// waited for, because it cannot come back and jobs wait. After [`LONGEST_END`] the other broker
/// starts anyway.
pub fn give_way(places: &Places) -> Result<Option<Pid>> {
    let ending = EndingBroker::asked(places).context("the running broker was not replaced")?;
    if ending.has_ended(places, PATIENCE)? {
        return Ok(ending.pid);
    }
    if admin::pings(places) {
        bail!("the running broker was not replaced: {ending} did not end within {PATIENCE:?}");
    }
    text::warn(format_args!(
        "{ending} no longer answers but still writes its data: waiting for it, at most {LONGEST_END:?}"
    ));
    if !ending.has_ended(places, LONGEST_END)? {
        text::warn(format_args!("{ending} still runs: data that it writes now may be lost"));
    }
    Ok(ending.pid)
}

/// A broker that was asked to end.
struct EndingBroker {
    pid: Option<Pid>,
    watched: Option<OwnedFd>,
}

impl EndingBroker {
    fn asked(places: &Places) -> Result<EndingBroker> {
        let pid = process(places);
        // Opened before it ends, because its number may be reused then.
        let watched = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        admin::ask(places, &AdminQuestion::Stop)?;
        Ok(EndingBroker { pid, watched })
    }

    fn has_ended(&self, places: &Places, patience: Duration) -> Result<bool> {
        let deadline = Instant::now() + patience;
        if let Some(process) = &self.watched {
            return Ok(fds::ready(process, PollFlags::IN, deadline)?);
        }
        while admin::pings(places) {
            if Instant::now() > deadline {
                return Ok(false);
            }
            std::thread::sleep(STEP);
        }
        Ok(true)
    }
}

impl fmt::Display for EndingBroker {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(out, "the broker (process {pid})"),
            None => out.write_str("the broker"),
        }
    }
}
