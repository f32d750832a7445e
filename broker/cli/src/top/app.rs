// SPDX-License-Identifier: MIT OR Apache-2.0
//! State of the screen, and the effect of keys on it.
//!
//! Pure: news and keys in, requests to the broker out.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use weft_api::status::Status;
use weft_protocol::PRIORITIES;

use super::board::{Board, SortKey};

/// News from the broker.
#[derive(Debug)]
pub enum BrokerNews {
    /// Its answer and the time of arrival, seconds since any fixed moment.
    Status(Box<Status>, f64),
    /// Reason why it does not answer.
    Gone(String),
    /// Reason why it refused a request.
    Refused(String),
}

/// Request of a key that goes beyond the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopRequest {
    /// End of the program.
    Quit,
    /// Stop or continuation of a job's processes.
    Stop {
        /// The job's client number.
        client: u64,
        /// Whether to stop them; otherwise they continue.
        stopped: bool,
    },
    /// A job's priority, 0 to 9.
    Priority {
        /// The job's client number.
        client: u64,
        /// 0 (matters most) to 9.
        priority: u8,
    },
}

/// The screen's state.
#[derive(Debug, Default)]
pub struct TopApp {
    /// State of the jobs and devices.
    pub board: Board,
    /// Their order.
    pub sort: SortKey,
    /// The selected job.
    selected: Option<u64>,
    /// Whether the pane with the selected job's details is open.
    pub details: bool,
    /// Whether the help is open.
    pub help: bool,
    /// Reason why the last answer is old; `None` if it is current.
    pub gone: Option<String>,
    /// Last notice, shown until the next key.
    pub notice: Option<String>,
    /// Requested priority by client, and the number of answers to wait for it.
    asked: HashMap<u64, (u8, u32)>,
}

/// Number of answers in which a requested priority may be missing: some were sent before it.
const ANSWERS_WAITED: u32 = 3;

impl TopApp {
    /// A screen of this board.
    pub fn new(board: Board) -> TopApp {
        TopApp {
            board,
            ..TopApp::default()
        }
    }

    /// Takes news.
    pub fn hear(&mut self, news: BrokerNews) {
        match news {
            BrokerNews::Status(status, at_s) => {
                self.board.update(*status, at_s);
                self.gone = None;
                // The next key starts from the requested priority.
                let board = &mut self.board;
                self.asked.retain(|client, (priority, waits)| {
                    *waits -= 1;
                    let waited_for =
                        *waits > 0 && board.job(*client).is_some_and(|job| job.status.priority != *priority);
                    if waited_for {
                        board.expect_priority(*client, *priority);
                    }
                    waited_for
                });
            }
            BrokerNews::Gone(why) => self.gone = Some(why),
            BrokerNews::Refused(why) => {
                self.asked.clear();
                self.notice = Some(why);
            }
        }
    }

    /// Client numbers in the order of the rows.
    fn order(&self) -> Vec<u64> {
        let jobs = self.board.jobs(self.sort);
        jobs.iter().map(|job| job.status.client).collect()
    }

    /// The selected row; the first if nothing is selected or the selected job has ended.
    pub fn selected_row(&self) -> Option<usize> {
        let order = self.order();
        let at = order.iter().position(|client| Some(*client) == self.selected);
        at.or((!order.is_empty()).then_some(0))
    }

    /// Takes a key.
    pub fn press(&mut self, key: KeyEvent) -> Option<TopRequest> {
        self.notice = None;
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return Some(TopRequest::Quit),
            _ if control => return None,
            KeyCode::Esc if self.help || self.details => (self.help, self.details) = (false, false),
            KeyCode::Char('q' | 'Q') | KeyCode::Esc => return Some(TopRequest::Quit),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = !self.help,
            _ if self.help => self.help = false,
            KeyCode::Up | KeyCode::Char('k') => self.step(|row, _| row.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.step(|row, last| (row + 1).min(last)),
            KeyCode::Home | KeyCode::Char('g') => self.step(|_, _| 0),
            KeyCode::End | KeyCode::Char('G') => self.step(|_, last| last),
            KeyCode::Enter | KeyCode::Char('d') => self.details = !self.details,
            KeyCode::Char(' ') => return self.stop(),
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('p' | '+') => return self.priority(|priority| priority.saturating_sub(1)),
            KeyCode::Char('P' | '-') => return self.priority(|priority| (priority + 1).min(PRIORITIES as u8 - 1)),
            _ => {}
        }
        None
    }

    fn step(&mut self, to: impl Fn(usize, usize) -> usize) {
        let order = self.order();
        let Some(row) = self.selected_row() else { return };
        self.selected = order.get(to(row, order.len() - 1)).copied();
    }

    fn stop(&self) -> Option<TopRequest> {
        let client = *self.order().get(self.selected_row()?)?;
        let stopped = !self.board.job(client)?.status.stopped;
        Some(TopRequest::Stop { client, stopped })
    }

    fn priority(&mut self, change: impl Fn(u8) -> u8) -> Option<TopRequest> {
        let client = *self.order().get(self.selected_row()?)?;
        // The job stays selected even if its new priority moves its row.
        self.selected = Some(client);
        let now = self.board.job(client)?.status.priority;
        let priority = change(now);
        self.board.expect_priority(client, priority);
        self.asked.insert(client, (priority, ANSWERS_WAITED));
        (priority != now).then_some(TopRequest::Priority { client, priority })
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::board::tests::{answer, board};
    use super::*;

    pub fn app(looks: u64) -> TopApp {
        TopApp {
            board: board(looks),
            ..TopApp::default()
        }
    }

    pub fn press(app: &mut TopApp, key: char) -> Option<TopRequest> {
        app.press(KeyEvent::from(KeyCode::Char(key)))
    }

    fn priority(client: u64, priority: u8) -> Option<TopRequest> {
        Some(TopRequest::Priority { client, priority })
    }

    #[test]
    fn keys_move_the_selection_within_the_rows() {
        let mut app = app(2);
        assert_eq!(app.selected_row(), Some(0));
        for (key, row) in [
            (KeyCode::Up, 0),
            (KeyCode::Down, 1),
            (KeyCode::Down, 1),
            (KeyCode::Home, 0),
            (KeyCode::End, 1),
        ] {
            assert_eq!(app.press(KeyEvent::from(key)), None);
            assert_eq!(app.selected_row(), Some(row), "{key:?}");
        }
        // The selection is a job, not a row.
        press(&mut app, 's');
        assert_eq!((app.sort, app.selected_row()), (SortKey::Gpu, Some(0)));
        let mut one = answer(2);
        one.clients.remove(1);
        app.hear(BrokerNews::Status(Box::new(one), 2.0));
        assert_eq!(app.selected_row(), Some(0));
        let mut nobody = TopApp::default();
        assert_eq!(
            (press(&mut nobody, 'j'), press(&mut nobody, 'p'), nobody.selected_row()),
            (None, None, None)
        );
    }

    #[test]
    fn a_priority_is_asked_for_within_its_bounds() {
        let mut app = app(2);
        assert_eq!(press(&mut app, 'p'), None, "0 is the first");
        assert_eq!(press(&mut app, 'P'), priority(1, 1));
        press(&mut app, 'j');
        assert_eq!(
            (press(&mut app, '+'), press(&mut app, '-')),
            (priority(2, 6), priority(2, 7))
        );
        assert_eq!(
            press(&mut app, '-'),
            priority(2, 8),
            "it goes on from what was asked for"
        );
        // Early answers may lack the new priority; if later ones lack it too, they are right.
        for at_s in [2.0, 3.0] {
            app.hear(BrokerNews::Status(Box::new(answer(2)), at_s));
            assert_eq!(app.board.job(2).map(|job| job.status.priority), Some(8));
        }
        app.hear(BrokerNews::Status(Box::new(answer(2)), 4.0));
        assert_eq!(press(&mut app, '-'), priority(2, 8));
        app.hear(BrokerNews::Refused("not yours".to_string()));
        let mut last = answer(2);
        last.clients[1].priority = 9;
        app.hear(BrokerNews::Status(Box::new(last), 5.0));
        assert_eq!(press(&mut app, '-'), None, "9 is the last");
    }

    #[test]
    fn space_stops_a_job_and_lets_a_stopped_one_go_on() {
        let mut app = app(2);
        let stop = |client, stopped| Some(TopRequest::Stop { client, stopped });
        assert_eq!(press(&mut app, ' '), stop(1, true));
        let mut one = answer(2);
        one.clients[0].stopped = true;
        app.hear(BrokerNews::Status(Box::new(one), 2.0));
        assert_eq!(press(&mut app, ' '), stop(1, false));
        press(&mut app, 'j');
        assert_eq!(press(&mut app, ' '), stop(2, true));
        assert_eq!(press(&mut TopApp::default(), ' '), None);
    }

    #[test]
    fn panes_open_and_close_and_q_ends_it() {
        let mut app = app(2);
        press(&mut app, 'd');
        press(&mut app, '?');
        assert!(app.details && app.help);
        assert_eq!(press(&mut app, 'j'), None);
        assert_eq!(
            (app.help, app.selected_row()),
            (false, Some(0)),
            "a key closes the help alone"
        );
        assert_eq!(app.press(KeyEvent::from(KeyCode::Esc)), None);
        assert!(!app.details);
        assert_eq!(app.press(KeyEvent::from(KeyCode::Esc)), Some(TopRequest::Quit));
        assert_eq!(press(&mut app, 'q'), Some(TopRequest::Quit));
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(app.press(control), Some(TopRequest::Quit));
        let control = KeyEvent::new(KeyCode::Char('p'), KeyModifiers::CONTROL);
        assert_eq!(app.press(control), None);
    }

    #[test]
    fn a_broker_that_is_gone_is_said_until_one_answers() {
        let mut app = app(2);
        app.hear(BrokerNews::Gone("no broker".to_string()));
        assert!(app.gone.is_some() && app.board.job(1).is_some());
        app.hear(BrokerNews::Status(Box::new(answer(3)), 3.0));
        assert!(app.gone.is_none());
        app.hear(BrokerNews::Refused("not yours".to_string()));
        assert_eq!(app.notice.as_deref(), Some("not yours"));
        press(&mut app, 'j');
        assert_eq!(app.notice, None);
    }
}
