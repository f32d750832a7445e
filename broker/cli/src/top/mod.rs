// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft top`: the jobs' current activity, as a screen, as plain pages or as JSON.
//!
//! `board` and `app` are pure, `table` and `view` show them; `screen` draws and reads keys,
//! `watcher` asks the broker.
#![forbid(unsafe_code)]

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::{status, text};
use weft_api::paths::Places;

mod app;
pub mod board;
pub mod json;
mod screen;
pub mod table;
mod view;
mod watcher;

use board::Board;

const KEYS: &str = "\
On a terminal it fills the screen: q ends it, ? shows its keys. Otherwise, and with --once, --json
or --count, it prints plain pages, as wide as COLUMNS or the terminal, else 80 columns.

  weft top
  weft top --once
  weft top --json --interval 10";

/// Show the jobs' current activity, updated at intervals
#[derive(Debug, clap::Args)]
#[command(after_help = KEYS)]
pub struct TopArgs {
    /// Seconds between updates
    #[arg(long, short, default_value_t = 1.0, value_parser = interval)]
    interval: f64,
    /// Print this many pages and exit
    #[arg(long, short = 'n', value_parser = text::whole::<u64>)]
    count: Option<u64>,
    /// Print one page, of one interval, and exit
    #[arg(long, conflicts_with = "count")]
    once: bool,
    /// Print one line of JSON per update (docs/json.md lists the fields)
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("{text} is not between 0.1 and 3600")),
    }
}

/// Shows the jobs until a key, the count or a broken pipe ends it.
pub fn main(args: TopArgs) -> Result<ExitCode> {
    let interval = Duration::from_secs_f64(args.interval);
    let count = if args.once { Some(1) } else { args.count };
    let screen = count.is_none() && !args.json && is_terminal();
    let places = Places::of_environment();
    // A broker that is missing at the start is an error.
    let first = status::ask(&places)?;
    if screen {
        return screen::run(places, first, interval);
    }
    let begin = Instant::now();
    let mut board = Board::new(args.interval);
    board.update(*first, 0.0);
    let mut pages = 0;
    while count.is_none_or(|count| pages < count) {
        std::thread::sleep(interval);
        let page = match status::ask(&places) {
            Ok(status) => {
                board.update(*status, begin.elapsed().as_secs_f64());
                page(&board, args.json)?
            }
            Err(error) if args.once => return Err(error),
            Err(error) => {
                let gone = format!("{}; trying again", text::told(&error));
                match args.json {
                    true => serde_json::json!({"schema": weft_api::status::SCHEMA, "gone": gone}).to_string(),
                    false => gone,
                }
            }
        };
        text::put(format!("{page}\n").as_bytes());
        pages += 1;
    }
    Ok(ExitCode::SUCCESS)
}

fn page(board: &Board, json: bool) -> Result<String> {
    Ok(match json {
        true => serde_json::to_string(&json::line(board))?,
        false => table::page(board, text::terminal_width().unwrap_or(text::USUAL_WIDTH)),
    })
}

/// Whether stdin and stdout are a terminal that can move its cursor.
fn is_terminal() -> bool {
    let dumb = std::env::var_os("TERM").is_none_or(|kind| kind.is_empty() || kind == "dumb");
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && !dumb
}
