// SPDX-License-Identifier: MIT OR Apache-2.0
//! The screen: drawing of the state into a terminal's cells.
#![forbid(unsafe_code)]

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::super::columns::FittedColumn;
use super::super::{status, text, users};
use super::app::TopApp;
use super::board::{JobRole, JobRow};
use super::table;

/// Warnings shown above the jobs; the details have the rest.
const WARNINGS_SHOWN: usize = 3;

/// Devices shown above the jobs.
const DEVICES_SHOWN: usize = 8;

/// Divisor for the details' largest part of the screen.
const DETAILS_PART: u16 = 2;

const KEYS: [(&str, &str); 8] = [
    ("q", "quit"),
    ("?", "help"),
    ("↑↓", "select"),
    ("Enter", "details"),
    ("s", "sort"),
    ("p", "raise priority"),
    ("P", "lower priority"),
    ("space", "pause"),
];

const HELP: [&str; 18] = [
    "q, Esc     end",
    "up, down   select a job (also k, j; Home, End)",
    "Enter, d   details of the selected job",
    "p, +       its priority: one more important",
    "P, -       its priority: one less important",
    "space      stop its processes, or continue them",
    "s          sort by role, GPU, late, memory, name",
    "?          this help; any key closes it",
    "",
    "GPU   part of the last interval in which the GPU",
    "      worked for the job, estimated",
    "late  part of the last interval that a foreground",
    "      job lost to background jobs, or that a",
    "      background job cost foreground jobs",
    "lost  the same in total, as a foreground job",
    "cost  the same in total, as a background job",
    "",
    "docs/outcomes.md explains these figures",
];

/// Colours, or none (NO_COLOR).
#[derive(Debug, Clone, Copy)]
pub struct Palette {
    colours: bool,
}

impl Palette {
    /// From the environment: `NO_COLOR` with any value means no colours.
    pub fn of_environment() -> Palette {
        let none = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Palette { colours: !none }
    }

    fn of(self, colour: Color) -> Style {
        match self.colours {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }

    fn role(self, role: JobRole) -> Style {
        self.of(match role {
            JobRole::First => Color::Green,
            JobRole::Background => Color::Blue,
            JobRole::Waits => Color::Yellow,
            JobRole::Free => Color::DarkGray,
        })
    }
}

/// Draws the whole screen.
pub fn draw(frame: &mut Frame, app: &TopApp, palette: Palette) {
    let screen = frame.area();
    let width = usize::from(screen.width);
    let head = head(app, palette, width);
    let details = if app.details { details(app, width) } else { Vec::new() };
    // From the bottom: a line of keys, then the details; the rest is for the jobs.
    let mut left = screen;
    let footer = cut_bottom(&mut left, 1);
    let below = (details.len() as u16).min(screen.height / DETAILS_PART);
    let below = cut_bottom(&mut left, below);
    let above = cut_top(&mut left, head.len() as u16);
    frame.render_widget(Paragraph::new(head), above);
    frame.render_widget(Paragraph::new(jobs(app, palette, left)), left);
    frame.render_widget(Paragraph::new(details), below);
    frame.render_widget(Paragraph::new(keys(app, palette, width)), footer);
    if app.help {
        help(frame, screen);
    }
}

fn cut_bottom(area: &mut Rect, lines: u16) -> Rect {
    let lines = lines.min(area.height);
    area.height -= lines;
    Rect {
        y: area.y + area.height,
        height: lines,
        ..*area
    }
}

fn cut_top(area: &mut Rect, lines: u16) -> Rect {
    let lines = lines.min(area.height);
    let top = Rect { height: lines, ..*area };
    area.y += lines;
    area.height -= lines;
    top
}

fn head(app: &TopApp, palette: Palette, width: usize) -> Vec<Line<'static>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let warn = palette.of(Color::Yellow);
    let line = |text: String, style| Line::styled(text::cut(&text, width), style);
    let mut lines = vec![line(app.board.headline(), bold)];
    if let Some(gone) = &app.gone {
        let style = palette.of(Color::Red).add_modifier(Modifier::BOLD);
        lines.push(line(format!("{gone}; trying again"), style));
    }
    let devices = app.board.devices();
    for (at, row) in devices.iter().enumerate().take(DEVICES_SHOWN) {
        lines.push(line(table::device(&app.board, at, row, width), palette.of(Color::Cyan)));
    }
    if devices.len() > DEVICES_SHOWN {
        lines.push(line(
            format!("{} more devices", devices.len() - DEVICES_SHOWN),
            Style::new(),
        ));
    }
    let warnings = app.board.warnings();
    for warning in warnings.iter().take(WARNINGS_SHOWN) {
        lines.push(line(warning.clone(), warn));
    }
    if warnings.len() > WARNINGS_SHOWN {
        let more = text::count((warnings.len() - WARNINGS_SHOWN) as u64, "warning", "warnings");
        lines.push(line(format!("! {more} more: weft status"), warn));
    }
    lines
}

fn jobs(app: &TopApp, palette: Palette, area: Rect) -> Vec<Line<'static>> {
    let rows = app.board.jobs(app.sort);
    if rows.is_empty() {
        return vec![Line::raw("no job is attached")];
    }
    let columns = table::jobs(&app.board, app.sort, usize::from(area.width));
    let head: Vec<String> = columns.iter().map(FittedColumn::head).collect();
    let style = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
    let mut lines = vec![Line::styled(head.join("  "), style)];
    let selected = app.selected_row().unwrap_or(0);
    let room = usize::from(area.height).saturating_sub(1).max(1);
    // Keeps the selected row visible.
    let first = (selected + 1).saturating_sub(room);
    for (at, row) in rows.iter().enumerate().skip(first).take(room) {
        let spans = columns.iter().enumerate().flat_map(|(number, column)| {
            let blanks = if number > 0 { "  " } else { "" };
            let style = cell(row, column.title, palette);
            [Span::raw(blanks), Span::styled(column.cell(at), style)]
        });
        let line = Line::from(spans.collect::<Vec<_>>());
        lines.push(match at == selected {
            true => line.style(Style::new().add_modifier(Modifier::REVERSED)),
            false => line,
        });
    }
    lines
}

fn cell(row: &JobRow, title: &str, palette: Palette) -> Style {
    let role = palette.role(row.role);
    match title {
        // Priority 0 is bold.
        table::NAME | table::PRIORITY if row.status.priority == 0 => role.add_modifier(Modifier::BOLD),
        table::NAME | table::PRIORITY | table::STATE | table::GPU_CHART => role,
        table::LATE | table::LOST | table::LATE_CHART if row.is_over() => palette.of(Color::Red),
        _ => Style::new(),
    }
}

fn details(app: &TopApp, width: usize) -> Vec<Line<'static>> {
    let rows = app.board.jobs(app.sort);
    let Some(row) = app.selected_row().and_then(|at| rows.get(at)) else {
        return Vec::new();
    };
    let client = &row.status;
    let device = client.device.as_deref().unwrap_or("no device yet");
    let mut lines = vec![
        format!(
            "{}: client {}, process {}, user {}, {device}, attached for {}",
            status::called(client),
            client.client,
            client.pid,
            users::name_of(client.uid),
            text::span(client.attached_s)
        ),
        client.command.clone(),
    ];
    lines.extend(status::details(client, true));
    let warnings = client.outcome.iter().flat_map(|outcome| &outcome.warnings);
    lines.extend(warnings.map(|warning| format!("! {}", warning.text)));
    let folded = lines.iter().filter(|line| !line.is_empty());
    let folded = folded.flat_map(|line| text::fold(line, width, "  "));
    let rule = Line::raw("─".repeat(width));
    [rule].into_iter().chain(folded.map(Line::raw)).collect()
}

fn keys(app: &TopApp, palette: Palette, width: usize) -> Line<'static> {
    if let Some(notice) = &app.notice {
        return Line::styled(text::cut(notice, width), palette.of(Color::Red));
    }
    let mut spans = Vec::new();
    let mut used = 0;
    for (key, does) in KEYS {
        let does = match key {
            "s" => format!(" {does}: {}  ", app.sort.name()),
            _ => format!(" {does}  "),
        };
        let needs = text::width(key) + text::width(does.trim_end());
        if used + needs > width {
            break;
        }
        used += text::width(key) + text::width(&does);
        spans.extend([
            Span::styled(key, Style::new().add_modifier(Modifier::BOLD)),
            Span::raw(does),
        ]);
    }
    Line::from(spans)
}

fn help(frame: &mut Frame, screen: Rect) {
    let inner = HELP.iter().map(|line| text::width(line)).max().unwrap_or(0) as u16;
    let width = (inner + 4).min(screen.width);
    let height = (HELP.len() as u16 + 2).min(screen.height);
    let area = Rect {
        x: screen.x + (screen.width - width) / 2,
        y: screen.y + (screen.height - height) / 2,
        width,
        height,
    };
    let lines: Vec<Line> = HELP.iter().map(|line| Line::raw(format!(" {line}"))).collect();
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" weft top ")), area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::buffer::Buffer;

    use super::super::app::BrokerNews;
    use super::super::app::tests::{app, press};
    use super::super::board::tests::answer;
    use super::*;

    const COLOURS: Palette = Palette { colours: true };

    fn drawn(app: &TopApp, width: u16, height: u16, palette: Palette) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, app, palette)).expect("drawn");
        terminal.backend().buffer().clone()
    }

    fn lines(buffer: &Buffer) -> Vec<String> {
        let cells: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
        let rows = cells.chunks(usize::from(buffer.area.width));
        rows.map(|row| row.concat().trim_end().to_string()).collect()
    }

    fn style_of(buffer: &Buffer, word: &str) -> Style {
        let row = lines(buffer).iter().position(|line| line.contains(word));
        let row = row.unwrap_or_else(|| panic!("{word}: {:#?}", lines(buffer)));
        let line = &lines(buffer)[row];
        let column = line[..line.find(word).expect("there")].chars().count();
        buffer[(column as u16, row as u16)].style()
    }

    #[test]
    fn what_people_look_for_is_there_at_any_width() {
        for (width, wanted) in [
            (60, &["late"][..]),
            (100, &["4711", "cost", "GPU, 2 min", "▄"]),
            (200, &["4711", "198 ms (0.2 %)", "late, 2 min", "resnet", "launch/s"]),
        ] {
            let app = app(100);
            let shown = lines(&drawn(&app, width, 24, COLOURS));
            let page = shown.join("\n");
            assert_eq!(shown.len(), 24);
            for part in [
                "policy weft, 2 jobs",
                "NVIDIA",
                "6.00 GiB of 16.0 GiB",
                "! client 2: the foreground job has no profile",
                "q quit",
            ] {
                assert!(page.contains(part), "{width}: {part} is not in\n{page}");
            }
            let row = |name: &str| shown.iter().find(|line| line.starts_with(name)).expect("a row").clone();
            for part in ["serve.py", "foreground", "40 %", "0.2 %", "3.00 GiB"] {
                assert!(row("serve.py").contains(part), "{width}: {part} is not in\n{page}");
            }
            for part in ["train.py", "background", "50 %"] {
                assert!(row("train.py").contains(part), "{width}: {part} is not in\n{page}");
            }
            for part in wanted {
                assert!(page.contains(part), "{width}: {part} is not in\n{page}");
            }
            assert!(page.contains("GPU  90 %"), "{page}");
        }
    }

    #[test]
    fn any_size_is_drawn() {
        let mut app = app(3);
        for step in 0..3 {
            for width in [1, 2, 10, 59, 60, 61, 79, 80, 139, 140, 300] {
                for height in [1, 2, 3, 10, 24, 60] {
                    drawn(&app, width, height, COLOURS);
                }
            }
            match step {
                0 => app.details = true,
                _ => app.help = true,
            }
        }
        drawn(&TopApp::default(), 60, 24, COLOURS);
    }

    #[test]
    fn roles_have_colours_and_no_color_takes_them() {
        let app = app(3);
        let buffer = drawn(&app, 100, 24, COLOURS);
        assert_eq!(style_of(&buffer, "serve.py").fg, Some(Color::Green));
        assert_eq!(style_of(&buffer, "train.py").fg, Some(Color::Blue));
        assert_eq!(style_of(&buffer, "! client 2").fg, Some(Color::Yellow));
        assert!(
            style_of(&buffer, "serve.py")
                .add_modifier
                .contains(Modifier::BOLD | Modifier::REVERSED)
        );
        let plain = drawn(&app, 100, 24, Palette { colours: false });
        assert_eq!(lines(&plain), lines(&buffer));
        let colours = |cell: &ratatui::buffer::Cell| (cell.fg, cell.bg) != (Color::Reset, Color::Reset);
        assert!(!plain.content().iter().any(colours));
        assert!(style_of(&plain, "serve.py").add_modifier.contains(Modifier::REVERSED));
    }

    #[test]
    fn lateness_over_what_is_allowed_is_red() {
        let mut app = app(3);
        let mut over = answer(3);
        over.clients[0].slowdown_allowed = Some(0.001);
        app.hear(BrokerNews::Status(Box::new(over), 3.0));
        let buffer = drawn(&app, 60, 24, COLOURS);
        assert_eq!(style_of(&buffer, "0.2 %").fg, Some(Color::Red));
    }

    #[test]
    fn details_help_and_a_missing_broker_are_shown() {
        let mut app = app(3);
        press(&mut app, 'j');
        press(&mut app, 'd');
        let page = lines(&drawn(&app, 80, 24, COLOURS)).join("\n");
        for part in [
            "train.py: client 2, process 4712",
            "python -u /home/ann/train.py --lr 0.001",
            "foreground job 4.00 ms (0.2 %)",
            "serve.py",
        ] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
        press(&mut app, '?');
        let page = lines(&drawn(&app, 60, 24, COLOURS)).join("\n");
        assert!(page.contains("sort by role, GPU, late, memory, name"), "{page}");
        app.hear(BrokerNews::Gone("no broker listens at /run/x".to_string()));
        let page = lines(&drawn(&app, 80, 24, COLOURS)).join("\n");
        assert!(page.contains("no broker listens at /run/x; trying again"), "{page}");
        app.hear(BrokerNews::Refused("client 1 is user 7's".to_string()));
        let last = lines(&drawn(&app, 80, 24, COLOURS)).pop();
        assert_eq!(last.as_deref(), Some("client 1 is user 7's"));
    }

    #[test]
    fn the_selected_row_is_in_sight() {
        let mut app = app(2);
        let mut many = answer(2);
        for client in 3..40 {
            let job = weft_api::status::ClientStatus {
                client,
                name: format!("job{client}"),
                ..many.clients[1].clone()
            };
            many.clients.push(job);
        }
        app.hear(BrokerNews::Status(Box::new(many), 2.0));
        let shows = |app: &TopApp, name: &str| {
            lines(&drawn(app, 80, 12, COLOURS))
                .iter()
                .any(|line| line.starts_with(name))
        };
        assert!(shows(&app, "serve.py") && !shows(&app, "job39"));
        press(&mut app, 'G');
        assert!(!shows(&app, "serve.py") && shows(&app, "job39"));
    }
}
