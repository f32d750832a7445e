// SPDX-License-Identifier: MIT OR Apache-2.0
//! The terminal: taken over for a screen, and always restored.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Longest time until news or a signal is noticed.
pub const STEP: Duration = Duration::from_millis(50);

/// Interval at which the terminal is checked.
const LOOK: Duration = Duration::from_millis(500);

/// Base of the exit code of a process ended by a signal.
const SIGNALLED: usize = 128;

/// Takes over the terminal until `show` returns, which it does when the signal is not 0.
pub fn with_terminal(
    show: impl FnOnce(&mut ratatui::DefaultTerminal, &AtomicUsize) -> std::io::Result<()>,
) -> Result<ExitCode> {
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGTERM, SIGINT, SIGHUP] {
        let flag = signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize);
        flag.context("cannot take signals")?;
    }
    end_with_the_terminal(Arc::clone(&signal)).context("cannot start a thread")?;
    // Also restores the terminal if the program panics.
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let left = show(&mut terminal, &signal);
    ratatui::restore();
    left.context("the terminal is gone")?;
    Ok(match signal.load(Ordering::Relaxed) {
        0 => ExitCode::SUCCESS,
        signal => ExitCode::from((SIGNALLED + signal) as u8),
    })
}

/// Ends the program when the terminal is gone: crossterm then reads for ever at full speed, and
/// never returns to check a signal.
fn end_with_the_terminal(signal: Arc<AtomicUsize>) -> std::io::Result<()> {
    let gone = || {
        let stdin = std::io::stdin();
        let mut looked = [PollFd::new(&stdin, PollFlags::empty())];
        let found = poll(&mut looked, Some(&Timespec::default()));
        found.is_ok_and(|found| found > 0) && looked[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    };
    let thread = std::thread::Builder::new().name("weft-terminal".into());
    let ends = move || {
        loop {
            std::thread::sleep(LOOK);
            let signal = match signal.load(Ordering::Relaxed) {
                0 if gone() => SIGHUP as usize,
                0 => continue,
                signal => signal,
            };
            // The regular end, which restores the terminal, takes a few steps.
            std::thread::sleep(LOOK);
            std::process::exit((SIGNALLED + signal) as i32);
        }
    };
    thread.spawn(ends).map(drop)
}
