// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft pause --evict` and the return of evicted jobs: the order to the broker, and the wait until
//! each process has carried it out or refused it.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::job::{TIMED_OUT, attached, select};
use super::status::ask;
use weft_api::admin::{self, AdminQuestion};
use weft_api::paths::Places;
use weft_api::status::{ClientStatus, EvictionStatus, NOTHING_MOVABLE, Status};

/// Interval at which the broker is asked.
const ASKED_AGAIN: Duration = Duration::from_millis(50);

/// A move of jobs' memory by command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderedMove {
    /// To the host, until another command.
    Out,
    /// To the host, until the next call that uses the device.
    UntilCall,
    /// Back to the device.
    Back,
}

/// State of a process's order.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Progress {
    Done,
    /// Refused, with the reason.
    Refused(String),
    /// Not carried out yet, with the obstacle.
    Waits(Option<String>),
}

/// Reads the progress of an order that is newer than `before`.
fn progress(before: u32, now: Option<&EvictionStatus>, ordered: OrderedMove) -> Progress {
    let evict = ordered != OrderedMove::Back;
    let Some(now) = now else {
        return Progress::Refused(NOTHING_MOVABLE.to_string());
    };
    if evict && now.state == "fixed" {
        return Progress::Refused(now.nothing_movable());
    }
    if now.answered == before || now.answered != now.order {
        return Progress::Waits(now.obstacle.clone());
    }
    match (&now.obstacle, now.is_away() == evict) {
        (Some(why), _) => Progress::Refused(why.clone()),
        (None, true) => Progress::Done,
        // A call has brought it back.
        (None, false) if ordered == OrderedMove::UntilCall => Progress::Done,
        // A later order of another command was carried out.
        (None, false) => Progress::Refused("it was ordered otherwise meanwhile".to_string()),
    }
}

/// Orders jobs to move their memory, and waits for them. Prints a line for each failure.
pub fn order(places: &Places, jobs: &[String], ordered: OrderedMove, timeout: Duration) -> Result<ExitCode> {
    let (evict, until_call) = (ordered != OrderedMove::Back, ordered == OrderedMove::UntilCall);
    let question = |clients| AdminQuestion::Evict {
        clients,
        evict,
        until_call,
    };
    let status = reported(places, jobs)?;
    let mut code = ExitCode::SUCCESS;
    let mut wanted: Vec<ClientStatus> = Vec::new();
    for word in jobs {
        match select(word, &status.clients) {
            Ok(found) => wanted.extend(found.into_iter().filter(|client| evict || is_away(client)).cloned()),
            Err(why) => {
                eprintln!("weft: {why}");
                code = ExitCode::FAILURE;
            }
        }
    }
    forget_fixed(&mut wanted);
    // Memory on the host stays there. A stopped process takes the order in once it continues.
    let is_there = |client: &ClientStatus| evict && client.eviction.as_ref().is_some_and(EvictionStatus::is_on_host);
    let stays = wanted.extract_if(.., |client| client.stopped && is_there(client));
    let by_command = |client: &ClientStatus| client.eviction.as_ref().is_some_and(EvictionStatus::is_by_command);
    let stays = stays
        .filter(|client| by_command(client) == until_call)
        .map(|client| client.client)
        .collect::<Vec<_>>();
    if !stays.is_empty() {
        admin::ask(places, &question(stays))?;
    }
    for stopped in wanted.extract_if(.., |client| client.stopped) {
        eprintln!(
            "weft: client {} was not moved: its process is stopped (weft resume {} continues it)",
            stopped.client, stopped.pid
        );
        code = ExitCode::FAILURE;
    }
    if wanted.is_empty() {
        return Ok(code);
    }
    let clients = wanted.iter().map(|client| client.client).collect();
    admin::ask(places, &question(clients))?;
    let deadline = Instant::now() + timeout;
    loop {
        let now = ask(places)?.clients;
        let mut waits = Vec::new();
        wanted.retain(|client| {
            let found = now
                .iter()
                .find(|found| (found.client, found.pid) == (client.client, client.pid));
            // A job that ended needs nothing.
            let Some(found) = found else { return false };
            let before = client.eviction.as_ref().map_or(0, |eviction| eviction.answered);
            match progress(before, found.eviction.as_ref(), ordered) {
                Progress::Done => false,
                Progress::Refused(why) => {
                    eprintln!("weft: client {} was not moved: {why}", client.client);
                    code = ExitCode::FAILURE;
                    false
                }
                Progress::Waits(why) => {
                    waits.push((client.client, why));
                    true
                }
            }
        });
        if wanted.is_empty() {
            return Ok(code);
        }
        if Instant::now() >= deadline {
            for (client, why) in waits {
                let why = why.unwrap_or_else(|| "it has not answered yet".to_string());
                eprintln!("weft: client {client} is still not moved: {why}");
            }
            return Ok(ExitCode::from(TIMED_OUT));
        }
        std::thread::sleep(ASKED_AGAIN);
    }
}

/// The status, once these jobs have reported their movable memory.
fn reported(places: &Places, jobs: &[String]) -> Result<Box<Status>> {
    /// Time after which a client has reported it, s.
    const REPORTED_AFTER_S: f64 = 2.0;
    loop {
        let status = attached(places, jobs)?;
        let named = jobs
            .iter()
            .filter_map(|word| select(word, &status.clients).ok())
            .flatten();
        let mut new = named.filter(|client| client.attached_s < REPORTED_AFTER_S && client.eviction.is_none());
        if new.next().is_none() {
            return Ok(status);
        }
        std::thread::sleep(ASKED_AGAIN);
    }
}

/// Leaves out clients without movable memory whose process has some on another device.
fn forget_fixed(wanted: &mut Vec<ClientStatus>) {
    let has = |client: &ClientStatus| client.eviction.as_ref().is_some_and(|eviction| eviction.movable > 0);
    let movers: Vec<u32> = wanted
        .iter()
        .filter(|client| has(client))
        .map(|client| client.pid)
        .collect();
    wanted.retain(|client| has(client) || !movers.contains(&client.pid));
}

/// Orders the evicted ones of these clients to return, without a wait: a job that saves its state
/// as it ends needs its memory. Prints a line for each. `advice`: the line's end.
pub fn bring_back(places: &Places, clients: impl Iterator<Item = u64>, advice: &str) {
    let Ok(status) = ask(places) else { return };
    let away = |client: &u64| {
        status
            .clients
            .iter()
            .any(|other| other.client == *client && is_away(other))
    };
    let clients: Vec<u64> = clients.filter(away).collect();
    if !clients.is_empty() {
        for client in &clients {
            eprintln!(
                "weft: client {client} is evicted: if it handles SIGTERM, it ends once its memory is back{advice}"
            );
        }
        let back = AdminQuestion::Evict {
            clients,
            evict: false,
            until_call: false,
        };
        let _ = admin::ask(places, &back);
    }
}

fn is_away(client: &ClientStatus) -> bool {
    client.eviction.as_ref().is_some_and(EvictionStatus::is_away)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(state: &str, order: u32, answered: u32, obstacle: Option<&str>) -> EvictionStatus {
        EvictionStatus {
            state: state.to_string(),
            order,
            answered,
            obstacle: obstacle.map(str::to_string),
            ..EvictionStatus::default()
        }
    }

    #[test]
    fn a_process_is_moved_where_it_has_movable_memory() {
        let client = |client, pid, movable| ClientStatus {
            client,
            pid,
            eviction: Some(EvictionStatus {
                movable,
                ..EvictionStatus::default()
            }),
            ..ClientStatus::default()
        };
        let mut wanted = vec![client(1, 100, 7), client(2, 100, 0), client(3, 101, 0)];
        forget_fixed(&mut wanted);
        let left: Vec<u64> = wanted.iter().map(|client| client.client).collect();
        assert_eq!(left, [1, 3], "the third one is told that it has none");
    }

    #[test]
    fn an_order_is_done_refused_or_waits() {
        assert_eq!(
            progress(0, None, OrderedMove::Out),
            Progress::Refused(NOTHING_MOVABLE.to_string())
        );
        let said = |now: &EvictionStatus, ordered| progress(3, Some(now), ordered);
        let fixed = said(&status("fixed", 3, 3, None), OrderedMove::Out);
        assert_eq!(
            fixed,
            Progress::Refused(NOTHING_MOVABLE.to_string()),
            "it gave all of it back"
        );
        let ordered = EvictionStatus {
            ordered: 32 << 20,
            ..status("fixed", 0, 0, None)
        };
        let kinds = "none of its memory can move: 32.0 MiB stream-ordered, in pools or in graphs";
        assert_eq!(said(&ordered, OrderedMove::Out), Progress::Refused(kinds.to_string()));
        assert_eq!(
            said(&status("device", 5, 3, None), OrderedMove::Out),
            Progress::Waits(None)
        );
        assert_eq!(said(&status("evicted", 5, 5, None), OrderedMove::Out), Progress::Done);
        assert_eq!(said(&status("device", 4, 4, None), OrderedMove::Back), Progress::Done);
        let full = "8 GiB of device memory are not free";
        let waits = said(&status("evicted", 4, 3, Some(full)), OrderedMove::Back);
        assert_eq!(waits, Progress::Waits(Some(full.to_string())));
        let refused = said(&status("device", 5, 5, Some("no")), OrderedMove::Out);
        assert_eq!(refused, Progress::Refused("no".to_string()));
        assert!(matches!(
            said(&status("device", 6, 6, None), OrderedMove::Out),
            Progress::Refused(_)
        ));
        let called = said(&status("device", 6, 6, None), OrderedMove::UntilCall);
        assert_eq!(called, Progress::Done, "a call was there before the command looked");
    }
}
