//! `weft top`: the jobs' current activity, as rates between two polls.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::text::{self, TextTable};
use weft_daemon::admin::{self, Answer, Question};
use weft_daemon::places::Places;
use weft_daemon::status::{ClientStatus, Status};

/// Show what the jobs do now, again and again
#[derive(Debug, clap::Args)]
pub struct TopArgs {
    /// Seconds between two looks
    #[arg(long, short, default_value_t = 1.0, value_parser = interval)]
    interval: f64,
    /// End after so many pages; default: never
    #[arg(long, short = 'n')]
    count: Option<u64>,
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("{text} is not in 0.1 to 3600")),
    }
}

/// Clears the terminal and moves to its first line.
const CLEAR: &str = "\u{1b}[2J\u{1b}[H";

/// Shows pages until the count, a broken pipe or the broker's end.
pub fn main(args: TopArgs) -> Result<ExitCode> {
    let places = Places::of_environment();
    let look = || -> Result<(Status, Instant)> {
        match admin::ask(&places, &Question::Status)? {
            Answer::Status(status) => Ok((*status, Instant::now())),
            other => bail!("unexpected answer {other:?}"),
        }
    };
    let mut out = std::io::stdout();
    let clear = if out.is_terminal() { CLEAR } else { "" };
    let (mut before, mut since) = look()?;
    let mut pages = 0;
    while args.count.is_none_or(|count| pages < count) {
        std::thread::sleep(Duration::from_secs_f64(args.interval));
        let (now, at) = look()?;
        let page = render(&before, &now, at.duration_since(since).as_secs_f64());
        if writeln!(out, "{clear}{page}").and_then(|()| out.flush()).is_err() {
            break;
        }
        (before, since) = (now, at);
        pages += 1;
    }
    Ok(ExitCode::SUCCESS)
}

fn render(before: &Status, now: &Status, seconds: f64) -> String {
    let earlier: HashMap<u64, &ClientStatus> = before.clients.iter().map(|client| (client.client, client)).collect();
    let broker = &now.broker;
    let mut page = vec![format!(
        "policy {}, {}, broker {}, {:.0} turns/s, {:.0} decisions/s",
        broker.policy,
        text::count(now.clients.len() as u64, "job", "jobs"),
        broker.waiting,
        broker.turns.saturating_sub(before.broker.turns) as f64 / seconds,
        broker.decisions.saturating_sub(before.broker.decisions) as f64 / seconds,
    )];
    page.extend(super::status::warnings(now));
    let mut table = TextTable::new([
        "client", "pid", "prio", "mode", "launch/s", "GPU", "may lose", "lost", "cost", "of plain", "memory", "command",
    ]);
    for client in &now.clients {
        let default = ClientStatus::default();
        let old = earlier.get(&client.client).copied().unwrap_or(&default);
        let rate = |new: u64, old: u64| new.saturating_sub(old) as f64 / seconds;
        let launches = rate(
            client.launches + client.graph_launches,
            old.launches + old.graph_launches,
        );
        let had = |client: &ClientStatus| client.outcome.as_ref().and_then(|outcome| outcome.gpu_ns);
        // Predicted at the launch: it may exceed the interval.
        let gpu = match (had(client), old.outcome.is_some() || old.launches == 0) {
            (Some(now), true) => text::percent((rate(now, had(old).unwrap_or(0)) / 1e9).clamp(0.0, 1.0)),
            _ => "-".to_string(),
        };
        let figures = super::history::figures(&client.outcome.clone().unwrap_or_default());
        table.row([
            client.client.to_string(),
            client.pid.to_string(),
            client.priority.to_string(),
            super::status::role(client),
            format!("{launches:.0}"),
            gpu,
            super::status::allowed(client).map_or("-".to_string(), text::percent),
            figures.lost,
            figures.cost,
            figures.of_plain,
            text::size(client.memory),
            text::command(&client.command, text::COMMAND),
        ]);
    }
    page.extend(table.lines());
    page.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_daemon::outcome::Outcome;
    use weft_daemon::status::BrokerStatus;

    #[test]
    fn rates_are_per_second_and_a_newcomer_starts_at_nothing() {
        let status = |launches, turns| Status {
            broker: BrokerStatus {
                turns,
                ..BrokerStatus::default()
            },
            clients: vec![ClientStatus {
                client: 1,
                launches,
                outcome: Some(Outcome {
                    gpu_ns: Some(launches * 1_000_000),
                    ..Outcome::default()
                }),
                ..ClientStatus::default()
            }],
            ended: Vec::new(),
            warnings: Vec::new(),
        };
        let page = render(&status(100, 10), &status(300, 50), 2.0);
        assert!(page.contains("20 turns/s"), "{page}");
        let row = page.lines().last().expect("a row");
        assert!(row.contains(" 100 "), "{page}");
        assert!(row.contains("10 %"), "{page}");
        let nobody = Status {
            clients: Vec::new(),
            ..status(0, 0)
        };
        assert!(render(&nobody, &status(300, 50), 1.0).contains(" 300 "));
    }
}
