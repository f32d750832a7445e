// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a job's process: its exit code or signal, from the kernel or from the process itself.
//!
//! The broker is not the parent, so it cannot wait for the process. It reads, in this order:
//!
//! 1. the pidfd, which keeps the status once the parent has waited for the process (Linux 6.15);
//! 2. `/proc/PID/stat`, if the parent has not waited for it yet;
//! 3. the lane, where the process stores its exit code.
//!
//! A process that a signal ends stores nothing. If none of the three has the status, for example
//! the signal on an older kernel, the end is reported as unknown.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustix::event::PollFlags;
use weft_protocol::transport::fds;

use super::process::Process;
use weft_api::status::Exit;

/// The end of one process, as far as known.
#[derive(Debug)]
pub struct JobEnd {
    process: Process,
    /// Whether the kernel shows this broker the status of a zombie. If not, the kernel shows 0
    /// instead.
    may_read: bool,
    cancelled: AtomicBool,
    /// As [`weft_protocol::lane::LaneCounters::exit_status`].
    told: AtomicU32,
    found: Mutex<Finding>,
}

#[derive(Debug)]
enum Finding {
    /// Not known yet; `None`: the kernel gave no pidfd.
    Open(Option<Arc<OwnedFd>>),
    Known(Option<ExitStatus>),
}

/// Exit code or signal of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExitStatus {
    Code(i32),
    Signal(i32),
}

impl ExitStatus {
    /// Decodes a status of wait(2).
    fn of_wait(word: i32) -> ExitStatus {
        match libc::WIFSIGNALED(word) {
            true => ExitStatus::Signal(libc::WTERMSIG(word)),
            false => ExitStatus::Code(libc::WEXITSTATUS(word)),
        }
    }
}

impl JobEnd {
    /// The end of a process of user `uid`, to which `pidfd` refers.
    pub fn new(process: Process, uid: u32, pidfd: Option<Arc<OwnedFd>>) -> JobEnd {
        let own = rustix::process::geteuid();
        JobEnd {
            process,
            may_read: own.is_root() || own.as_raw() == uid,
            cancelled: AtomicBool::new(false),
            told: AtomicU32::new(0),
            found: Mutex::new(Finding::Open(pidfd)),
        }
    }

    /// Records that `weft cancel` ends it.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Stores the exit status that the process wrote into its lane.
    pub fn hear(&self, told: u32) {
        self.told.store(told, Ordering::Relaxed);
    }

    /// The end, as far as known now. Never waits.
    pub fn exit(&self) -> Exit {
        self.look();
        let found = match *self.found() {
            Finding::Open(_) => None,
            Finding::Known(found) => found,
        };
        Exit {
            code: found.and_then(|found| match found {
                ExitStatus::Code(code) => Some(code),
                ExitStatus::Signal(_) => None,
            }),
            signal: found.and_then(|found| match found {
                ExitStatus::Signal(signal) => Some(signal),
                ExitStatus::Code(_) => None,
            }),
            cancelled: self.cancelled.load(Ordering::Relaxed),
        }
    }

    /// Waits until the process has ended, or until `deadline`, and returns the end as known then.
    pub fn wait(&self, deadline: Instant) -> Exit {
        let open = match &*self.found() {
            Finding::Open(pidfd) => pidfd.clone(),
            Finding::Known(_) => None,
        };
        if let Some(pidfd) = open {
            // Fails only if there is nothing to wait for.
            let _ = fds::ready(&pidfd, PollFlags::IN, deadline);
        }
        self.exit()
    }

    /// Whether the end is final: known, or never to be known.
    pub fn is_settled(&self) -> bool {
        self.look();
        matches!(*self.found(), Finding::Known(_))
    }

    /// Checks a last time and closes the descriptor.
    pub fn give_up(&self) {
        self.look();
        let mut found = self.found();
        if let Finding::Open(_) = *found {
            *found = Finding::Known(self.by_its_word());
        }
    }

    /// Reads the status, unless it is known already or the process runs.
    fn look(&self) {
        let mut found = self.found();
        let Finding::Open(pidfd) = &*found else { return };
        let status = match pidfd {
            Some(pidfd) if !fds::hung_up(pidfd, PollFlags::IN) => return,
            // The parent may wait for it between the first two reads.
            Some(pidfd) => of_pidfd(pidfd.as_fd())
                .or_else(|| self.of_zombie())
                .or_else(|| of_pidfd(pidfd.as_fd())),
            None => None,
        };
        *found = Finding::Known(status.or_else(|| self.by_its_word()));
    }

    fn of_zombie(&self) -> Option<ExitStatus> {
        let word = self.process.exit_word().filter(|_| self.may_read)?;
        Some(ExitStatus::of_wait(word))
    }

    fn by_its_word(&self) -> Option<ExitStatus> {
        let told = self.told.load(Ordering::Relaxed).checked_sub(1)?;
        i32::try_from(told & 0xff).ok().map(ExitStatus::Code)
    }

    fn found(&self) -> std::sync::MutexGuard<'_, Finding> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `struct pidfd_info` of the kernel's `include/uapi/linux/pidfd.h`, in its first version. Not in
/// `libc` yet.
#[repr(C)]
#[derive(Debug, Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    processes_and_users: [u32; 11],
    exit_code: i32,
}

/// Exit status of an ended process, from its pidfd; `None`: an older kernel, or its parent has not
/// waited for it.
fn of_pidfd(pidfd: BorrowedFd<'_>) -> Option<ExitStatus> {
    /// `PIDFD_INFO_EXIT`.
    const EXIT: u64 = 1 << 3;
    /// `_IOWR(0xFF, 11, struct pidfd_info)`.
    const GET_INFO: libc::c_ulong = 3 << 30 | (size_of::<PidfdInfo>() as libc::c_ulong) << 16 | 0xff << 8 | 11;
    let mut info = PidfdInfo {
        mask: EXIT,
        ..PidfdInfo::default()
    };
    // SAFETY: the pointer is to a local that outlives the call, and the request has its size.
    let answer = unsafe { libc::ioctl(pidfd.as_raw_fd(), GET_INFO, &raw mut info) };
    (answer == 0 && info.mask & EXIT != 0).then(|| ExitStatus::of_wait(info.exit_code))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::Duration;

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    fn started(script: &str) -> (Child, JobEnd) {
        let child = Command::new("/bin/sh").args(["-c", script]).spawn().expect("a shell");
        let pid = Pid::from_raw(child.id() as i32).expect("a number");
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("it is ours");
        let uid = rustix::process::geteuid().as_raw();
        let end = JobEnd::new(Process::of(child.id()), uid, Some(Arc::new(pidfd)));
        (child, end)
    }

    /// End of a process, read before or after its parent waits for it.
    fn ends(script: &str, waited: bool) -> Exit {
        let (mut child, end) = started(script);
        if waited {
            child.wait().expect("it is ours");
        }
        let exit = end.wait(Instant::now() + Duration::from_secs(30));
        let _ = child.wait();
        exit
    }

    #[test]
    fn codes_and_signals_are_the_kernels() {
        for (script, code, signal) in [
            ("exit 0", Some(0), None),
            ("exit 3", Some(3), None),
            ("kill -9 $$", None, Some(9)),
            ("kill -SEGV $$", None, Some(11)),
        ] {
            let exit = ends(script, false);
            assert_eq!((exit.code, exit.signal), (code, signal), "{script}");
        }
    }

    #[test]
    fn a_process_that_was_waited_for_is_known_by_its_descriptor_or_not_at_all() {
        let exit = ends("exit 3", true);
        // Linux 6.15 keeps the status.
        assert!([None, Some(3)].contains(&exit.code), "{exit:?}");
        assert_eq!(exit.signal, None);
    }

    #[test]
    fn nothing_is_claimed_of_one_that_runs_or_told_nothing() {
        let (mut child, end) = started("read nothing; exec sleep 600");
        assert!(!end.is_settled());
        end.cancel();
        let exit = end.exit();
        assert_eq!((exit.code, exit.signal, exit.cancelled), (None, None, true));
        end.give_up();
        assert!(end.is_settled());
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
        assert_eq!(end.exit().signal, None, "it was given up");
        let unseen = JobEnd::new(Process::unseen(7), 0, None);
        assert_eq!(unseen.exit(), Exit::default());
        let unseen = JobEnd::new(Process::unseen(7), 0, None);
        unseen.hear(1 + 3);
        assert_eq!(unseen.exit().code, Some(3), "its own word");
    }
}
