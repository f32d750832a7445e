//! Starts this user's broker when none runs.
//!
//! Many jobs may start at once: the first to take the start lock ([`turn`]) looks again, starts a
//! broker and waits until it answers; the others wait for the lock and find it running. Every wait
//! has a bound, and a job runs without a broker rather than not at all.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use weft_daemon::admin;
use weft_daemon::places::Places;

/// A broker answers a few milliseconds after its start; a machine that swaps may need seconds.
const PATIENCE: Duration = Duration::from_secs(15);

/// How often the state is looked at while waiting.
const STEP: Duration = Duration::from_millis(5);

/// A broker that was started for a job goes when nobody was attached for so long. Long enough that
/// the jobs of a script, one after another, meet one broker; short enough that nothing stays for
/// ever.
pub const IDLE_EXIT: Duration = Duration::from_secs(60);

/// Makes sure that a broker answers. `extra` is passed to one that is started.
pub fn ensure(places: &Places, extra: &[String]) -> Result<()> {
    if admin::pings(places) {
        return Ok(());
    }
    if places.is_shared() {
        bail!(
            "the shared broker at {} does not answer; whoever runs this machine starts it (weft broker --shared)",
            places.socket().display()
        );
    }
    places
        .prepare()
        .with_context(|| format!("the broker's directory {}", places.directory().display()))?;
    start(places, extra)
}

/// Waits for the turn to start a broker. The turn lasts as long as what is returned.
pub fn turn(places: &Places) -> Result<File> {
    let path = places.start_lock();
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => std::thread::sleep(STEP),
            Err(error) => bail!("cannot lock {}: {error}", path.display()),
        }
    }
}

/// Starts a broker by way of `weft broker --background`, which goes when it answers: the broker is
/// then nobody's child, so that a job which waits for any child of its own never meets it.
fn start(places: &Places, extra: &[String]) -> Result<()> {
    let program = fs::read_link("/proc/self/exe").context("cannot find this program")?;
    let output = Command::new(program)
        .args(["broker", "--background", "--quiet", "--socket"])
        .arg(places.socket())
        .args(extra)
        // The broker is no job: it must not load the interposer.
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

/// The arguments that make a broker leave by itself.
pub fn idle_exit() -> Vec<String> {
    vec!["--idle-exit".to_string(), IDLE_EXIT.as_secs().to_string()]
}
