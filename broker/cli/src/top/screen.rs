// SPDX-License-Identifier: MIT OR Apache-2.0
//! The screen: draws the state, and passes keys and news to it.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use weft_api::paths::Places;
use weft_api::status::Status;

use super::super::terminal::{self, STEP};
use super::app::{BrokerNews, TopApp, TopRequest};
use super::board::Board;
use super::view::{self, Palette};
use super::watcher::{JobOrder, Watcher};

/// Shows the screen until the user leaves it.
pub fn run(places: Places, first: Box<Status>, interval: Duration) -> Result<ExitCode> {
    let since = Instant::now();
    let mut app = TopApp::new(Board::new(interval.as_secs_f64()));
    app.hear(BrokerNews::Status(first, 0.0));
    let watcher = Watcher::start(places, interval, since).context("cannot start a thread")?;
    terminal::with_terminal(|terminal, signal| show(terminal, &mut app, &watcher, signal))
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
