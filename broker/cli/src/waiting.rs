// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits for a job as its parent (`weft profile`), transparently for both sides.
//!
//! * Terminal signals (^C, ^\, ^Z, a hang-up) reach the job too, as both are in the foreground
//!   group; this command only outlives them. ^Z stops the job and then this command; `fg` continues
//!   both.
//! * Signals from a process (a supervisor, `kill`, `timeout`) are forwarded: TERM, HUP, INT, QUIT,
//!   USR1 and USR2. TSTP stops the job and then this command; CONT continues a stopped job. A
//!   signal to the whole group reaches the job twice. STOP and KILL cannot be forwarded.
//! * Signals from the job to its own group are not forwarded. An ignored signal stays ignored.
//! * This command ends with the job's exit code or signal.
#![allow(unsafe_code)]

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use libc::siginfo_t;
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, getpid, kill_process, setrlimit, waitid};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithRawSiginfo;
use signal_hook::low_level::emulate_default_handler;

use super::inherited;

/// Signals that are handled here.
const HANDLED_SIGNALS: [(i32, Signal); 8] = [
    (SIGINT, Signal::INT),
    (SIGQUIT, Signal::QUIT),
    (SIGTERM, Signal::TERM),
    (SIGHUP, Signal::HUP),
    (SIGUSR1, Signal::USR1),
    (SIGUSR2, Signal::USR2),
    (SIGTSTP, Signal::TSTP),
    (SIGCONT, Signal::CONT),
];

/// How long a stop may take on a busy machine.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Exit code if a job succeeded without a profile or trace: `EX_CANTCREAT` of sysexits.h.
pub const NOTHING: u8 = 73;

/// This process's signals, handled from before the job's start, so that none is lost.
pub struct Signals(SignalsInfo<WithRawSiginfo>);

/// Takes the signals.
pub fn signals() -> Result<Signals> {
    let heard = HANDLED_SIGNALS.iter().map(|(number, _)| *number);
    let taken = SignalsInfo::new(heard.filter(|number| !inherited::ignored(*number)));
    taken.map(Signals).context("cannot take signals")
}

impl Signals {
    /// Waits for the job's end, forwarding signals.
    pub fn wait(self, mut child: Child) -> Result<ExitStatus> {
        let Signals(mut signals) = self;
        let handle = signals.handle();
        let job = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let job = job.context("the job has no process id")?;
        // Ends with the handle. The job's pid is not reused until the job is waited for.
        let forwarder = std::thread::spawn(move || {
            for signal in signals.forever() {
                forward(&signal, job);
            }
        });
        let status = child.wait().context("cannot wait for the job");
        handle.close();
        let _ = forwarder.join();
        status
    }
}

fn forward(came: &siginfo_t, job: Pid) {
    let Some((_, signal)) = HANDLED_SIGNALS.iter().find(|(number, _)| *number == came.si_signo) else {
        return;
    };
    // `fg` continues the whole group.
    let wanted = *signal != Signal::CONT || is_stopped(job);
    if wanted && is_meant_for(came, job) {
        let _ = kill_process(job, *signal);
    }
    if *signal == Signal::TSTP && stops(job) {
        let _ = kill_process(getpid(), Signal::STOP);
    }
}

/// Whether the job stops. It does not if it handles the signal, or is in a group without a shell.
fn stops(job: Pid) -> bool {
    let end = Instant::now() + STOP_TIMEOUT;
    loop {
        if is_stopped(job) {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether the job is stopped now.
fn is_stopped(job: Pid) -> bool {
    let ask = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    matches!(waitid(WaitId::Pid(job), ask), Ok(Some(_)))
}

/// Whether a signal must be forwarded because the job does not get it itself.
fn is_meant_for(came: &siginfo_t, job: Pid) -> bool {
    // Codes above 0 come from the kernel, which sends these signals for the terminal.
    if came.si_code > 0 {
        return false;
    }
    // SAFETY: a signal with such a code was sent by a process, so the union holds the sender.
    let sender = unsafe { came.si_pid() };
    sender != job.as_raw_nonzero().get()
}

/// The job's exit status, but a failure if it succeeded without a profile: a script must not go on.
pub fn end_learnt(status: ExitStatus, learnt: bool) -> ExitCode {
    match status.success() && !learnt {
        true => ExitCode::from(NOTHING),
        false => end_as(status),
    }
}

/// Ends this process like the job, as far as possible.
pub fn end_as(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        // Only the job's core dump matters.
        let none = Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        let _ = setrlimit(Resource::Core, none);
        let _ = emulate_default_handler(signal);
    }
    // The code that a shell reports, if the signal did not end this process.
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(u8::try_from(code.unwrap_or(1)).unwrap_or(1))
}
