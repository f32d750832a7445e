// SPDX-License-Identifier: MIT OR Apache-2.0
//! The columns of jobs and the lines of devices, for the screen and for plain pages.
#![forbid(unsafe_code)]

use super::super::columns::{self, FittedColumn, TextColumn};
use super::super::{history, status, text, users};
use super::board::{Board, DeviceOnBoard, JobRow, Past, SortKey};

/// Lateness of a full bar of a chart, part of the time: more than most jobs allow.
const FULL_LATE: f64 = 0.05;

/// Characters of a chart on a narrow and on a wide terminal.
const NARROW_CHART: usize = 10;
const WIDE_CHART: usize = 20;

/// Longest name of a device next to which its chart fits, characters.
const DEVICE_NAME: usize = 24;

/// Width from which charts are wide, columns.
const WIDE_COLUMNS: usize = 140;

/// Characters of a job's state: `background, waits`, and on a narrow terminal `foreground`.
const STATE_WIDTH: usize = 17;
const NARROW_STATE: usize = 10;

/// Titles of columns for which the screen colours cells.
pub const NAME: &str = "name";
pub const PRIORITY: &str = "prio";
pub const STATE: &str = "state";
pub const LATE: &str = "late";
pub const LOST: &str = "lost";
pub const GPU_CHART: &str = "GPU, 2 min";
pub const LATE_CHART: &str = "late, 2 min";

/// A part of the GPU in a cell.
pub fn part(gpu: &Past, at_most: bool) -> String {
    // Whole percents, because more digits flicker.
    let shown = |part| history::bounded((part, at_most), |part: f64| format!("{:.0} %", part * 100.0));
    gpu.last().map_or("-".to_string(), shown)
}

/// Jobs in columns that fit `width`.
pub fn jobs(board: &Board, sort: SortKey, width: usize) -> Vec<FittedColumn> {
    let rows = board.jobs(sort);
    let rows = &rows[..];
    let shared = board.latest().is_some_and(|status| status.broker.shared);
    let outcome = |job: &&JobRow| job.status.outcome.clone().unwrap_or_default();
    let chart = match width {
        0..WIDE_COLUMNS => NARROW_CHART,
        _ => WIDE_CHART,
    };
    let state = match width {
        0..text::USUAL_WIDTH => NARROW_STATE,
        _ => STATE_WIDTH,
    };
    let interval = board.usual_s();
    let mut all = vec![
        TextColumn::words(NAME, 0, 14).with(rows, |job| status::called(&job.status)),
        TextColumn::figures("id", 10).with(rows, |job| job.status.client.to_string()),
        TextColumn::figures("pid", 6).with(rows, |job| job.status.pid.to_string()),
    ];
    if shared {
        all.push(TextColumn::words("user", 5, 6).with(rows, |job| users::name_of(job.status.uid)));
    }
    if board.devices().len() > 1 {
        let device = |job: &&JobRow| job.device.map_or("-".to_string(), |at| at.to_string());
        all.push(TextColumn::figures("on", 4).with(rows, device));
    }
    all.extend([
        TextColumn::figures(PRIORITY, 1).with(rows, |job| job.status.priority.to_string()),
        TextColumn::words(STATE, 1, state)
            .steady(state)
            .with(rows, |job| status::role(&job.status)),
        TextColumn::figures("GPU", 1)
            .steady(5)
            .with(rows, |job| part(&job.gpu, job.gpu_at_most)),
        TextColumn::figures(GPU_CHART, 5).with(rows, |job| job.gpu.chart(chart, interval, 1.0)),
        TextColumn::figures(LATE, 2)
            .steady(6)
            .with(rows, |job| job.late.last().map_or("-".to_string(), text::percent)),
        TextColumn::figures(LATE_CHART, 7).with(rows, |job| job.late.chart(chart, interval, FULL_LATE)),
        TextColumn::figures(LOST, 3).with_short(rows, |job| history::late(outcome(job).lost)),
        TextColumn::figures("may lose", 8).with(rows, |job| {
            status::allowed(&job.status).map_or("-".to_string(), text::percent)
        }),
        TextColumn::figures("cost", 4).with_short(rows, |job| history::late(outcome(job).cost)),
        TextColumn::figures("of plain", 9).with(rows, |job| history::figures(&outcome(job)).of_plain),
        TextColumn::figures("memory", 3).with(rows, |job| text::size(job.status.memory)),
        TextColumn::figures("launch/s", 9).with(rows, |job| format!("{:.0}", job.launches_per_s)),
        TextColumn::words("profile", 7, 8).with(rows, |job| status::profile(&job.status)),
        TextColumn::words("command", 8, 24).with(rows, |job| text::command(&job.status.command, text::LONG_COMMAND)),
    ]);
    columns::fit(all, width)
}

/// The line of a device, at most `width` columns wide.
pub fn device(board: &Board, at: usize, row: &DeviceOnBoard, width: usize) -> String {
    let several = board.devices().len() > 1;
    let number = if several { format!("{at}: ") } else { String::new() };
    let memory = match row.memory {
        Some(memory) => format!("{} of {}", text::size(row.held), text::size(memory)),
        None => text::size(row.held),
    };
    let jobs = text::count(row.jobs as u64, "job", "jobs");
    let figures = format!("{jobs}  {memory}  GPU {:>5}", part(&row.gpu, row.gpu_at_most));
    let chart = device_chart(board, row);
    let rest = match text::width(&figures) + 2 + NARROW_CHART + DEVICE_NAME <= width {
        true => format!("{figures}  {chart}"),
        false => figures,
    };
    // The name is cut if needed.
    let room = width.saturating_sub(text::width(&rest) + 2);
    let called = text::cut(&format!("{number}{}", row.called), room);
    text::cut(&format!("{called}  {rest}"), width)
}

/// The chart of a device.
pub fn device_chart(board: &Board, row: &DeviceOnBoard) -> String {
    row.gpu.chart(NARROW_CHART, board.usual_s(), 1.0)
}

/// A page of plain text, no line wider than `width`.
pub fn page(board: &Board, width: usize) -> String {
    let mut page = text::fold(&board.headline(), width, "  ");
    let devices = board.devices().iter().enumerate();
    page.extend(devices.map(|(at, row)| device(board, at, row, width).trim_end().to_string()));
    for warning in board.warnings() {
        page.extend(text::fold(&warning, width, "  "));
    }
    match board.jobs(SortKey::Role).is_empty() {
        true => page.push("no job is attached".to_string()),
        false => page.extend(columns::lines(&jobs(board, SortKey::Role, width))),
    }
    page.join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::board::tests::{answer, board};
    use super::*;

    #[test]
    fn columns_go_by_importance() {
        let board = board(5);
        let titles = |width: usize| {
            let columns = jobs(&board, SortKey::Role, width);
            columns.iter().map(|column| column.title).collect::<Vec<_>>()
        };
        assert_eq!(titles(60), [NAME, PRIORITY, STATE, "GPU", LATE, LOST, "memory"]);
        let medium = titles(100);
        for title in ["pid", "cost", GPU_CHART] {
            assert!(medium.contains(&title), "{title}: {medium:?}");
        }
        let wide = titles(200);
        for title in [
            "pid", "cost", GPU_CHART, LATE_CHART, "profile", "may lose", "launch/s", "id",
        ] {
            assert!(wide.contains(&title), "{title}: {wide:?}");
        }
        assert!(titles(400).contains(&"command"));
    }

    #[test]
    fn a_plain_page_fits_and_says_what_people_look_for() {
        let mut board = board(5);
        for (width, shared) in [(60, false), (60, true), (80, true), (100, false), (200, false)] {
            let mut status = answer(5);
            status.broker.shared = shared;
            board.update(status, 5.0);
            let page = page(&board, width);
            for line in page.lines() {
                assert!(text::width(line) <= width, "{width}: {line}");
            }
            for part in [
                "policy weft, 2 jobs,",
                "6.00 GiB of 16.0 GiB",
                "serve.py",
                "train.py",
                "foreground",
                "0.2 %",
                "! client 2:",
            ] {
                assert!(page.contains(part), "{width}: {part} is not in\n{page}");
            }
        }
        let nobody = Board::default();
        assert!(page(&nobody, 60).contains("no job is attached"));
    }

    #[test]
    fn a_figure_that_is_only_a_bound_has_a_mark() {
        let mut board = board(1);
        let mut status = answer(2);
        let outcome = status.clients[1].outcome.as_mut().expect("there");
        // The time may contain other jobs' work.
        (outcome.gpu_least_ns, outcome.gpu_most_ns) = (Some(0), Some(1_500_000_000));
        board.update(status, 2.0);
        let page = page(&board, 200);
        for part in [" 40 %", "≤75 %", "GPU ≤100 %"] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
        let line = serde_json::to_value(super::super::json::line(&board)).expect("JSON");
        let marks = [&line["jobs"][0], &line["jobs"][1], &line["devices"][0]].map(|row| row["gpu_at_most"].clone());
        assert_eq!(marks, [false, true, true]);
    }

    #[test]
    fn devices_have_numbers_where_there_are_several() {
        let mut board = board(2);
        let mut two = answer(2);
        two.clients[1].device_uuid = Some("ab".repeat(16));
        board.update(two, 2.0);
        let lines: Vec<_> = (0..2).map(|at| device(&board, at, &board.devices()[at], 80)).collect();
        assert!(lines[0].starts_with("0: NVIDIA A GPU (0f0f0f0f)  1 job"), "{lines:?}");
        assert!(lines[1].starts_with("1: GPU abababab  1 job  3.00 GiB"), "{lines:?}");
        let columns = jobs(&board, SortKey::Role, 80);
        let on = columns.iter().find(|column| column.title == "on").expect("there");
        assert_eq!(on.cells, ["0", "1"]);
    }
}
