//! `weft status`: jobs with their roles and waits, and what went wrong.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::{Result, bail};

use super::history;
use super::text::{self, TextTable};
use weft_daemon::admin::{self, Answer, Question};
use weft_daemon::places::Places;
use weft_daemon::status::{ClientStatus, DeviceStatus, Status};

/// Show the broker, its jobs and the last ones that ended
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    /// Everything, as JSON
    #[arg(long)]
    pub json: bool,
}

/// Shows the status.
pub fn main(args: StatusArgs) -> Result<ExitCode> {
    let Answer::Status(status) = admin::ask(&Places::of_environment(), &Question::Status)? else {
        bail!("unexpected answer");
    };
    text::show(&*status, args.json, |status| {
        [vec![render(status)], past_weft(status)].concat().join("\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Processes that should be among the jobs but bypass weft.
fn past_weft(status: &Status) -> Vec<String> {
    let attached: Vec<u32> = status.clients.iter().map(|client| client.pid).collect();
    let lines = super::outside::processes(&attached).into_iter().map(|process| {
        let command = text::cut(&process.command, text::COMMAND);
        format!("process {} has opened the driver past weft: {command}", process.pid)
    });
    lines.collect()
}

/// The page for people.
pub fn render(status: &Status) -> String {
    let broker = &status.broker;
    let mut page = vec![format!(
        "broker {}, policy {}, up {}, {} attached so far: {} ended well, {} vanished, {} let go, {} refused",
        broker.pid,
        broker.policy,
        text::span(broker.uptime_s),
        broker.attached,
        broker.goodbyes,
        broker.vanished,
        broker.detached,
        broker.refused,
    )];
    if broker.records_lost > 0 {
        page.push(format!(
            "{} of {} records came too fast and were lost",
            broker.records_lost, broker.records
        ));
    }
    if let Some(trouble) = &broker.last_trouble {
        page.push(format!("last trouble: {trouble}"));
    }
    page.extend(broker.devices.iter().filter_map(mps));
    page.extend(warnings(status));
    page.push(String::new());
    match status.clients.is_empty() {
        true => page.push("no job is attached".to_string()),
        false => page.extend(clients(&status.clients, broker.shared)),
    }
    if !status.ended.is_empty() {
        page.push(String::new());
        page.push("ended:".to_string());
        let mut table = TextTable::new([
            "client", "pid", "prio", "how", "ago", "ran", "launches", "GPU time", "lost", "cost", "command",
        ]);
        for ended in &status.ended {
            let last = &ended.last;
            let figures = history::figures(&last.outcome.clone().unwrap_or_default());
            table.row([
                last.client.to_string(),
                last.pid.to_string(),
                last.priority.to_string(),
                history::how(ended.ending).to_string(),
                text::span(ended.ago_s),
                text::span(last.attached_s),
                (last.launches + last.graph_launches).to_string(),
                figures.gpu,
                figures.lost,
                figures.cost,
                text::command(&last.command, text::COMMAND),
            ]);
        }
        page.extend(table.lines());
    }
    page.join("\n")
}

/// Where protection does not work, a line each.
pub fn warnings(status: &Status) -> Vec<String> {
    // Known before the outcome thread heard of it, and where that does not answer.
    let others = status.broker.others.iter().map(ToString::to_string);
    let others = others.filter(|other| status.warnings.iter().all(|warning| warning.text != *other));
    let all = status.warnings.iter().map(|warning| warning.text.clone());
    all.chain(others).map(|line| format!("! {line}")).collect()
}

/// MPS use of a device, if any.
pub fn mps(device: &DeviceStatus) -> Option<String> {
    let called = device.uuid.as_deref().unwrap_or("first");
    match (device.under_mps, device.not_under_mps) {
        (0, _) => None,
        (_, 0) => Some(format!("device {called}: shared under MPS, without turns")),
        (under, apart) => Some(format!(
            "device {called}: {under} of its jobs share it under MPS and {apart} do not, so it takes turns between processes: give all the same CUDA_MPS_PIPE_DIRECTORY"
        )),
    }
}

/// A job's role, and what it waits for.
pub fn role(client: &ClientStatus) -> String {
    let waits = "waits for memory";
    match (client.waits_for_memory_s, client.mode == waits) {
        (Some(seconds), true) => format!("{waits}, {}", text::span(seconds)),
        (Some(seconds), false) => format!("{}, {waits}, {}", client.mode, text::span(seconds)),
        (None, _) if client.stopped => format!("{}, stopped", client.mode),
        (None, _) if client.waiting => format!("{}, waits", client.mode),
        (None, _) => client.mode.clone(),
    }
}

/// Part of its time that a foreground job may lose to background jobs.
pub fn allowed(client: &ClientStatus) -> Option<f64> {
    let foreground = matches!(client.mode.as_str(), "foreground" | "alone");
    client.slowdown_allowed.filter(|_| foreground)
}

/// What a foreground job may lose to background jobs.
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

fn clients(clients: &[ClientStatus], shared: bool) -> Vec<String> {
    let mut table = TextTable::new([
        if shared { "user/client" } else { "client" },
        "pid",
        "prio",
        "mode",
        "profile",
        "launches",
        "waits",
        "waited",
        "expired",
        "memory",
        "credit",
        "outstanding",
        "command",
    ]);
    for client in clients {
        let background = client.mode == "background";
        let figure = |ns: u64| {
            if background {
                text::duration(ns)
            } else {
                "-".to_string()
            }
        };
        let profile = match (&client.profile, &client.profile_trouble, client.profiling) {
            (Some(name), _, true) => format!("{name} (sampling)"),
            (Some(name), Some(_), _) => format!("{name} (!)"),
            (Some(name), None, _) => name.clone(),
            (None, ..) => "none".to_string(),
        };
        table.row([
            match shared {
                true => format!("{}/{}", client.uid, client.client),
                false => client.client.to_string(),
            },
            client.pid.to_string(),
            client.priority.to_string(),
            role(client),
            text::cut(&profile, 24),
            (client.launches + client.graph_launches).to_string(),
            client.waits.to_string(),
            text::duration(client.waited_ns),
            client.waits_expired.to_string(),
            text::size(client.memory),
            figure(client.credit_ns.max(0) as u64),
            figure(client.outstanding_ns),
            text::command(&client.command, text::COMMAND),
        ]);
    }
    let mut lines = table.lines();
    for client in clients {
        let named = |line: String| format!("client {}: {line}", client.client);
        // What it warns of is told above all jobs.
        if let Some(outcome) = client.outcome.as_ref().filter(|outcome| outcome.launches > 0) {
            lines.push(named(outcome.line()));
        }
        if let Some(trouble) = &client.profile_trouble {
            lines.push(named(trouble.clone()));
        }
        if let Some(lost) = may_lose(client).filter(|_| client.mode == "foreground") {
            lines.push(named(format!("may be slowed down by {lost}")));
        }
        if client.managed > 0 {
            lines.push(named(format!(
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
            )));
            if client.memory_waited_ns > 0 || client.memory_waits_expired > 0 {
                lines.push(named(format!(
                    "launches waited {} for memory on its way, {} of them in vain",
                    text::duration(client.memory_waited_ns),
                    client.memory_waits_expired,
                )));
            }
        }
        if client.managed > 0 && client.host_left > 0 && client.host_left < client.managed {
            lines.push(named(format!(
                "its control group leaves {} of host memory: what others push off the device is charged there",
                text::size(client.host_left)
            )));
        }
        if client.to_device_bytes_per_s > 0 || client.to_host_bytes_per_s > 0 {
            let rate = |bytes: u64| match bytes {
                0 => "not measured".to_string(),
                bytes => format!("{}/s", text::size(bytes)),
            };
            lines.push(named(format!(
                "the link carries {} to the device, {} to the host",
                rate(client.to_device_bytes_per_s),
                rate(client.to_host_bytes_per_s)
            )));
        }
        if client.turn_ns > 0 || client.turns > 0 {
            let now = match (client.has_turn, client.turn_ns) {
                (true, _) => "has the memory's turn now",
                (false, 0) => "finds room beside the others now",
                (false, _) => "waits for the memory's turn",
            };
            let length = match client.turn_ns {
                0 => String::new(),
                length => format!(", turns of {}", text::duration(length)),
            };
            lines.push(named(format!("{now}{length}, had {}", client.turns)));
            if client.swapped_out_needed_ns > 0 {
                lines.push(named(format!(
                    "has turns too short for what they move: it is swapped out for {} between two, and {} would do (--swapped-out-limit)",
                    text::duration(client.swapped_out_ns),
                    text::duration(client.swapped_out_needed_ns)
                )));
            }
        }
        if client.managed_own > 0 {
            lines.push(named(format!(
                "took {} of managed memory by itself, which the driver moves as it likes",
                text::size(client.managed_own)
            )));
        }
        if client.unmanaged > 0 {
            lines.push(named(format!(
                "{} allocations could not be managed and stay on the device",
                client.unmanaged
            )));
        }
        if client.troubles > 0 {
            lines.push(named(format!(
                "{} troubles answered by passing the call through",
                client.troubles
            )));
        }
        if client.unsplit > 0 {
            lines.push(named(format!(
                "{} launches in the middle of bursts that it times (auto-tuning), or that other devices wait for, went past the gate without credit",
                client.unsplit
            )));
        }
        if client.left_behind > 0 {
            lines.push(named(format!(
                "{} launches were left behind at the gate and issued when it opened{}",
                client.left_behind,
                match client.left_failed {
                    0 => String::new(),
                    failed => format!("; the driver refused {failed} of them"),
                }
            )));
        }
        if client.unnamed > 0 {
            lines.push(named(format!(
                "{} launches of kernels with no known name",
                client.unnamed
            )));
        }
        if client.dropped_messages > 0 {
            lines.push(named(format!(
                "{} messages to the broker dropped",
                client.dropped_messages
            )));
        }
        lines.extend(client.notes.iter().map(|note| named(text::cut(note, 160))));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_daemon::outcome::{LatenessSum, Outcome, Warning, WarningKind};
    use weft_daemon::status::{BrokerStatus, EndedStatus, Ending, OtherBroker};

    #[test]
    fn a_page_says_who_waits_and_what_went_wrong() {
        let client = ClientStatus {
            client: 2,
            pid: 77,
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
                ago_s: 3.0,
            }],
            warnings: vec![Warning {
                kind: WarningKind::NoProfile,
                client: Some(2),
                device: None,
                text: "client 2: no profile".to_string(),
            }],
        };
        let page = render(&status);
        for part in [
            "policy weft",
            "! client 2: no profile",
            "client 2: ran 60.0 s, 60.0 s of it in the background",
            "cost the foreground job 35.0 ms (0.2 %)",
            "0f0f: another broker has it, too (in another container of user 1001): its jobs and these do not meet",
            "0f0f: 2 of its jobs share it under MPS and 1 do not",
            "background, waits",
            "train (!)",
            "1.50 ms",
            "client 2: profile train: of another GPU",
            "client 2: 4 troubles",
            "managed, 4.00 GiB of it touched, about 3.00 GiB on the device",
            "about 6.00 GiB by faults",
            "client 2: its control group leaves 1.00 GiB of host memory",
            "client 2: the link carries 20.0 GiB/s to the device, not measured to the host",
            "client 2: has the memory's turn now, turns of 120 ms, had 17",
            "client 2: has turns too short for what they move: it is swapped out for 500 ms between two, and 900 ms would do",
            "client 2: 2 allocations could not be managed",
            "client 2: took 10.0 GiB of managed memory by itself",
            "client 2: 9 launches in the middle of bursts",
            "vanished",
        ] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
        let lost = |mode: &str, slo_ns| {
            let job = ClientStatus {
                mode: mode.to_string(),
                slowdown_allowed: Some(0.02),
                slo_ns,
                ..ClientStatus::default()
            };
            let page = clients(&[job], false).join("\n");
            let found = page.split_once("may be slowed down by ");
            found.map(|(_, lost)| lost.to_string())
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
        assert!(render(&empty).contains("no job is attached"));
    }
}
