// SPDX-License-Identifier: MIT OR Apache-2.0
//! The terminal: taken over for a screen, and always restored.
#![forbid(unsafe_code)]

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Longest time until news or a signal is noticed.
pub const STEP: Duration = Duration::from_millis(50);

/// Interval at which the terminal is checked.
const LOOK: Duration = Duration::from_millis(500);

/// Base of the exit code of a process ended by a signal.
const SIGNALLED: usize = 128;

/// Interval at which the progress changes on a terminal, and first interval in a log.
const SHOWN_EVERY: Duration = Duration::from_millis(200);
const LOGGED_AFTER: Duration = Duration::from_secs(2);

/// A line on stderr with the part of a long command that is done; in a log a line now and then.
#[derive(Debug)]
pub struct ProgressLine {
    doing: &'static str,
    on_terminal: bool,
    every: Duration,
    shown: Option<Instant>,
}

impl ProgressLine {
    /// A line that names the command's activity.
    pub fn new(doing: &'static str) -> ProgressLine {
        let on_terminal = std::io::stderr().is_terminal();
        let (every, shown) = match on_terminal {
            true => (SHOWN_EVERY, None),
            false => (LOGGED_AFTER, Some(Instant::now())),
        };
        ProgressLine {
            doing,
            on_terminal,
            every,
            shown,
        }
    }

    /// Shows the part, if it is due. A whole of 0 is not known: a pipe has no size.
    pub fn show(&mut self, done: u64, all: u64) {
        if all == 0 || self.shown.is_some_and(|shown| shown.elapsed() < self.every) {
            return;
        }
        self.shown = Some(Instant::now());
        let part = 100.0 * done as f64 / all as f64;
        if self.on_terminal {
            eprint!("\r{} {part:3.0} %", self.doing);
            let _ = std::io::stderr().flush();
        } else {
            self.every *= 2;
            eprintln!("weft: {} {part:.0} %", self.doing);
        }
    }

    /// Takes the line off the terminal.
    pub fn clear(&self) {
        if self.on_terminal && self.shown.is_some() {
            eprint!("\r              \r");
        }
    }
}

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
