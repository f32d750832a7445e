//! `weft queue`: which jobs wait for device memory and why, and which jobs have it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::{Result, bail};

use super::text::{self, TextTable};
use super::users;
use weft_daemon::admin::{self, Answer, Question};
use weft_daemon::admission::{Queue, WaitingRow};
use weft_daemon::places::Places;

/// Show who waits for device memory, why, and when it is expected
#[derive(Debug, clap::Args)]
pub struct QueueArgs {
    /// Everything, as JSON
    #[arg(long)]
    pub json: bool,
}

/// Most ended jobs that are printed; the JSON has all.
const LEARNT: usize = 8;

/// Shows the queue.
pub fn main(args: QueueArgs) -> Result<ExitCode> {
    let Answer::Queue(queue) = admin::ask(&Places::of_environment(), &Question::Queue)? else {
        bail!("unexpected answer");
    };
    text::show(&*queue, args.json, render)?;
    Ok(ExitCode::SUCCESS)
}

/// Expected begin of a job; a guess if an earlier job's duration is undeclared.
fn begins(row: &WaitingRow) -> String {
    match (row.begins_s, row.guess) {
        (None, _) => "?".to_string(),
        (Some(seconds), false) => text::span(seconds),
        (Some(seconds), true) => format!("{} (guess)", text::span(seconds)),
    }
}

/// The page for people.
pub fn render(queue: &Queue) -> String {
    let mut page = vec![format!(
        "admission by {}: {} admitted so far, {} of them after a wait, {} could never run, {} times more was wanted than was free",
        queue.policy, queue.admitted, queue.waited, queue.refused, queue.denied
    )];
    for device in &queue.devices {
        page.push(format!(
            "device {}: {} of {} free, {} held by others, {} a context",
            text::cut(&device.uuid, 12),
            text::size(device.free),
            text::size(device.memory),
            text::size(device.foreign),
            text::size(device.context),
        ));
    }
    page.extend(queue.others.iter().map(ToString::to_string));
    page.push(String::new());
    if queue.waiting.is_empty() {
        page.push("nobody waits".to_string());
    } else {
        let mut table = TextTable::new([
            "place",
            "pid",
            "user",
            "prio",
            "needs",
            "runs",
            "waited",
            "begins in",
            "why",
            "command",
        ]);
        for row in &queue.waiting {
            table.row([
                row.position.to_string(),
                row.pid.to_string(),
                text::cut(&users::shown(&row.user), 16),
                row.priority.to_string(),
                text::size(row.needs),
                row.duration.clone(),
                text::span(row.waited_s),
                begins(row),
                row.reason.clone(),
                text::command(&row.command, text::COMMAND),
            ]);
        }
        page.extend(table.lines());
    }
    if !queue.running.is_empty() {
        page.push(String::new());
        let mut table = TextTable::new([
            "pid",
            "device",
            "user",
            "prio",
            "may have",
            "holds",
            "memory",
            "since",
            "processes",
            "command",
        ]);
        for row in &queue.running {
            table.row([
                row.pid.to_string(),
                text::cut(&row.device, 12),
                text::cut(&users::shown(&row.user), 16),
                row.priority.to_string(),
                text::size(row.share),
                text::size(row.held),
                row.memory.clone(),
                text::span(row.since_s),
                row.clients.len().to_string(),
                text::command(&row.command, text::COMMAND),
            ]);
        }
        page.extend(table.lines());
    }
    if !queue.weights.is_empty() {
        let each = queue
            .weights
            .iter()
            .map(|row| format!("{} {}", users::shown(&row.user), row.weight));
        page.push(String::new());
        page.push(format!(
            "weights: {} (all others 1)",
            each.collect::<Vec<String>>().join(", ")
        ));
    }
    if !queue.learnt.is_empty() {
        page.push(String::new());
        page.push(
            "ended of late without --memory or profile (weft profile keep PID --name NAME makes one of it):"
                .to_string(),
        );
        let mut table = TextTable::new(["pid", "user", "took", "ran", "", "command"]);
        for row in queue.learnt.iter().take(LEARNT) {
            table.row([
                row.pid.to_string(),
                text::cut(&users::shown(&row.user), 16),
                text::size(row.peak),
                text::span(row.ran_s),
                if row.denied { "wanted more" } else { "" }.to_string(),
                text::command(&row.command, text::COMMAND),
            ]);
        }
        page.extend(table.lines());
    }
    page.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_begin_that_is_guessed_is_called_so() {
        let row = |begins_s, guess| WaitingRow {
            begins_s,
            guess,
            ..WaitingRow::default()
        };
        assert_eq!(begins(&row(Some(1_740.0), true)), "29 min (guess)");
        assert_eq!(begins(&row(Some(1_740.0), false)), "29 min");
        assert_eq!(begins(&row(None, true)), "?");
        let queue = Queue {
            waiting: vec![row(Some(1_740.0), true)],
            ..Queue::default()
        };
        assert!(render(&queue).contains("29 min (guess)"), "{}", render(&queue));
    }
}
