// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables that fit a width: long cells are replaced by short ones, the least important columns are
//! dropped, words are cut. A row is never wider than the width.
//!
//! Pure: a table and a width in, columns out.
#![forbid(unsafe_code)]

use super::text::{self, PageLine};

/// Blanks between two columns.
const BETWEEN: usize = 2;

/// A column of a table, before its width is known.
#[derive(Debug, Clone)]
pub struct TextColumn {
    title: &'static str,
    /// Rank: columns with higher ranks are dropped first; those of rank 0 stay.
    rank: u8,
    /// Whether it holds figures, which are right-aligned and never cut.
    figures: bool,
    /// Characters that words keep at least, while other columns can be dropped.
    least: usize,
    /// Minimum width in characters, whatever the cells are.
    steady: usize,
    cells: Vec<(String, Option<String>)>,
}

impl TextColumn {
    /// A column of words, of which `least` characters are enough.
    pub fn words(title: &'static str, rank: u8, least: usize) -> TextColumn {
        TextColumn {
            title,
            rank,
            figures: false,
            least,
            steady: 0,
            cells: Vec::new(),
        }
    }

    /// A column of figures.
    pub fn figures(title: &'static str, rank: u8) -> TextColumn {
        TextColumn {
            figures: true,
            ..TextColumn::words(title, rank, 0)
        }
    }

    /// With a width of at least `steady` characters, so that columns do not move as cells change.
    pub fn steady(self, steady: usize) -> TextColumn {
        TextColumn { steady, ..self }
    }

    /// With a cell for each of these rows.
    pub fn with<T>(self, rows: &[T], cell: impl Fn(&T) -> String) -> TextColumn {
        let cells = rows.iter().map(|row| (cell(row), None)).collect();
        TextColumn { cells, ..self }
    }

    /// With a cell for each of these rows, and a shorter one for narrow tables.
    pub fn with_short<T>(self, rows: &[T], cells: impl Fn(&T) -> (String, String)) -> TextColumn {
        let both = |row| {
            let (long, short) = cells(row);
            (long, Some(short))
        };
        let cells = rows.iter().map(both).collect();
        TextColumn { cells, ..self }
    }

    fn natural(&self, short: bool) -> usize {
        let cells = self.cells.iter().map(|cell| text::width(pick(cell, short)));
        cells.chain([text::width(self.title), self.steady]).max().unwrap_or(0)
    }

    fn least(&self, short: bool) -> usize {
        let natural = self.natural(short);
        match self.figures {
            true => natural,
            false => natural.min(self.least.max(text::width(self.title))),
        }
    }
}

fn pick((long, short): &(String, Option<String>), wants_short: bool) -> &str {
    match short {
        Some(short) if wants_short => short,
        _ => long,
    }
}

/// A column with its width.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FittedColumn {
    /// Its title.
    pub title: &'static str,
    /// Whether its cells are right-aligned.
    pub figures: bool,
    /// Width, characters.
    pub width: usize,
    /// Cells, none wider than `width`.
    pub cells: Vec<String>,
}

impl FittedColumn {
    /// The title in the column's width.
    pub fn head(&self) -> String {
        self.padded(&text::cut(self.title, self.width))
    }

    /// A row's cell in the column's width.
    pub fn cell(&self, row: usize) -> String {
        self.padded(self.cells.get(row).map_or("", String::as_str))
    }

    fn padded(&self, cell: &str) -> String {
        let blanks = " ".repeat(self.width.saturating_sub(text::width(cell)));
        match self.figures {
            true => format!("{blanks}{cell}"),
            false => format!("{cell}{blanks}"),
        }
    }
}

/// The columns that fit `width` characters.
pub fn fit(mut columns: Vec<TextColumn>, width: usize) -> Vec<FittedColumn> {
    let needed = |widths: &[usize]| widths.iter().sum::<usize>() + BETWEEN * widths.len().saturating_sub(1);
    loop {
        let least: Vec<usize> = columns.iter().map(|column| column.least(true)).collect();
        if needed(&least) <= width {
            break;
        }
        // Among columns of equal rank, the rightmost.
        let goes = columns.iter().enumerate().max_by_key(|(_, column)| column.rank);
        match goes.filter(|(_, column)| column.rank > 0).map(|(at, _)| at) {
            Some(at) => drop(columns.remove(at)),
            None => break,
        }
    }
    // The remaining width goes to the most important column first.
    let mut short = vec![true; columns.len()];
    let mut widths: Vec<usize> = columns.iter().map(|column| column.least(true)).collect();
    let mut by_rank: Vec<usize> = (0..columns.len()).collect();
    by_rank.sort_by_key(|at| columns[*at].rank);
    for at in by_rank {
        let room = (width + widths[at]).saturating_sub(needed(&widths));
        let long = columns[at].natural(false);
        short[at] = long > room;
        widths[at] = match short[at] {
            true => columns[at].natural(true).min(room).max(widths[at]),
            false => long,
        };
    }
    // Cells are cut only when no column can be dropped; figures are cut last.
    while needed(&widths) > width {
        let can = (0..columns.len()).filter(|at| widths[*at] > 1);
        let Some(widest) = can.max_by_key(|at| (!columns[*at].figures, widths[*at])) else {
            break;
        };
        widths[widest] -= 1;
    }
    let fitted = columns.into_iter().zip(short).zip(widths);
    fitted
        .map(|((column, short), width)| FittedColumn {
            title: column.title,
            figures: column.figures,
            width,
            cells: column
                .cells
                .iter()
                .map(|cell| text::cut(pick(cell, short), width))
                .collect(),
        })
        .collect()
}

/// The table in `width` characters, with its head.
pub fn rows(columns: Vec<TextColumn>, width: usize) -> impl Iterator<Item = PageLine> {
    lines(&fit(columns, width)).into_iter().map(PageLine::Row)
}

/// The table's lines with its head, without trailing blanks.
pub fn lines(columns: &[FittedColumn]) -> Vec<String> {
    let rows = columns.iter().map(|column| column.cells.len()).max().unwrap_or(0);
    let line = |cells: Vec<String>| cells.join(&" ".repeat(BETWEEN)).trim_end().to_string();
    let head = line(columns.iter().map(FittedColumn::head).collect());
    let rows = (0..rows).map(|row| line(columns.iter().map(|column| column.cell(row)).collect()));
    [head].into_iter().chain(rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Vec<TextColumn> {
        let rows = [
            ("train.py", "35.0 ms (0.2 %)", "0.2 %"),
            ("a-name-of-many-letters", "-", "-"),
        ];
        vec![
            TextColumn::words("name", 0, 10).with(&rows, |row| row.0.to_string()),
            TextColumn::figures("lost", 1).with_short(&rows, |row| (row.1.to_string(), row.2.to_string())),
            TextColumn::words("profile", 3, 6).with(&rows, |_| "none".to_string()),
            TextColumn::figures("pid", 2).with(&rows, |_| "4711".to_string()),
        ]
    }

    fn titles(width: usize) -> Vec<&'static str> {
        fit(table(), width).iter().map(|column| column.title).collect()
    }

    #[test]
    fn all_is_shown_where_there_is_room() {
        assert_eq!(
            lines(&fit(table(), 54)),
            [
                "name                               lost  profile   pid",
                "train.py                35.0 ms (0.2 %)  none     4711",
                "a-name-of-many-letters                -  none     4711",
            ]
        );
    }

    #[test]
    fn figures_get_short_then_columns_go_and_words_are_cut() {
        assert_eq!(
            lines(&fit(table(), 53))[1],
            "train.py                0.2 %  none     4711"
        );
        assert_eq!(titles(32), ["name", "lost", "profile", "pid"]);
        assert_eq!(lines(&fit(table(), 32))[2], "a-name-of…      -  none     4711");
        assert_eq!(titles(31), ["name", "lost", "pid"]);
        assert_eq!(titles(22), ["name", "lost"]);
        assert_eq!(titles(16), ["name"]);
        assert_eq!(lines(&fit(table(), 3))[1], "tr…");
    }

    #[test]
    fn no_line_is_wider() {
        for width in 1..80 {
            for line in lines(&fit(table(), width)) {
                assert!(text::width(&line) <= width, "{width}: {line}");
            }
        }
    }
}
