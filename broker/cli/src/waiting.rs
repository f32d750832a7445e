//! Waits for a job whose parent this command stays (`weft profile`; `weft run` becomes its job), so
//! that nobody notices the difference.
//!
//! * Signals of the terminal (^C, ^\, ^Z, a hang-up) reach the job as well, since both are in the
//!   terminal's foreground group: here they are only outlived. ^Z stops both (this command where
//!   the job stops), and `fg` has both go on.
//! * Signals that a process sends to this command (a supervisor, `kill`, `timeout`) are meant for
//!   the job, and are handed on: TERM, HUP, INT, QUIT, USR1 and USR2; TSTP stops the job and then
//!   this command, CONT has a job that is stopped go on. Who signals the whole group reaches the
//!   job twice. STOP and KILL cannot be handed on.
//! * What the job sends to its own group it has already: nothing is handed on.
//! * A signal that was ignored stays so, here and in the job (nohup, a shell's background job).
//! * This command ends as the job did: with its code, or by its signal, so that a shell sees what
//!   it would see of the job.
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

/// Signals that are taken here.
const HEARD: [(i32, Signal); 8] = [
    (SIGINT, Signal::INT),
    (SIGQUIT, Signal::QUIT),
    (SIGTERM, Signal::TERM),
    (SIGHUP, Signal::HUP),
    (SIGUSR1, Signal::USR1),
    (SIGUSR2, Signal::USR2),
    (SIGTSTP, Signal::TSTP),
    (SIGCONT, Signal::CONT),
];

/// A job that stops does so at once; on a busy machine a little later.
const STOPS_WITHIN: Duration = Duration::from_secs(1);

/// The signals of this process, taken before the job begins: one that comes while it begins is
/// handed on when it has.
pub struct Signals(SignalsInfo<WithRawSiginfo>);

/// Takes them.
pub fn signals() -> Result<Signals> {
    let heard = HEARD.iter().map(|(number, _)| *number);
    let taken = SignalsInfo::new(heard.filter(|number| !inherited::ignored(*number)));
    taken.map(Signals).context("cannot take signals")
}

impl Signals {
    /// Waits for the job's end.
    pub fn wait(self, mut child: Child) -> Result<ExitStatus> {
        let Signals(mut signals) = self;
        let handle = signals.handle();
        let job = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let job = job.context("the job has no process id")?;
        // It ends with the handle. While the job is not waited for its id is nobody else's; the
        // last signals of all may find nobody.
        let forwarder = std::thread::spawn(move || {
            for signal in signals.forever() {
                hand_on(&signal, job);
            }
        });
        let status = child.wait().context("cannot wait for the job");
        handle.close();
        let _ = forwarder.join();
        status
    }
}

fn hand_on(came: &siginfo_t, job: Pid) {
    let Some((_, signal)) = HEARD.iter().find(|(number, _)| *number == came.si_signo) else {
        return;
    };
    // `fg` has the whole group go on: a job that does already is not told twice.
    let wanted = *signal != Signal::CONT || is_stopped(job);
    if wanted && meant_for(came, job) {
        let _ = kill_process(job, *signal);
    }
    if *signal == Signal::TSTP && stops(job) {
        let _ = kill_process(getpid(), Signal::STOP);
    }
}

/// Whether the job stops: one that handles the signal goes on, and so does one whose group no shell
/// looks after.
fn stops(job: Pid) -> bool {
    let end = Instant::now() + STOPS_WITHIN;
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

/// Whether a signal is one that the job does not get by itself.
fn meant_for(came: &siginfo_t, job: Pid) -> bool {
    // Codes above 0 are the kernel's own, and its signals of this kind are the terminal's.
    if came.si_code > 0 {
        return false;
    }
    // SAFETY: a signal with such a code was sent by a process, so the sender is what the union
    // holds.
    let sender = unsafe { came.si_pid() };
    sender != job.as_raw_nonzero().get()
}

/// Ends as the job did, as far as that can be.
pub fn end_as(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        // Its core is of interest, not ours.
        let none = Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        let _ = setrlimit(Resource::Core, none);
        let _ = emulate_default_handler(signal);
    }
    // As a shell tells it, where that did not end this process.
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(u8::try_from(code.unwrap_or(1)).unwrap_or(1))
}
