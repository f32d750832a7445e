// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pages in HTML, with the contents of `weft top` and `weft history`. Pure.
//!
//! Every text of a job passes [`escape`].
#![forbid(unsafe_code)]

use std::fmt::Write;

use weft_api::history::HistoryRow;

use super::super::columns::{self, FittedColumn};
use super::super::report::{document, escape};
use super::super::top::board::{Board, DeviceOnBoard, JobRole, JobRow, SortKey};
use super::super::top::table;
use super::super::{history, status, text};

/// Fetches the live part anew each second.
pub(super) const SCRIPT: &str = include_str!("live.js");

/// Style of these pages, in addition to a report's.
const MORE_STYLE: &str = include_str!("style.css");

/// Links to the other pages, at the top of each.
pub(super) const NAV: &str =
    "<nav><a href=\"/\">Now</a><a href=\"/report\">Report</a><a href=\"/history\">History</a></nav>\n";

/// Width of the tables in characters: room for all columns, because the page scrolls.
const WIDTH: usize = 1_000;

/// Number of jobs that ended last on the live page.
const ENDED_SHOWN: usize = 10;

/// The live page with this content.
pub(super) fn live_page(content: &str) -> String {
    let more =
        "<noscript><meta http-equiv=\"refresh\" content=\"2\"></noscript>\n<script src=\"/live.js\" defer></script>\n";
    whole("weft", more, content)
}

/// The page of the history.
pub(super) fn history_page(rows: &[HistoryRow]) -> String {
    let mut content = "<h1>Ended jobs</h1>\n".to_string();
    match rows.is_empty() {
        true => content.push_str("<p>No job has ended here.</p>\n"),
        false => {
            let marks: Vec<_> = rows.iter().map(|row| (row.pid, "")).collect();
            jobs(&mut content, &columns::fit(history::columns(rows), WIDTH), &marks);
        }
    }
    whole("weft: ended jobs", "", &content)
}

/// A page without content, with the reason.
pub(super) fn reason_page(why: &str) -> String {
    whole("weft", "", &format!("<p>{}</p>\n", escape(why)))
}

fn whole(title: &str, head: &str, content: &str) -> String {
    let body = format!("<body class=\"live\">\n{NAV}<main>\n{content}</main>\n</body>\n");
    document(title, &format!("<style>\n{MORE_STYLE}</style>\n{head}"), &body)
}

/// The content of the live page. `gone`: why the broker did not answer.
pub(super) fn live(board: &Board, gone: Option<&str>) -> String {
    let mut page = String::new();
    if let Some(gone) = gone {
        let _ = writeln!(page, "<p class=\"warning\">{}; trying again</p>", escape(gone));
    }
    let Some(latest) = board.latest() else {
        return page;
    };
    let _ = writeln!(page, "<p class=\"soft\">{}</p>", escape(&board.headline()));
    page.push_str("<div class=\"cards\">\n");
    for (at, row) in board.devices().iter().enumerate() {
        device(&mut page, board, at, row);
    }
    page.push_str("</div>\n");
    for warning in board.warnings() {
        let warning = escape(warning.trim_start_matches("! "));
        let _ = writeln!(page, "<p class=\"warning\">{warning}</p>");
    }
    let rows = board.jobs(SortKey::Role);
    match rows.is_empty() {
        true => page.push_str("<p>No job is attached.</p>\n"),
        false => {
            let marks: Vec<_> = rows.iter().map(|job| (job.status.pid, colour(job))).collect();
            jobs(&mut page, &table::jobs(board, SortKey::Role, WIDTH), &marks);
        }
    }
    let ended = latest.ended.get(..ENDED_SHOWN).unwrap_or(&latest.ended);
    if !ended.is_empty() {
        page.push_str("<h3>Ended</h3>\n");
        let marks: Vec<_> = ended.iter().map(|ended| (ended.last.pid, "")).collect();
        jobs(&mut page, &columns::fit(status::ended(ended), WIDTH), &marks);
    }
    page
}

fn device(page: &mut String, board: &Board, at: usize, row: &DeviceOnBoard) {
    let number = match board.devices().len() {
        1 => String::new(),
        _ => format!("{at}: "),
    };
    let busy = format!("GPU {}", table::part(&row.gpu, row.gpu_at_most));
    let memory = match row.memory {
        Some(memory) => format!("{} of {}", text::size(row.held), text::size(memory)),
        None => text::size(row.held),
    };
    let _ = writeln!(
        page,
        "<div class=\"card\"><b>{}</b><span class=\"big\">{busy}</span>\
         <div class=\"chart\">{}</div><div class=\"soft\">{}, {memory}</div></div>",
        escape(&format!("{number}{}", row.called)),
        escape(&table::device_chart(board, row)),
        text::count(row.jobs as u64, "job", "jobs"),
    );
}

/// The colour of a job's role, as in a report.
fn colour(job: &JobRow) -> &'static str {
    match job.role {
        JobRole::First if job.status.mode == "alone" => "k-alone",
        JobRole::First => "k-foreground",
        JobRole::Background => "k-background",
        JobRole::Waits => "k-memory",
        JobRole::Free => "",
    }
}

/// A table of jobs. `marks`: each job's process, whose report the first cell leads to, and its
/// colour. A command has a row of its own, because the figures leave too little room.
fn jobs(page: &mut String, columns: &[FittedColumn], marks: &[(u32, &str)]) {
    let (commands, columns): (Vec<_>, Vec<_>) = columns.iter().partition(|column| column.title == "command");
    let class = |column: &FittedColumn| match (column.title, column.figures) {
        (table::GPU_CHART | table::LATE_CHART, _) => " class=\"chart\"",
        (_, true) => " class=\"n\"",
        _ => "",
    };
    page.push_str("<div class=\"scroll\"><table class=\"jobs\"><tr>");
    for column in &columns {
        let _ = write!(page, "<th{}>{}</th>", class(column), escape(column.title));
    }
    page.push_str("</tr>\n");
    for (row, (pid, colour)) in marks.iter().enumerate() {
        page.push_str("<tr class=\"job\">");
        for (at, column) in columns.iter().enumerate() {
            let cell = escape(column.cells.get(row).map_or("", String::as_str));
            let _ = match at {
                0 => write!(
                    page,
                    "<td><i class=\"key {colour}\"></i><a href=\"/report/{pid}\">{cell}</a></td>"
                ),
                _ => write!(page, "<td{}>{cell}</td>", class(column)),
            };
        }
        page.push_str("</tr>\n");
        for command in commands.iter().filter_map(|column| column.cells.get(row)) {
            let (all, command) = (columns.len(), escape(command));
            let _ = writeln!(page, "<tr class=\"command\"><td colspan=\"{all}\">{command}</td></tr>");
        }
    }
    page.push_str("</table></div>\n");
}

#[cfg(test)]
mod tests {
    use super::super::super::top::board::tests::{answer, board};
    use super::*;

    #[test]
    fn a_page_shows_what_top_shows_and_what_people_say_is_text() {
        let mut board = board(3);
        let mut status = answer(3);
        status.clients[1].name = "<script>alert(1)</script>".to_string();
        status.clients[1].command = "python \"x\" <img src=x>".to_string();
        board.update(status, 3.0);
        let page = live_page(&live(&board, Some("<b>gone</b>")));
        for part in [
            "policy weft, 2 jobs",
            "GPU 90 %",
            "6.00 GiB of 16.0 GiB",
            "<a href=\"/report/4711\">serve.py</a>",
            "<a href=\"/report/4712\">&lt;script&gt;alert(1)&lt;/script&gt;</a>",
            "&lt;img src=x&gt;",
            "&lt;b&gt;gone&lt;/b&gt;; trying again",
            "k-foreground",
            "0.2 %",
        ] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
        let mut status = answer(4);
        status.clients[1].outcome.as_mut().expect("there").gpu_least_ns = Some(0);
        board.update(status, 4.0);
        assert!(live(&board, None).contains("GPU ≤90 %"));
        for bad in ["<script>", "<img", "http:", "https:", "url(", "@import", "<b>gone"] {
            assert!(!page.contains(bad), "{bad} is in\n{page}");
        }
        assert!(live(&Board::default(), None).is_empty());
        assert!(history_page(&[]).contains("No job has ended here."));
        assert!(reason_page("<b>").contains("<p>&lt;b&gt;</p>"));
    }
}
