//! Where protection does not work: one line each, that says what, where, and what to do. Pure.
#![forbid(unsafe_code)]

use weft_protocol::Ns;

use super::book::LongLaunches;
use crate::cores::View;
use crate::figures::{count, duration, percent};
use crate::outcome::{Warning, WarningKind};
use crate::status::{ClientStatus, OtherBroker};

/// WarningBounds that the broker goes by.
#[derive(Debug, Clone, Copy)]
pub struct WarningBounds {
    /// Bound on background work in the foreground job's way, ns.
    pub delay_bound: Ns,
    /// Longest wait at the gate, ns.
    pub longest_wait: Ns,
}

/// Part of a background job's launches beyond the bound from which on it is said.
const LONG_PART: f64 = 0.01;

/// Waits of a foreground job before its slowdown is held against what it may lose.
const ENOUGH_WAITS: u64 = 100;

/// Multiple of what it may lose, and what is added to it, from which on that is said: measurements
/// scatter.
const FAR_OVER: f64 = 2.0;
const SCATTER: f64 = 0.01;

/// Warnings about one client. `kernel`: name of its longest kernel.
pub(super) fn of_client(
    client: &ClientStatus,
    long: &LongLaunches,
    launched: u64,
    kernel: &str,
    bounds: &WarningBounds,
) -> Vec<Warning> {
    let mut all = Vec::new();
    let mut say = |kind, text: String| {
        all.push(Warning {
            kind,
            client: Some(client.client),
            device: None,
            text: format!("client {}: {text}", client.client),
        });
    };
    if long.count as f64 > launched as f64 * LONG_PART {
        say(
            WarningKind::LongKernels,
            format!(
                "{} of it are longer than the delay bound of {} (the longest: {}, {kernel}): the foreground job may have to wait for one; make its batches smaller, or run it when the service is quiet",
                count(long.count, "launch", "launches"),
                duration(bounds.delay_bound),
                duration(long.longest),
            ),
        );
    }
    let foreground = client.mode == "foreground";
    if foreground && client.profile.is_none() && !client.profiling {
        say(
            WarningKind::NoProfile,
            "the foreground job has no profile, so its gaps are guessed and it may lose more; take one: weft profile --name NAME -- COMMAND".to_string(),
        );
    }
    if let Some(trouble) = &client.profile_trouble {
        say(
            WarningKind::WrongProfile,
            format!("{trouble}; take it anew with weft profile"),
        );
    }
    if client.waits_expired > 0 {
        say(
            WarningKind::ForcedLaunches,
            format!(
                "{} passed the gate without credit, in rows of which the first had waited {} (--longest-wait): no gap was found for them, and the foreground job may have waited for them; give it fewer or shorter kernels, or another GPU",
                count(client.waits_expired, "launch", "launches"),
                duration(bounds.longest_wait),
            ),
        );
    }
    all
}

/// Warnings about one device. `gang`: which job a client belongs to, empty if it is one by itself.
pub(super) fn of_device(view: &View, gang: impl Fn(u64) -> String) -> Vec<Warning> {
    let mut all = Vec::new();
    let called = view
        .uuid
        .as_deref()
        .map_or("the device".to_string(), |uuid| format!("device {uuid}"));
    for client in view
        .snapshot
        .clients
        .iter()
        .filter(|client| client.mode == "foreground")
    {
        let lateness = client.lateness.filter(|lateness| lateness.waits >= ENOUGH_WAITS);
        let allowed = client.slowdown_allowed;
        let over = |part: &f64| *part > allowed * FAR_OVER + SCATTER;
        if let Some(part) = lateness.and_then(|lateness| lateness.part()).filter(over) {
            all.push(Warning {
                kind: WarningKind::OverSlowdown,
                client: Some(client.client),
                device: view.uuid.clone(),
                text: format!(
                    "client {}: background jobs slowed it down by {}, and it may lose {}; give it a profile, run fewer or shorter background kernels, or say weft broker --dilation on a simulated GPU",
                    client.client,
                    percent(part),
                    percent(allowed),
                ),
            });
        }
    }
    let mut say = |kind, text| {
        all.push(Warning {
            kind,
            client: None,
            device: view.uuid.clone(),
            text,
        });
    };
    let mut jobs: Vec<(u64, String)> = Vec::new();
    for client in view
        .snapshot
        .clients
        .iter()
        .filter(|client| client.mode == "foreground")
    {
        let of = gang(client.client);
        if of.is_empty() || jobs.iter().all(|(_, other)| *other != of) {
            jobs.push((client.client, of));
        }
    }
    if let [.., (last, _)] = jobs[..]
        && jobs.len() > 1
    {
        let numbers: Vec<String> = jobs.iter().take(8).map(|(client, _)| client.to_string()).collect();
        say(
            WarningKind::SamePriority,
            format!(
                "{called}: clients {} have the same first priority, so none of them is protected from the others; weft set --client {last} --priority 5 makes one a background job",
                numbers.join(", "),
            ),
        );
    }
    if view.not_under_mps > 0 && view.snapshot.clients.len() > 1 {
        say(
            WarningKind::NoMps,
            format!(
                "{called}: {} without MPS, so the device takes turns between processes (about {} a switch); start nvidia-cuda-mps-control -d, then the jobs again",
                count(view.not_under_mps as u64, "job is", "jobs are"),
                duration(view.snapshot.switch_cost),
            ),
        );
    }
    all
}

/// The warning about another broker.
pub(super) fn of_other(other: &OtherBroker) -> Warning {
    Warning {
        kind: WarningKind::OtherBroker,
        client: None,
        device: Some(other.device.clone()),
        text: other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use weft_scheduler::{Client, Config, Core, Event};

    use super::*;

    const BOUNDS: WarningBounds = WarningBounds {
        delay_bound: 500_000,
        longest_wait: 1_000_000_000,
    };

    const NONE: LongLaunches = LongLaunches {
        count: 0,
        longest: 0,
        kernel: 0,
    };

    fn kinds(client: &ClientStatus, long: &LongLaunches) -> Vec<WarningKind> {
        let all = of_client(client, long, 1_000, "gemm", &BOUNDS);
        assert!(all.iter().all(|warning| warning.text.lines().count() == 1));
        all.iter().map(|warning| warning.kind).collect()
    }

    #[test]
    fn a_client_in_order_is_not_warned_of() {
        let good = ClientStatus {
            mode: "foreground".to_string(),
            profile: Some("resnet".to_string()),
            ..ClientStatus::default()
        };
        assert_eq!(kinds(&good, &NONE), []);
        let sampled = ClientStatus {
            profile: None,
            profiling: true,
            ..good.clone()
        };
        assert_eq!(kinds(&sampled, &NONE), []);
        let alone = ClientStatus {
            mode: "alone".to_string(),
            profile: None,
            ..good
        };
        assert_eq!(kinds(&alone, &NONE), []);
    }

    #[test]
    fn each_trouble_of_a_client_is_one_line() {
        let bad = ClientStatus {
            mode: "foreground".to_string(),
            profile_trouble: Some("profile x knows 0 of 22 kernels".to_string()),
            waits_expired: 3,
            ..ClientStatus::default()
        };
        let long = LongLaunches {
            count: 11,
            longest: 12_000_000,
            kernel: 7,
        };
        use WarningKind::*;
        assert_eq!(
            kinds(&bad, &long),
            [LongKernels, NoProfile, WrongProfile, ForcedLaunches]
        );
        let few = LongLaunches { count: 10, ..long };
        assert_eq!(kinds(&ClientStatus::default(), &few), [], "one in a hundred");
        let text = &of_client(&bad, &long, 1_000, "gemm", &BOUNDS)[0].text;
        assert!(text.starts_with("client 0: 11 launches of it are longer than the delay bound of 500 us"));
        assert!(text.contains("12.0 ms, gemm"), "{text}");
    }

    #[test]
    fn equals_at_the_top_are_told_of_unless_they_are_one_job() {
        let mut core = Core::new(Config::default());
        for client in 1..=3 {
            let attached = Event::Attached {
                client: Client(client),
                priority: if client < 3 { 2 } else { 7 },
                profile: None,
            };
            core.handle(0, attached, &mut Vec::new());
        }
        let view = View {
            uuid: Some("0f".to_string()),
            snapshot: core.snapshot(),
            under_mps: 0,
            not_under_mps: 3,
        };
        let apart = of_device(&view, |_| String::new());
        assert_eq!(
            apart.iter().map(|warning| warning.kind).collect::<Vec<_>>(),
            [WarningKind::SamePriority, WarningKind::NoMps]
        );
        assert!(
            apart[0]
                .text
                .contains("device 0f: clients 1, 2 have the same first priority")
        );
        assert!(apart[0].text.contains("weft set --client 2 --priority 5"));
        assert!(apart[1].text.contains("100 us"), "{}", apart[1].text);
        let one_job = of_device(&view, |_| "gang".to_string());
        assert_eq!(one_job.len(), 1, "ranks of one job");
        let mut under_mps = View {
            under_mps: 3,
            not_under_mps: 0,
            ..view
        };
        assert_eq!(of_device(&under_mps, |_| "gang".to_string()), []);
        let mut late = |part: f64, waits| {
            under_mps.snapshot.clients[0].lateness = Some(weft_scheduler::Lateness {
                late: part * 1e9,
                alone: 1e9,
                waits,
                stretches: 1e9,
            });
            of_device(&under_mps, |_| "gang".to_string())
        };
        // It may lose 1 %.
        assert_eq!(late(0.03, 100), []);
        assert_eq!(late(0.04, 99), []);
        let over = late(0.04, 100);
        assert_eq!((over[0].kind, over[0].client), (WarningKind::OverSlowdown, Some(1)));
        assert!(
            over[0].text.contains("slowed it down by 4 %, and it may lose 1 %"),
            "{}",
            over[0].text
        );
    }
}
