//! `weft top --cluster`, `weft status --cluster`: the brokers of several nodes in one table.
//!
//! The command reads the brokers' metrics addresses: this needs no new port and no login, cannot
//! change a node, and each address decides who may read it. Each node has a time limit. A silent
//! node is shown as silent, and no other node waits for it.
//!
//! | file | holds |
//! | --- | --- |
//! | `sources` | list of nodes |
//! | `fetch` | one node's metrics, within bounds |
//! | `series` | from their text to a node's jobs; pure |
//! | `looker` | one thread per node, and the answers of a look |
//! | `board` | successive looks: shares and lateness in an interval; pure |
//! | `table` | the table, and its lines of JSON; pure |
//! | `screen` | the table on a terminal |
#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use super::node_address::{NodeList, parse_list};
use super::text;

mod board;
mod fetch;
mod looker;
mod screen;
mod series;
mod sources;
mod table;

use board::ClusterBoard;
use looker::Looker;

/// Longest time that a look waits for a node.
pub const NODE_PATIENCE: Duration = Duration::from_secs(2);

/// Options of the commands that show several nodes.
#[derive(Debug, Clone, clap::Args)]
pub struct ClusterArgs {
    /// Show several nodes in one table, from their brokers' metrics (docs/metrics.md)
    #[arg(long)]
    pub cluster: bool,
    /// Nodes instead of those in weft.toml: [NAME=]HOST[:PORT] or [NAME=]unix:PATH, with commas
    #[arg(long, value_name = "LIST", value_parser = parse_list, requires = "cluster")]
    pub nodes: Option<NodeList>,
}

impl ClusterArgs {
    fn looker(&self) -> Result<Looker> {
        Looker::start(sources::nodes(self.nodes.as_deref())?, NODE_PATIENCE)
    }
}

/// `weft status --cluster`: one look, with means since the jobs attached.
pub fn status(args: &ClusterArgs, json: bool) -> Result<ExitCode> {
    let mut looker = args.looker()?;
    let mut board = ClusterBoard::new(looker.names());
    board.update(looker.look());
    let terminal = text::terminal_width();
    text::show(&table::line(&board), json, |_| {
        table::page(&board, terminal.unwrap_or(text::USUAL_WIDTH))
    })?;
    Ok(exit_code(&board))
}

/// `weft top --cluster`: looks at intervals until a key, the count or a broken pipe ends it.
pub fn top(args: &ClusterArgs, interval: Duration, count: Option<u64>, json: bool, screen: bool) -> Result<ExitCode> {
    let mut looker = args.looker()?;
    let mut board = ClusterBoard::new(looker.names());
    if screen {
        return screen::run(looker, board, interval);
    }
    board.update(looker.look());
    let mut out = std::io::stdout();
    let mut pages = 0;
    while count.is_none_or(|count| pages < count) {
        std::thread::sleep(interval);
        board.update(looker.look());
        let page = match json {
            true => serde_json::to_string(&table::line(&board))?,
            false => table::page(&board, text::terminal_width().unwrap_or(text::USUAL_WIDTH)),
        };
        if writeln!(out, "{page}").and_then(|()| out.flush()).is_err() {
            return Ok(ExitCode::SUCCESS);
        }
        pages += 1;
    }
    Ok(exit_code(&board))
}

/// Exit code of a view: failure if no node answers.
fn exit_code(board: &ClusterBoard) -> ExitCode {
    match board.nodes().iter().any(|node| node.report.is_ok()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
