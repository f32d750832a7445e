//! The terminal itself: taken over, drawn to, and given back whatever happens.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use weft_daemon::places::Places;
use weft_daemon::status::Status;

use super::app::{BrokerNews, TopApp, TopRequest};
use super::board::Board;
use super::view::{self, Palette};
use super::watcher::{JobOrder, Watcher};

/// Longest time until news or a signal are looked at.
const STEP: Duration = Duration::from_millis(50);

/// Time between two looks whether the terminal is there.
const LOOK: Duration = Duration::from_millis(500);

/// Exit codes of processes that a signal ended begin here.
const SIGNALLED: usize = 128;

/// Shows the screen until it is left.
pub fn run(places: Places, first: Box<Status>, interval: Duration) -> Result<ExitCode> {
    let since = Instant::now();
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGTERM, SIGINT, SIGHUP] {
        let flag = signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize);
        flag.context("cannot take signals")?;
    }
    let mut app = TopApp::new(Board::new(interval.as_secs_f64()));
    app.hear(BrokerNews::Status(first, 0.0));
    let watcher = Watcher::start(places, interval, since).context("cannot start a thread")?;
    end_with_the_terminal(Arc::clone(&signal)).context("cannot start a thread")?;
    // Also gives it back when the program panics.
    let mut terminal = ratatui::try_init().context("cannot take the terminal")?;
    let left = show(&mut terminal, &mut app, &watcher, &signal);
    ratatui::restore();
    left.context("the terminal is gone")?;
    Ok(match signal.load(Ordering::Relaxed) {
        0 => ExitCode::SUCCESS,
        signal => ExitCode::from((SIGNALLED + signal) as u8),
    })
}

/// Ends the program where it hangs: on a terminal that is gone crossterm reads for ever, at full
/// speed, and never returns to look at a signal.
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
            // The usual way, which gives the terminal back, takes a few steps.
            std::thread::sleep(LOOK);
            std::process::exit((SIGNALLED + signal) as i32);
        }
    };
    thread.spawn(ends).map(drop)
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    app: &mut TopApp,
    watcher: &Watcher,
    signal: &AtomicUsize,
) -> std::io::Result<()> {
    let palette = Palette::of_environment();
    let mut changed = true;
    while signal.load(Ordering::Relaxed) == 0 {
        if std::mem::take(&mut changed) {
            terminal.draw(|frame| view::draw(frame, app, palette))?;
        }
        if event::poll(STEP)? {
            changed = true;
            if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
            {
                match app.press(key) {
                    Some(TopRequest::Quit) => break,
                    Some(TopRequest::Priority { client, priority }) => {
                        watcher.order(client, JobOrder::Priority(priority));
                    }
                    Some(TopRequest::Stop { client, stopped }) => watcher.order(client, JobOrder::Stop(stopped)),
                    None => {}
                }
            }
        }
        while let Some(news) = watcher.news() {
            app.hear(news);
            changed = true;
        }
    }
    Ok(())
}
