//! The table on a terminal.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::Paragraph;

use super::super::terminal;
use super::board::ClusterBoard;
use super::looker::{Looker, NodeAnswer};
use super::table;

/// Shows the table until the user leaves it.
pub(super) fn run(mut looker: Looker, mut board: ClusterBoard, interval: Duration) -> Result<ExitCode> {
    let (tells, answers) = channel();
    let looks = move || {
        loop {
            let begin = Instant::now();
            if tells.send(looker.look()).is_err() {
                return;
            }
            std::thread::sleep(interval.saturating_sub(begin.elapsed()));
        }
    };
    let thread = std::thread::Builder::new().name("weft-nodes".into());
    thread.spawn(looks).context("cannot start a thread")?;
    terminal::with_terminal(|screen, signal| show(screen, &mut board, &answers, signal))
}

/// Effect of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScrollKey {
    Quit,
    /// Scrolls to this line.
    To(usize),
}

/// Effect of a key while `page` of `lines` lines are shown, the first of them `at`.
fn key(key: KeyEvent, at: usize, page: usize, lines: usize) -> ScrollKey {
    let last = lines.saturating_sub(page);
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => ScrollKey::Quit,
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => ScrollKey::Quit,
        KeyCode::Up | KeyCode::Char('k') => ScrollKey::To(at.saturating_sub(1)),
        KeyCode::Down | KeyCode::Char('j') => ScrollKey::To((at + 1).min(last)),
        KeyCode::PageUp => ScrollKey::To(at.saturating_sub(page)),
        KeyCode::PageDown | KeyCode::Char(' ') => ScrollKey::To((at + page).min(last)),
        KeyCode::Home | KeyCode::Char('g') => ScrollKey::To(0),
        KeyCode::End | KeyCode::Char('G') => ScrollKey::To(last),
        _ => ScrollKey::To(at),
    }
}

fn show(
    screen: &mut DefaultTerminal,
    board: &mut ClusterBoard,
    answers: &Receiver<Vec<NodeAnswer>>,
    signal: &AtomicUsize,
) -> std::io::Result<()> {
    let (mut at, mut changed) = (0, true);
    let (mut page, mut count) = (0, 0);
    while signal.load(Ordering::Relaxed) == 0 {
        if std::mem::take(&mut changed) {
            let size = screen.size()?;
            let text = table::page(board, usize::from(size.width).max(1));
            // The first line does not scroll.
            let mut lines = text.lines();
            let head = lines.next().unwrap_or_default();
            let rest: Vec<&str> = lines.collect();
            (page, count) = (usize::from(size.height).saturating_sub(1), rest.len());
            at = at.min(count.saturating_sub(page));
            let shown = rest.into_iter().skip(at).take(page).map(Line::raw);
            let bold = Style::new().add_modifier(Modifier::BOLD);
            let all = std::iter::once(Line::styled(head, bold)).chain(shown);
            let text = Text::from(all.collect::<Vec<_>>());
            screen.draw(|frame| frame.render_widget(Paragraph::new(text), frame.area()))?;
        }
        if event::poll(terminal::STEP)? {
            changed = true;
            if let Event::Key(pressed) = event::read()?
                && pressed.kind == KeyEventKind::Press
            {
                match key(pressed, at, page, count) {
                    ScrollKey::Quit => break,
                    ScrollKey::To(line) => at = line,
                }
            }
        }
        while let Ok(answer) = answers.try_recv() {
            board.update(answer);
            changed = true;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_move_within_the_lines() {
        let of = |code: KeyCode, at| key(KeyEvent::from(code), at, 10, 25);
        for (code, at, to) in [
            (KeyCode::Down, 0, 1),
            (KeyCode::Down, 15, 15),
            (KeyCode::Up, 0, 0),
            (KeyCode::PageDown, 3, 13),
            (KeyCode::PageDown, 13, 15),
            (KeyCode::PageUp, 13, 3),
            (KeyCode::Char('G'), 0, 15),
            (KeyCode::Char('g'), 15, 0),
            (KeyCode::Char('x'), 7, 7),
        ] {
            assert_eq!(of(code, at), ScrollKey::To(to), "{code:?}");
        }
        assert_eq!(of(KeyCode::Char('q'), 3), ScrollKey::Quit);
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(key(control, 0, 10, 25), ScrollKey::Quit);
        assert_eq!(key(KeyEvent::from(KeyCode::Down), 0, 30, 25), ScrollKey::To(0));
    }
}
