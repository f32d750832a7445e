//! The terminal itself: taken over, drawn to, and given back whatever happens.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use weft_daemon::places::Places;
use weft_daemon::status::Status;

use super::app::{BrokerNews, TopApp, TopRequest};
use super::board::Board;
use super::view::{self, Palette};
use super::watcher::{JobOrder, Watcher};

/// Longest time until news or a signal are looked at.
const STEP: Duration = Duration::from_millis(50);

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
