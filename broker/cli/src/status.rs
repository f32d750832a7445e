// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft status`: jobs with their roles and waits, warnings and errors.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};

use super::columns::{self, TextColumn};
use super::text::{self, PageLine};
use super::{history, users};
use weft_api::admin::{self, AdminQuestion, Answer};
use weft_api::outcome::{Warning, WarningKind};
use weft_api::paths::Places;
use weft_api::status::{ClientStatus, DeviceStatus, EndedStatus, EvictionStatus, Status};
use weft_protocol::amount;

/// Show the broker, its jobs and the jobs that ended last
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    /// Print everything as JSON (docs/json.md lists the fields)
    #[arg(long)]
    pub json: bool,
    /// Also show the scheduler's figures, and how managed memory moves
    #[arg(long, short)]
    pub verbose: bool,
}

/// Largest number of ended jobs on a page for people.
const ENDED_SHOWN: usize = 10;

/// Most other jobs that are named in a line of a warning.
const MOST_NAMED: usize = 8;

/// The broker's answer.
pub fn ask(places: &Places) -> Result<Box<Status>> {
    ask_within(places, admin::PATIENCE)
}

/// As [`ask`], with another longest wait for the answer.
pub fn ask_within(places: &Places, patience: Duration) -> Result<Box<Status>> {
    match admin::ask_within(places, &AdminQuestion::Status, patience)? {
        Answer::Status(status) => Ok(status),
        other => bail!("unexpected answer {other:?}"),
    }
}

/// Shows the status.
pub fn main(args: StatusArgs) -> Result<ExitCode> {
    let status = ask(&Places::of_environment())?;
    let terminal = text::terminal_width();
    let width = terminal.unwrap_or(text::USUAL_WIDTH);
    text::show(&*status, args.json, |status| {
        let page = render(status, args.verbose, width).into_iter();
        text::page(page.chain(past_weft(status).into_iter().map(PageLine::Prose)), terminal)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Uptime of a broker from which on the jobs of the one before have attached, s. They look for a
/// new broker once a second.
pub const ATTACHED_AFTER_S: f64 = 3.0;

/// Processes that should be among the jobs but bypass weft.
pub fn past_weft(status: &Status) -> Vec<String> {
    if status.broker.uptime_s < ATTACHED_AFTER_S {
        return Vec::new();
    }
    let attached: Vec<u32> = status.clients.iter().map(|client| client.pid).collect();
    let lines = super::outside::processes(&attached).into_iter().map(|process| {
        let command = text::cut(&process.command, text::COMMAND);
        format!("process {} has opened the driver past weft: {command}", process.pid)
    });
    lines.collect()
}

/// The page for people.
fn render(status: &Status, verbose: bool, width: usize) -> Vec<PageLine> {
    let broker = &status.broker;
    let mut prose = vec![format!(
        "broker {}, policy {}, up {}, {}",
        broker.pid,
        broker.policy,
        text::span(broker.uptime_s),
        match verbose {
            false => text::count(status.clients.len() as u64, "job", "jobs"),
            true => format!(
                "{} attached so far: {} succeeded, {} vanished, {} let go, {} refused",
                broker.attached, broker.goodbyes, broker.vanished, broker.detached, broker.refused
            ),
        },
    )];
    if broker.records_lost > 0 && verbose {
        prose.push(format!(
            "{} of {} records were lost because they came too fast",
            broker.records_lost, broker.records
        ));
    }
    if let Some(trouble) = &broker.last_trouble {
        prose.push(format!("last trouble: {trouble}"));
    }
    prose.extend(broker.history_trouble.clone());
    prose.extend(super::mps::line(&broker.mps));
    prose.extend(broker.devices.iter().filter_map(mps));
    prose.extend(warnings(status));
    prose.push(String::new());
    let mut page: Vec<_> = prose.into_iter().map(PageLine::Prose).collect();
    let rows = |columns| columns::rows(columns, width);
    let say = |line: &str| PageLine::Prose(line.to_string());
    match status.clients.is_empty() {
        true => page.push(say("no job is attached")),
        false => page.extend(rows(clients(&status.clients, broker.shared))),
    }
    if verbose && !status.clients.is_empty() {
        page.extend([say(""), say("scheduler:")]);
        page.extend(rows(internals(&status.clients)));
    }
    let details = status.clients.iter().flat_map(|client| {
        let lines = details(client, verbose).into_iter();
        lines.map(move |line| PageLine::Prose(format!("client {}: {line}", client.client)))
    });
    page.extend(details);
    if !status.ended.is_empty() {
        page.extend([say(""), say("ended:")]);
        let shown = match verbose {
            true => status.ended.len(),
            false => status.ended.len().min(ENDED_SHOWN),
        };
        page.extend(rows(ended(&status.ended[..shown])));
        if shown < status.ended.len() {
            let more = status.ended.len() - shown;
            page.push(say(&format!("{more} more: weft status -v, or weft history")));
        }
    }
    page
}

/// A name for a table; `-` if hidden, as another user's is.
pub fn called(client: &ClientStatus) -> String {
    match client.name.is_empty() {
        true => "-".to_string(),
        false => client.name.clone(),
    }
}

/// A job's profile in a cell.
pub fn profile(client: &ClientStatus) -> String {
    match (&client.profile, &client.profile_trouble, client.profiling) {
        (Some(name), _, true) => format!("{name} (sampling)"),
        // The mark is in front, so that it is never cut.
        (Some(name), Some(_), _) => format!("(!) {name}"),
        (Some(name), None, _) => name.clone(),
        (None, ..) => "none".to_string(),
    }
}

/// Columns of the attached jobs.
fn clients(clients: &[ClientStatus], shared: bool) -> Vec<TextColumn> {
    let outcome = |client: &ClientStatus| client.outcome.clone().unwrap_or_default();
    let figures = |client: &ClientStatus| history::figures(&outcome(client));
    let mut columns = vec![
        TextColumn::words("name", 0, 12).with(clients, called),
        TextColumn::figures("id", 4).with(clients, |client| client.client.to_string()),
        TextColumn::figures("pid", 3).with(clients, |client| client.pid.to_string()),
    ];
    if shared {
        columns.push(TextColumn::words("user", 4, 6).with(clients, |client| users::name_of(client.uid)));
    }
    columns.extend([
        TextColumn::figures("prio", 2).with(clients, |client| client.priority.to_string()),
        TextColumn::words("state", 1, 16).with(clients, role),
        TextColumn::figures("GPU", 3).with(clients, |client| figures(client).gpu),
        TextColumn::figures("lost", 2).with_short(clients, |client| history::late(outcome(client).lost)),
        TextColumn::figures("cost", 3).with_short(clients, |client| history::late(outcome(client).cost)),
        TextColumn::figures("memory", 4).with(clients, |client| text::size(client.memory)),
        TextColumn::words("profile", 5, 10).with(clients, profile),
        TextColumn::words("command", 6, 24).with(clients, |client| text::command(&client.command, text::LONG_COMMAND)),
    ]);
    columns
}

/// Columns of the scheduler's figures.
fn internals(clients: &[ClientStatus]) -> Vec<TextColumn> {
    let of_background = |client: &ClientStatus, ns: u64| match client.mode.as_str() {
        "background" => text::duration(ns),
        _ => "-".to_string(),
    };
    vec![
        TextColumn::figures("id", 0).with(clients, |client| client.client.to_string()),
        TextColumn::words("name", 5, 8).with(clients, called),
        TextColumn::figures("launches", 1)
            .with(clients, |client| (client.launches + client.graph_launches).to_string()),
        TextColumn::figures("waits", 2).with(clients, |client| client.waits.to_string()),
        TextColumn::figures("waited", 2).with(clients, |client| text::duration(client.waited_ns)),
        TextColumn::figures("expired", 3).with(clients, |client| client.waits_expired.to_string()),
        TextColumn::figures("credit", 3).with(clients, |client| of_background(client, client.credit_ns.max(0) as u64)),
        TextColumn::figures("outstanding", 4).with(clients, |client| of_background(client, client.outstanding_ns)),
    ]
}

/// Columns of ended jobs.
pub fn ended(ended: &[EndedStatus]) -> Vec<TextColumn> {
    let outcome = |ended: &EndedStatus| ended.last.outcome.clone().unwrap_or_default();
    vec![
        TextColumn::words("name", 0, 12).with(ended, |ended| called(&ended.last)),
        TextColumn::figures("id", 6).with(ended, |ended| ended.last.client.to_string()),
        TextColumn::figures("pid", 3).with(ended, |ended| ended.last.pid.to_string()),
        TextColumn::figures("prio", 5).with(ended, |ended| ended.last.priority.to_string()),
        TextColumn::words("how", 1, 8).with(ended, |ended| ended.exit.words(ended.ending)),
        TextColumn::figures("ago", 2).with(ended, |ended| text::span(ended.ago_s)),
        TextColumn::figures("ran", 2).with(ended, |ended| {
            // With the time at earlier brokers.
            let ran = ended.last.outcome.as_ref().map(|outcome| outcome.ran_s);
            text::span(ran.unwrap_or(ended.last.attached_s))
        }),
        TextColumn::figures("GPU", 3).with(ended, |ended| history::figures(&outcome(ended)).gpu),
        TextColumn::figures("lost", 2).with_short(ended, |ended| history::late(outcome(ended).lost)),
        TextColumn::figures("cost", 3).with_short(ended, |ended| history::late(outcome(ended).cost)),
        TextColumn::words("command", 7, 24).with(ended, |ended| text::command(&ended.last.command, text::LONG_COMMAND)),
    ]
}

/// Warnings about protection, one per line.
pub fn warnings(status: &Status) -> Vec<String> {
    // Another broker may be known before the outcome thread, or while that does not answer.
    let others = status.broker.others.iter().map(ToString::to_string);
    let others = others.filter(|other| status.warnings.iter().all(|warning| warning.text != *other));
    let of_devices = status.warnings.iter().filter(|warning| warning.client.is_none());
    let of_devices = of_devices.map(|warning| warning.text.clone());
    let all = of_devices.chain(others).chain(of_jobs(&status.warnings));
    all.map(|line| format!("! {line}")).collect()
}

/// Lines of the warnings about jobs, without those about devices.
pub fn of_jobs<'a>(warnings: impl IntoIterator<Item = &'a Warning>) -> Vec<String> {
    let about = |warning: &'a Warning| {
        let client = warning.client?;
        let (name, text) = warning.text.split_once(": ").unwrap_or(("", &warning.text));
        Some((name.to_string(), format!("client {client}"), warning.kind, text))
    };
    grouped(warnings.into_iter().filter_map(about))
}

/// Lines `JOB: TEXT`. Jobs with the same trouble share the line of the first one. Each job has a
/// name, and another one that replaces it if two have the same.
pub fn grouped<'a>(warnings: impl Iterator<Item = (String, String, WarningKind, &'a str)>) -> Vec<String> {
    let mut groups: Vec<(Vec<String>, WarningKind, &str)> = Vec::new();
    for (name, number, kind, text) in warnings {
        // The faults of profiles differ, and devices have lines of their own.
        let is_one_cause = !matches!(
            kind,
            WarningKind::WrongProfile | WarningKind::SamePriority | WarningKind::OtherBroker | WarningKind::NoMps
        );
        let is_same = |other: &str| is_one_cause || other == text;
        match groups
            .iter_mut()
            .find(|(_, other, first)| *other == kind && is_same(first))
        {
            Some((jobs, ..)) if jobs.contains(&name) => jobs.push(number),
            Some((jobs, ..)) => jobs.push(name),
            None => groups.push((vec![name], kind, text)),
        }
    }
    let line = |(jobs, _, text): (Vec<String>, WarningKind, &str)| {
        let (first, more) = jobs
            .split_first()
            .map_or(("", &[][..]), |(first, more)| (first.as_str(), more));
        let listed = more.get(..MOST_NAMED).unwrap_or(more).join(", ");
        match more.len() {
            0 => format!("{first}: {text}"),
            1..=MOST_NAMED => format!("{first}, likewise {listed}: {text}"),
            all => format!("{first}, likewise {listed} and {} more: {text}", all - MOST_NAMED),
        }
    };
    groups.into_iter().map(line).collect()
}

/// MPS use of a device, if any.
pub fn mps(device: &DeviceStatus) -> Option<String> {
    let called = device.uuid.as_deref().unwrap_or("first");
    match (device.under_mps, device.not_under_mps) {
        (0, _) => None,
        (_, 0) => Some(format!("device {called}: jobs share it under MPS, without turns")),
        (under, apart) => Some(format!(
            "device {called}: {under} of its jobs share it under one MPS server, {apart} do not, so its processes take turns: start all with the same CUDA_MPS_PIPE_DIRECTORY"
        )),
    }
}

/// The job's movable memory, if that is not on the device.
fn away(client: &ClientStatus) -> Option<&EvictionStatus> {
    client.eviction.as_ref().filter(|eviction| eviction.is_away())
}

/// A job's role, and the reason for its wait.
pub fn role(client: &ClientStatus) -> String {
    let waits = "waits for memory";
    if let Some(away) = away(client) {
        let idle = if away.is_idle() { ", idle" } else { "" };
        // A stopped process moves no memory.
        let stopped = if client.stopped { ", stopped" } else { "" };
        return format!("{}{idle}{stopped}", away.state);
    }
    match (client.waits_for_memory_s, client.mode == waits) {
        (Some(seconds), true) => format!("{waits}, {}", text::span(seconds)),
        (Some(seconds), false) => format!("{}, {waits}, {}", client.mode, text::span(seconds)),
        (None, _) if client.stopped => format!("{}, stopped", client.mode),
        (None, _) if client.waiting => format!("{}, waits", client.mode),
        (None, _) => client.mode.clone(),
    }
}

/// Part of the GPU's time that a job has at least as a background job, as text.
fn at_least(client: &ClientStatus) -> Option<String> {
    let part = text::percent(client.at_least?);
    let role = if client.mode == "background" {
        ""
    } else {
        " as a background job"
    };
    Some(format!("is to have at least {part} of the GPU's time{role}"))
}

/// Part of its time that a foreground job may lose to background jobs.
pub fn allowed(client: &ClientStatus) -> Option<f64> {
    let foreground = matches!(client.mode.as_str(), "foreground" | "alone");
    client.slowdown_allowed.filter(|_| foreground)
}

/// Allowed slowdown of a foreground job, as text.
pub fn may_lose(client: &ClientStatus) -> Option<String> {
    let allowed = allowed(client)?;
    let within = match client.slo_ns {
        None => String::new(),
        Some(slo) => format!(", within {}", text::duration(slo)),
    };
    let was = match client.slowdown_measured {
        None => String::new(),
        Some(measured) => format!(" (measured: {})", text::percent(measured.max(0.0))),
    };
    Some(format!("{}{within}{was}", text::percent(allowed)))
}

/// Further lines about a job, without its number; `all` includes the scheduler's figures.
pub fn details(client: &ClientStatus, all: bool) -> Vec<String> {
    let mut lines = Vec::new();
    // Its warnings are shown above all jobs.
    if let Some(outcome) = client.outcome.as_ref().filter(|outcome| outcome.launches > 0) {
        lines.push(outcome.line());
    }
    if let Some(trouble) = &client.profile_trouble {
        lines.push(trouble.clone());
    }
    if let Some(lost) = may_lose(client).filter(|_| client.mode == "foreground") {
        lines.push(format!("may be slowed down by {lost}"));
    }
    lines.extend(at_least(client));
    if let Some((request, limit)) = client.memory_request.zip(client.memory_limit) {
        lines.push(text::bounds(request, limit, client.memory));
    }
    if let Some(away) = away(client).filter(|away| away.bytes > 0) {
        lines.push(format!(
            "{} of its memory are on the host since {}{}{}",
            amount::shown(away.bytes),
            away.since_s
                .map_or_else(|| "now".to_string(), |since| format!("{} ago", text::span(since))),
            match away.is_idle() {
                true => ", because it is idle: its next call brings them back",
                false => "",
            },
            away.obstacle
                .as_ref()
                .map_or(String::new(), |why| format!("; its return waits: {why}"))
        ));
    }
    let stays = client
        .eviction
        .as_ref()
        .and_then(|it| Some((it.movable, it.stays(client.memory)?)));
    if let Some((movable, kinds)) = stays.filter(|_| all) {
        lines.push(format!(
            "{} of its memory can move to the host; these stay on the device: {kinds}",
            amount::shown(movable)
        ));
    }
    if let Some((eviction, woke_in)) = client.eviction.as_ref().and_then(|it| Some((it, it.woke_in_s?))) {
        lines.push(format!(
            "its memory came back for a call {}, the last time in {}",
            text::count(u64::from(eviction.wakes), "time", "times"),
            text::duration((woke_in * 1e9) as u64)
        ));
    }
    if client.managed > 0 && client.host_left > 0 && client.host_left < client.managed {
        lines.push(format!(
            "its control group leaves {} of host memory, and memory evicted from the device is charged to that group",
            text::size(client.host_left)
        ));
    }
    if client.swapped_out_needed_ns > 0 && (client.turn_ns > 0 || client.turns > 0) {
        lines.push(format!(
            "its turns are too short for the memory they move: it is swapped out for {} between turns, and needs {} (--swapped-out-limit)",
            text::duration(client.swapped_out_ns),
            text::duration(client.swapped_out_needed_ns)
        ));
    }
    if client.managed_own > 0 {
        lines.push(format!(
            "allocated {} of managed memory itself, which the driver moves, not weft",
            text::size(client.managed_own)
        ));
    }
    if client.unmanaged > 0 {
        lines.push(format!(
            "{} allocations could not be managed and stay on the device",
            client.unmanaged
        ));
    }
    if client.troubles > 0 {
        lines.push(format!(
            "{} internal errors, after which weft passed the call through",
            client.troubles
        ));
    }
    if client.left_failed > 0 && !all {
        lines.push(format!("the driver refused {} deferred launches", client.left_failed));
    }
    if all {
        lines.extend(moves(client));
        lines.extend(passed(client));
    }
    lines.extend(client.notes.iter().map(|note| text::cut(note, 160)));
    lines
}

/// Lines about the migration of managed memory.
fn moves(client: &ClientStatus) -> Vec<String> {
    let mut lines = Vec::new();
    if client.managed > 0 {
        lines.push(format!(
            "{} managed, {} of it touched, about {} on the device; {} prefetched, {} evicted, {} discarded, about {} by faults; {} moves refused, {} late",
            text::size(client.managed),
            text::size(client.working_set),
            text::size(client.resident),
            text::size(client.prefetched),
            text::size(client.evicted),
            text::size(client.discarded),
            text::size(client.faulted),
            client.page_ops_refused,
            client.page_ops_late,
        ));
        if client.memory_waited_ns > 0 || client.memory_waits_expired > 0 {
            lines.push(format!(
                "launches waited {} for memory in transfer, {} of them in vain",
                text::duration(client.memory_waited_ns),
                client.memory_waits_expired,
            ));
        }
    }
    if client.to_device_bytes_per_s > 0 || client.to_host_bytes_per_s > 0 {
        let rate = |bytes: u64| match bytes {
            0 => "not measured".to_string(),
            bytes => format!("{}/s", text::size(bytes)),
        };
        lines.push(format!(
            "the link carries {} to the device, {} to the host",
            rate(client.to_device_bytes_per_s),
            rate(client.to_host_bytes_per_s)
        ));
    }
    if client.turn_ns > 0 || client.turns > 0 {
        let now = match (client.has_turn, client.turn_ns) {
            (true, _) => "has the memory turn now",
            (false, 0) => "fits next to the other jobs now",
            (false, _) => "waits for the memory turn",
        };
        let length = match client.turn_ns {
            0 => String::new(),
            length => format!(", turns of {}", text::duration(length)),
        };
        lines.push(format!("{now}{length}, had {}", client.turns));
    }
    lines
}

/// Lines about launches that the gate treated specially, and about dropped messages.
fn passed(client: &ClientStatus) -> Vec<String> {
    let mut lines = Vec::new();
    if client.unsplit > 0 {
        lines.push(format!(
            "{} launches passed the gate without credit: they were inside timed bursts (auto-tuning), or other devices wait for them",
            client.unsplit
        ));
    }
    if client.left_behind > 0 {
        lines.push(format!(
            "{} launches were deferred at the gate and issued when it opened{}",
            client.left_behind,
            match client.left_failed {
                0 => String::new(),
                failed => format!("; the driver refused {failed} of them"),
            }
        ));
    }
    if client.unnamed > 0 {
        lines.push(format!("{} launches of kernels without a known name", client.unnamed));
    }
    if client.dropped_messages > 0 {
        lines.push(format!("{} messages to the broker dropped", client.dropped_messages));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_api::outcome::{LatenessSum, Outcome};
    use weft_api::status::{BrokerStatus, EndedStatus, Ending, Exit, OtherBroker};

    #[test]
    fn the_mark_of_a_profile_that_does_not_fit_is_never_cut() {
        let client = ClientStatus {
            pid: 750,
            command: "a job's command".to_string(),
            profile: Some("missing".to_string()),
            profile_trouble: Some("there is none".to_string()),
            ..ClientStatus::default()
        };
        let columns = clients(&[client], false);
        for width in 20..160 {
            let fitted = columns::fit(columns.clone(), width);
            let cell = fitted.iter().find(|column| column.title == "profile");
            assert!(cell.is_none_or(|column| column.cells[0].starts_with("(!)")), "{width}");
        }
    }

    #[test]
    fn jobs_with_the_same_trouble_share_a_line() {
        let warning = |kind, client: u64, text: &str| Warning {
            kind,
            client: Some(client),
            device: None,
            text: text.to_string(),
        };
        use WarningKind::{BackgroundNoProfile, ForcedLaunches, WrongProfile};
        let status = Status {
            warnings: vec![
                warning(BackgroundNoProfile, 1, "a.py: no profile: loses 5 %"),
                warning(ForcedLaunches, 1, "a.py: 3 launches"),
                warning(BackgroundNoProfile, 2, "b.py: no profile: loses 4 %"),
                warning(BackgroundNoProfile, 3, "a.py: no profile: loses 3 %"),
                warning(WrongProfile, 2, "b.py: profile b: of another GPU"),
                warning(WrongProfile, 3, "a.py: profile a: of another GPU"),
            ],
            schema: 1,
            broker: BrokerStatus::default(),
            clients: Vec::new(),
            ended: Vec::new(),
        };
        let lines = [
            "! a.py, likewise b.py, client 3: no profile: loses 5 %",
            "! a.py: 3 launches",
            "! b.py: profile b: of another GPU",
            "! a.py: profile a: of another GPU",
        ];
        assert_eq!(warnings(&status), lines);
    }

    #[test]
    fn a_page_says_who_waits_and_what_went_wrong() {
        let client = ClientStatus {
            client: 2,
            pid: 77,
            name: "nightly".to_string(),
            command: "python train.py".to_string(),
            priority: 5,
            mode: "background".to_string(),
            waiting: true,
            credit_ns: -300,
            outstanding_ns: 1_500_000,
            waits_expired: 3,
            profile: Some("train".to_string()),
            profile_trouble: Some("profile train: of another GPU".to_string()),
            troubles: 4,
            unsplit: 9,
            managed: 5 << 30,
            host_left: 1 << 30,
            resident: 3 << 30,
            working_set: 4 << 30,
            faulted: 6 << 30,
            to_device_bytes_per_s: 20 << 30,
            turn_ns: 120_000_000,
            turns: 17,
            has_turn: true,
            swapped_out_ns: 500_000_000,
            swapped_out_needed_ns: 900_000_000,
            unmanaged: 2,
            managed_own: 10 << 30,
            outcome: Some(Outcome {
                ran_s: 60.0,
                background_s: 60.0,
                launches: 9,
                cost: Some(LatenessSum {
                    ns: 35_000_000,
                    part: 0.002,
                    waits: 0,
                }),
                ..Outcome::default()
            }),
            ..ClientStatus::default()
        };
        let status = Status {
            schema: 1,
            broker: BrokerStatus {
                policy: "weft".to_string(),
                devices: vec![
                    DeviceStatus {
                        uuid: Some("0f".repeat(16)),
                        under_mps: 2,
                        not_under_mps: 1,
                        ..DeviceStatus::default()
                    },
                    DeviceStatus::default(),
                ],
                others: vec![OtherBroker {
                    device: "0f".repeat(16),
                    uid: Some(1001),
                    ..OtherBroker::default()
                }],
                ..BrokerStatus::default()
            },
            clients: vec![client.clone()],
            ended: vec![EndedStatus {
                last: client,
                ending: Ending::Vanished,
                exit: Exit::default(),
                ago_s: 3.0,
            }],
            warnings: vec![Warning {
                kind: WarningKind::NoProfile,
                client: Some(2),
                device: None,
                text: "client 2: no profile".to_string(),
            }],
        };
        let page = shown(&status, true, 160);
        for part in [
            "policy weft",
            "! client 2: no profile",
            "client 2: ran 60.0 s, 60.0 s of it in the background",
            "cost the foreground job 35.0 ms (0.2 %)",
            "0f0f: also managed by another broker (in another container of user 1001); the two do not coordinate",
            "0f0f: 2 of its jobs share it under one MPS server, 1 do not",
            "background, waits",
            "(!) train",
            "1.50 ms",
            "client 2: profile train: of another GPU",
            "client 2: 4 internal errors",
            "managed, 4.00 GiB of it touched, about 3.00 GiB on the device",
            "about 6.00 GiB by faults",
            "client 2: its control group leaves 1.00 GiB of host memory",
            "client 2: the link carries 20.0 GiB/s to the device, not measured to the host",
            "client 2: has the memory turn now, turns of 120 ms, had 17",
            "client 2: its turns are too short for the memory they move: it is swapped out for 500 ms between turns, and needs 900 ms",
            "client 2: 2 allocations could not be managed",
            "client 2: allocated 10.0 GiB of managed memory itself",
            "client 2: 9 launches passed the gate without credit",
            "vanished",
            "nightly",
            "outstanding",
        ] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
        let brief = shown(&status, false, 80);
        for part in [
            "nightly",
            "background, waits",
            "0.2 %",
            "client 2: 4 internal errors",
            "client 2: ran 60.0 s",
        ] {
            assert!(brief.contains(part), "{part} is not in\n{brief}");
        }
        for internal in [
            "outstanding",
            "passed the gate without credit",
            "the link carries",
            "the memory turn now",
        ] {
            assert!(!brief.contains(internal), "{internal} is in\n{brief}");
        }
        let lost = |mode: &str, slo_ns| {
            let job = ClientStatus {
                mode: mode.to_string(),
                slowdown_allowed: Some(0.02),
                slo_ns,
                ..ClientStatus::default()
            };
            let lines = details(&job, false);
            let found = lines
                .iter()
                .find_map(|line| line.strip_prefix("may be slowed down by "));
            found.map(str::to_string)
        };
        assert_eq!(lost("foreground", None).as_deref(), Some("2 %"));
        let within = "2 %, within 50.0 ms";
        assert_eq!(lost("foreground", Some(50_000_000)).as_deref(), Some(within));
        assert_eq!(lost("background", Some(50_000_000)), None);
        let measured = ClientStatus {
            mode: "foreground".to_string(),
            slowdown_allowed: Some(0.02),
            slowdown_measured: Some(0.005),
            ..ClientStatus::default()
        };
        assert_eq!(may_lose(&measured).as_deref(), Some("2 % (measured: 0.5 %)"));
        let part = |mode: &str| {
            let job = ClientStatus {
                mode: mode.to_string(),
                at_least: Some(0.3),
                ..ClientStatus::default()
            };
            details(&job, false).join("")
        };
        assert_eq!(part("background"), "is to have at least 30 % of the GPU's time");
        assert!(part("alone").ends_with("30 % of the GPU's time as a background job"));
        let role_of = |mode: &str, waits_for_memory_s| {
            role(&ClientStatus {
                mode: mode.to_string(),
                waits_for_memory_s,
                ..ClientStatus::default()
            })
        };
        assert_eq!(role_of("waits for memory", Some(12.5)), "waits for memory, 12 s");
        assert_eq!(
            role_of("background", Some(300.0)),
            "background, waits for memory, 5 min"
        );
        assert_eq!(role_of("foreground", None), "foreground");
        let empty = Status {
            clients: Vec::new(),
            ended: Vec::new(),
            warnings: Vec::new(),
            ..status
        };
        assert!(shown(&empty, false, 80).contains("no job is attached"));
    }

    fn shown(status: &Status, verbose: bool, width: usize) -> String {
        let lines = render(status, verbose, width).into_iter();
        let lines = lines.map(|(PageLine::Prose(line) | PageLine::Row(line))| line);
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn tables_fit_and_keep_what_people_look_for() {
        let job = |client: u64, name: &str, mode: &str| ClientStatus {
            client,
            pid: 1_234_000 + client as u32,
            uid: 4_000_000,
            name: name.to_string(),
            command: format!("python -u /home/ann/a/long/way/{name} --config some/where.yaml --lr 0.001"),
            priority: client as u8,
            mode: mode.to_string(),
            memory: 112 << 20,
            outcome: Some(Outcome {
                gpu_ns: Some(12_300_000_000),
                lost: Some(LatenessSum {
                    ns: 35_000_000,
                    part: 0.002,
                    waits: 7,
                }),
                ..Outcome::default()
            }),
            ..ClientStatus::default()
        };
        let clients = vec![
            job(1, "serve.py", "foreground"),
            job(
                2,
                "a-name-of-as-many-letters-as-there-may-be-in-a-name-of-a-job-64x",
                "background",
            ),
        ];
        let ended = clients.iter().map(|client| EndedStatus {
            last: client.clone(),
            ending: Ending::Goodbye,
            exit: Exit::default(),
            ago_s: 3.0,
        });
        let mut status = Status {
            schema: 1,
            broker: BrokerStatus::default(),
            ended: ended.cycle().take(2 * ENDED_SHOWN).collect(),
            clients,
            warnings: Vec::new(),
        };
        for (width, shared) in [
            (60, true),
            (60, false),
            (80, false),
            (80, true),
            (100, true),
            (200, true),
        ] {
            status.broker.shared = shared;
            for verbose in [false, true] {
                for line in render(&status, verbose, width) {
                    if let PageLine::Row(line) = line {
                        assert!(text::width(&line) <= width, "{width}: {line}");
                    }
                }
            }
            let page = shown(&status, false, width);
            let has = |words: &[&str]| words.iter().all(|word| page.contains(word));
            assert!(has(&["serve.py", "foreground", "0.2 %", "prio"]), "{width}: {page}");
            assert!(width < 80 || has(&["12.3 s", "cost", "1234001"]), "{width}: {page}");
            assert!(width < 100 || has(&["112 MiB"]), "{width}: {page}");
            assert!(
                width < 200 || has(&["python -u /home", "35.0 ms (0.2 %)", "4000000"]),
                "{width}: {page}"
            );
            assert!(has(&["10 more: weft status -v"]), "{page}");
        }
    }
}
