// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts this user's broker if none runs.
//!
//! The first job that takes the start lock ([`turn`]) checks again, starts a broker and waits for
//! its answer. Every wait is bounded, and without a broker a job still runs.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::text;
use weft_api::admin;
use weft_api::paths::Places;
use weft_protocol::transport::{HANDSHAKE, TimeLimit, TransportError, client};

/// Longest wait for a new broker's answer. It takes a few milliseconds, or seconds on a swapping
/// machine.
const START_TIMEOUT: Duration = Duration::from_secs(15);

/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Idle time after which a broker started for a job ends: the jobs of a script share one broker,
/// and it does not stay for ever.
pub const IDLE_EXIT: Duration = Duration::from_secs(60);

/// Ensures that a broker answers. `extra` are arguments for a new one.
pub fn ensure(places: &Places, extra: &[String]) -> Result<()> {
    if admin::pings(places) {
        return Ok(());
    }
    check_place(places)?;
    if places.is_shared() {
        bail!(
            "the shared broker at {} does not answer; ask the machine's administrator to start it (weft broker --shared)",
            places.socket().display()
        );
    }
    places.prepare()?;
    start(places, extra)?;
    // A mistyped path would else part this job from those of the broker that was meant.
    if std::env::var_os("WEFT_SOCKET").is_some_and(|said| !said.is_empty()) {
        text::warn(format_args!(
            "WEFT_SOCKET named no running broker: one was started at {}",
            places.socket().display()
        ));
    }
    Ok(())
}

/// Fails if the socket is another program's, or another user's: a broker would take its place.
pub fn check_place(places: &Places) -> Result<()> {
    match client::reach(places.socket(), TimeLimit::new(HANDSHAKE)) {
        Err(wrong @ TransportError::Folder { .. }) => Err(wrong.into()),
        _ => Ok(()),
    }
}

/// Waits for the lock on starting a broker; dropping the file releases it.
pub fn turn(places: &Places) -> Result<File> {
    let path = places.start_lock();
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
            Err(error) => bail!("cannot lock {}: {error}", path.display()),
        }
    }
}

/// Starts a broker by `weft broker --background`, which exits once the broker answers. So the
/// broker is not a child of a job that may wait for any child.
fn start(places: &Places, extra: &[String]) -> Result<()> {
    let program = fs::read_link("/proc/self/exe").context("cannot find this program")?;
    let output = Command::new(program)
        .args(["broker", "--background", "--quiet", "--socket"])
        .arg(places.socket())
        .args(extra)
        // The broker is not a job and must not load the interposer.
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .context("cannot start the broker")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{}", said.trim().trim_start_matches("weft: "));
    }
    Ok(())
}

/// Arguments that make a broker end when idle.
pub fn idle_exit() -> Vec<String> {
    vec!["--idle-exit".to_string(), IDLE_EXIT.as_secs().to_string()]
}
