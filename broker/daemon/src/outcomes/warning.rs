// SPDX-License-Identifier: MIT OR Apache-2.0
//! Warnings that protection does not work: one line each with problem, place and remedy. Pure.
#![forbid(unsafe_code)]

use weft_protocol::Ns;

use super::book::LongLaunches;
use crate::scheduler_mailbox::View;
use weft_api::formatting::{count, duration, percent};
use weft_api::outcome::{Outcome, Warning, WarningKind};
use weft_api::status::{ClientStatus, OtherBroker};

/// Settings of the broker that warnings depend on.
#[derive(Debug, Clone, Copy)]
pub struct WarningBounds {
    /// Whether the broker is shared: it then starts no MPS.
    pub shared: bool,
    /// Bound on the background work that a foreground job may have to wait for, ns.
    pub delay_bound: Ns,
    /// Longest wait at the gate, ns.
    pub longest_wait: Ns,
}

/// Part of a job's launches that may be longer than the delay bound, or pass the gate without
/// credit, before a warning.
const LONG_PART: f64 = 0.01;

/// Waits or requests of a foreground job before a warning about its slowdown.
const ENOUGH_WAITS: u64 = 100;

/// Seconds in the background before a warning about a job's cost.
const ENOUGH_BACKGROUND_S: f64 = 2.0;

/// Multiple of the allowed slowdown beyond which, with [`SCATTER`] added, a warning is given:
/// measurements scatter.
const FAR_OVER: f64 = 2.0;
/// Slowdown added to that multiple, a part of the job's time.
const SCATTER: f64 = 0.01;

/// Slowdown that the minimum share of background jobs, a fiftieth of the device, may cost.
const MINIMUM_SHARE_COST: f64 = 0.02 + SCATTER;

/// Part of a job's time for which a warning must have been true to be kept in its outcome. A
/// shorter state, for example while another job began, changed little for the job.
pub(super) const KEPT_PART: f64 = 0.1;

/// Least important priority whose jobs are protected from one another: the default. Less important
/// jobs give way.
const LEAST_PROTECTED: u8 = 5;

/// Time that a warning is about: now, or all of a job's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WarningSpan {
    Now,
    WholeJob,
}

/// The more important background job that has the gaps, as a less important job meets it.
#[derive(Debug, Default)]
pub(super) struct GapHolder {
    name: String,
    priority: u8,
    /// Forced launches of the less important job, and those while the other one worked.
    forced: u64,
    behind: u64,
    /// Whether the other one works now.
    works: bool,
}

impl GapHolder {
    /// Takes in the forced launches so far. `holder`: name and priority of a more important
    /// background job that works now.
    pub(super) fn take(&mut self, forced: u64, holder: Option<(String, u8)>) {
        let new = forced.saturating_sub(std::mem::replace(&mut self.forced, forced));
        self.works = holder.is_some();
        if let Some((name, priority)) = holder {
            (self.name, self.priority) = (name, priority);
            self.behind += new;
        }
    }

    /// Whether most forced launches were forced because of it.
    fn is_cause(&self) -> bool {
        2 * self.behind > self.forced
    }
}

fn launched(job: &ClientStatus) -> u64 {
    job.launches + job.graph_launches + job.transfers
}

/// Whether a background job has kernels longer than the delay bound.
pub(super) fn has_long(job: &ClientStatus, long: &LongLaunches) -> bool {
    long.count as f64 > launched(job) as f64 * LONG_PART
}

/// Facts that decide on the warnings about a client.
#[derive(Debug)]
pub(super) struct ClientFacts<'a> {
    pub(super) status: &'a ClientStatus,
    /// The outcome shown to people. No warning contradicts it.
    pub(super) outcome: &'a Outcome,
    /// Allowed slowdown of the foreground job, a part of its time: of this job or of the one on its
    /// device.
    pub(super) allowed: f64,
    pub(super) long: &'a LongLaunches,
    /// Name of its longest kernel.
    pub(super) kernel: &'a str,
    /// Whether a client of another job is on its device.
    pub(super) has_company: bool,
    /// Whether the device takes turns between processes.
    pub(super) switches: bool,
    /// Known reason for which the background jobs of its device delay it.
    pub(super) neighbours: Neighbours,
    pub(super) holder: &'a GapHolder,
}

/// A known reason for which the background jobs of a device delay its foreground job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Neighbours {
    /// None.
    Usual,
    /// One has kernels longer than the delay bound.
    HaveLongKernels,
    /// They have this part of the device's time.
    HavePart(f64),
}

impl ClientFacts<'_> {
    /// The job's name for people.
    fn called(&self) -> String {
        called(&self.status.name, self.status.client)
    }

    /// Whether it has this role now, or had it for a large enough part of its time.
    fn was(&self, role: &str, seconds: f64, span: WarningSpan) -> bool {
        match span {
            WarningSpan::Now => self.status.mode == role,
            WarningSpan::WholeJob => seconds > 0.0 && seconds >= self.outcome.ran_s * KEPT_PART,
        }
    }

    /// Whether a loss is far over the allowed one, and, if `wanted`, over that which the background
    /// jobs' parts of the device's time explain.
    fn is_far_over(&self, part: f64, wanted: bool) -> bool {
        let explained = match self.neighbours {
            Neighbours::HavePart(taken) if wanted => taken / (1.0 - taken).max(f64::EPSILON),
            _ => 0.0,
        };
        part > (self.allowed + explained) * FAR_OVER + SCATTER
    }

    fn has_no_profile(&self) -> bool {
        self.status.profile.is_none() && !self.status.profiling
    }

    /// Remedy for a foreground job that lost `part` of its time.
    fn remedy(&self, part: f64, bounds: &WarningBounds) -> &'static str {
        match (self.switches, bounds.shared) {
            _ if !self.is_far_over(part, true) => {
                "a background job has a part of the GPU's time: give it less (weft set --at-least), or allow the loss (weft set --slowdown)"
            }
            _ if self.has_no_profile() => "give it a profile",
            _ if self.neighbours == Neighbours::HaveLongKernels => {
                "kernels of a background job are longer than the delay bound: use smaller batches there"
            }
            _ if self.allowed == 0.0 && part <= MINIMUM_SHARE_COST => {
                "the minimum share of the background jobs costs that: allow it (weft set --slowdown), or pause them (weft pause)"
            }
            (true, true) => {
                "each switch between processes delays it, and a shared broker starts no MPS: run fewer background jobs, or use another GPU"
            }
            (true, false) => "each switch between processes delays it: restart the jobs with weft run --mps on",
            (false, _) => "use fewer or shorter kernels in the background jobs, or another GPU",
        }
    }
}

/// A job's name, or its client number if it has none.
pub(super) fn called(name: &str, client: u64) -> String {
    match name {
        "" => format!("client {client}"),
        name => name.to_string(),
    }
}

/// Warnings about one client.
pub(super) fn of_client(facts: &ClientFacts<'_>, span: WarningSpan, bounds: &WarningBounds) -> Vec<Warning> {
    let (client, outcome, long) = (facts.status, facts.outcome, facts.long);
    let called = facts.called();
    let mut all = Vec::new();
    let mut say = |kind, text: String| {
        all.push(Warning {
            kind,
            client: Some(client.client),
            device: None,
            text: format!("{called}: {text}"),
        });
    };
    let launched = launched(client);
    if has_long(client, long) {
        say(
            WarningKind::LongKernels,
            format!(
                "{} of it are longer than the delay bound of {} (the longest: {}, {}), so the foreground job may have to wait for one; use smaller batches, or run it when the foreground job is idle",
                count(long.count, "launch", "launches"),
                duration(bounds.delay_bound),
                duration(long.longest),
                facts.kernel,
            ),
        );
    }
    let foreground = facts.was("foreground", outcome.foreground_s, span);
    if foreground && facts.has_no_profile() && facts.has_company && launched > 0 {
        say(
            WarningKind::NoProfile,
            "the foreground job has no profile, so its gaps are guessed and it may lose more; record one: weft profile --name NAME -- COMMAND".to_string(),
        );
    }
    let background = facts.was("background", outcome.background_s, span);
    let cost = outcome
        .cost
        .filter(|_| background && outcome.background_s >= ENOUGH_BACKGROUND_S);
    // A profile does not reduce the cost of switches between processes.
    let helps = facts.has_no_profile() && !facts.switches;
    if let Some(cost) = cost.filter(|cost| helps && facts.is_far_over(cost.part, true)) {
        let name = client
            .name
            .rsplit_once('.')
            .map_or(client.name.as_str(), |(stem, _)| stem);
        let name = if name.is_empty() { "NAME" } else { name };
        say(
            WarningKind::BackgroundNoProfile,
            format!(
                "this background job has no profile, and the foreground job loses {} because of it; record one: weft profile --name {name} -- COMMAND, then weft run --profile {name}",
                cost.part_text(),
            ),
        );
    }
    if let Some(trouble) = &client.profile_trouble {
        let advice = match trouble.contains("anew") {
            true => "",
            false => "; record it anew with weft profile",
        };
        say(WarningKind::WrongProfile, format!("{trouble}{advice}"));
    }
    let holder = facts.holder;
    // Forced by a job that has ended or is paused.
    let is_past = span == WarningSpan::Now && holder.is_cause() && !holder.works;
    if client.waits_expired as f64 > launched as f64 * LONG_PART && !is_past {
        let forced = format!(
            "{} passed the gate without credit, in runs whose first launch had waited {} (--longest-wait)",
            count(client.waits_expired, "launch", "launches"),
            duration(bounds.longest_wait),
        );
        match holder.is_cause() {
            true => say(
                WarningKind::Outranked,
                format!(
                    "{} (priority {}) has the gaps first, and this job (priority {}) gets what is left, at least the minimum share: {forced}; with one priority they have equal parts (weft set), or use another GPU",
                    holder.name, holder.priority, client.priority,
                ),
            ),
            false if facts.allowed == 0.0 => say(
                WarningKind::ForcedLaunches,
                format!(
                    "{forced}: the foreground job allows no slowdown, so hardly a gap has room for them; allow it some (weft set --slowdown 1%), or use another GPU"
                ),
            ),
            false => say(
                WarningKind::ForcedLaunches,
                format!(
                    "{forced}: no gap had room for them, and they may have delayed the foreground job; use fewer or shorter kernels, or another GPU"
                ),
            ),
        }
    }
    let lost = outcome.lost_at_requests.or(outcome.lost);
    let lost = lost.filter(|lost| foreground && lost.waits >= ENOUGH_WAITS && facts.is_far_over(lost.part, false));
    if let Some(lost) = lost {
        say(
            match facts.is_far_over(lost.part, true) {
                true => WarningKind::OverSlowdown,
                false => WarningKind::WantedLoss,
            },
            format!(
                "background jobs slowed it down by {}, and {} is allowed; {}",
                lost.part_text(),
                percent(facts.allowed),
                facts.remedy(lost.part, bounds),
            ),
        );
    }
    let part = outcome.part.filter(|_| background);
    if let Some((part, why)) = part.and_then(|part| Some((part, part.missed()?))) {
        say(
            WarningKind::PartMissed,
            format!(
                "had {} of the GPU's time, and is to have at least {}: {why}",
                percent(part.had),
                percent(part.wanted),
            ),
        );
    }
    all
}

/// Names of a view's jobs and device, for people.
pub(super) struct CalledNames<'a> {
    pub(super) job: &'a dyn Fn(u64) -> String,
    pub(super) device: &'a str,
}

/// Warnings about one device. `gang`: the job to which a client belongs; empty if the client is a
/// job of its own. `shared`: whether the broker is.
pub(super) fn of_device(
    view: &View,
    gang: impl Fn(u64) -> String,
    names: &CalledNames<'_>,
    shared: bool,
) -> Vec<Warning> {
    let mut all = Vec::new();
    let called = names.device;
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
        .filter(|client| client.mode == "foreground" && client.priority <= LEAST_PROTECTED && client.launches > 0)
    {
        let of = gang(client.client);
        if of.is_empty() || jobs.iter().all(|(_, other)| *other != of) {
            jobs.push((client.client, of));
        }
    }
    if let [.., (last, _)] = jobs[..]
        && jobs.len() > 1
    {
        let called_jobs: Vec<String> = jobs.iter().take(8).map(|(client, _)| (names.job)(*client)).collect();
        let twice = |name: &String| called_jobs.iter().filter(|other| *other == name).count() > 1;
        let numbered = called_jobs
            .iter()
            .zip(&jobs)
            .map(|(name, (client, _))| match twice(name) {
                true => format!("{name} (client {client})"),
                false => name.clone(),
            });
        let called_jobs: Vec<String> = numbered.collect();
        say(
            WarningKind::SamePriority,
            format!(
                "{called}: {} have the same highest priority, so none of them is protected from the others; make one a background job: weft set --client {last} --priority 6",
                called_jobs.join(", "),
            ),
        );
    }
    if view.not_under_mps > 0 && view.snapshot.clients.len() > 1 {
        say(
            WarningKind::NoMps,
            format!(
                "{called}: {} without MPS, so the device takes turns between processes (about {} a switch); {}",
                match view.under_mps {
                    0 => "its jobs are".to_string(),
                    _ => count(view.not_under_mps as u64, "job is", "jobs are"),
                },
                duration(view.snapshot.switch_cost),
                match (view.under_mps, shared) {
                    // The others' daemon keeps weft from starting a second one.
                    (1.., _) => "restart all with one CUDA_MPS_PIPE_DIRECTORY (weft doctor lists the daemons)",
                    (0, true) =>
                        "a shared broker starts no MPS: one user's jobs may have a daemon of their own (nvidia-cuda-mps-control -d)",
                    (0, false) => "restart them with weft run --mps on",
                },
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
    use weft_api::outcome::{GuaranteedPart, LatenessSum};

    const BOUNDS: WarningBounds = WarningBounds {
        shared: false,
        delay_bound: 500_000,
        longest_wait: 1_000_000_000,
    };

    const NONE: LongLaunches = LongLaunches {
        count: 0,
        longest: 0,
        kernel: 0,
    };

    fn warned(client: &ClientStatus, outcome: &Outcome, long: &LongLaunches, span: WarningSpan) -> Vec<Warning> {
        let facts = ClientFacts {
            status: client,
            outcome,
            allowed: 0.01,
            long,
            kernel: "gemm",
            has_company: true,
            switches: false,
            neighbours: Neighbours::Usual,
            holder: &GapHolder::default(),
        };
        let all = of_client(&facts, span, &BOUNDS);
        assert!(all.iter().all(|warning| warning.text.lines().count() == 1));
        all
    }

    fn kinds(client: &ClientStatus, long: &LongLaunches) -> Vec<WarningKind> {
        let all = warned(client, &Outcome::default(), long, WarningSpan::Now);
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
            waits_expired: 11,
            launches: 1_000,
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
        let of_a_thousand = ClientStatus {
            launches: 1_000,
            ..ClientStatus::default()
        };
        assert_eq!(kinds(&of_a_thousand, &few), [], "one in a hundred");
        let text = &warned(&bad, &Outcome::default(), &long, WarningSpan::Now)[0].text;
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
        let mut view = View {
            uuid: Some("0f".to_string()),
            snapshot: core.snapshot(),
            under_mps: 0,
            not_under_mps: 3,
        };
        let job = |client: u64| format!("train{client}.py");
        let names = CalledNames {
            job: &job,
            device: "GPU 0",
        };
        let same = CalledNames {
            job: &|_| "bg".to_string(),
            device: "GPU 0",
        };
        let idle = of_device(&view, |_| String::new(), &names, false);
        assert_eq!(idle.len(), 1, "none of them has launched: {idle:?}");
        view.snapshot.clients.iter_mut().for_each(|client| client.launches = 1);
        let apart = of_device(&view, |_| String::new(), &names, false);
        assert_eq!(
            apart.iter().map(|warning| warning.kind).collect::<Vec<_>>(),
            [WarningKind::SamePriority, WarningKind::NoMps]
        );
        assert!(
            apart[0]
                .text
                .contains("GPU 0: train1.py, train2.py have the same highest priority")
        );
        assert!(apart[0].text.contains("weft set --client 2 --priority 6"));
        let numbered = of_device(&view, |_| String::new(), &same, false);
        assert!(numbered[0].text.contains("bg (client 1), bg (client 2) have"));
        assert!(apart[1].text.contains("its jobs are without MPS"), "{}", apart[1].text);
        assert!(apart[1].text.contains("100 us"), "{}", apart[1].text);
        assert!(apart[1].text.ends_with("weft run --mps on"), "{}", apart[1].text);
        let of_all = of_device(&view, |_| String::new(), &names, true).remove(1);
        assert!(of_all.text.contains("a shared broker starts no MPS"), "{}", of_all.text);
        view.under_mps = 1;
        view.not_under_mps = 2;
        let mixed = of_device(&view, |_| String::new(), &names, false).remove(1);
        assert!(mixed.text.contains("2 jobs are without MPS"), "{}", mixed.text);
        assert!(
            mixed.text.contains("restart all with one CUDA_MPS_PIPE"),
            "{}",
            mixed.text
        );
        let one_job = of_device(&view, |_| "gang".to_string(), &names, false);
        assert_eq!(one_job.len(), 1, "ranks of one job");
        let under_mps = View {
            under_mps: 3,
            not_under_mps: 0,
            ..view
        };
        assert_eq!(of_device(&under_mps, |_| "gang".to_string(), &names, false), []);
        let mut low = under_mps;
        low.snapshot.clients.iter_mut().for_each(|client| client.priority = 7);
        assert_eq!(of_device(&low, |_| String::new(), &names, false), [], "they give way");
    }

    fn lost(part: f64, waits: u64) -> Option<LatenessSum> {
        Some(LatenessSum { ns: 1, part, waits })
    }

    #[test]
    fn no_warning_contradicts_what_is_told_of_the_job() {
        let service = ClientStatus {
            name: "resnet-prod".to_string(),
            mode: "foreground".to_string(),
            profile: Some("resnet".to_string()),
            ..ClientStatus::default()
        };
        let of = |lost| Outcome {
            ran_s: 60.0,
            foreground_s: 50.0,
            lost,
            ..Outcome::default()
        };
        let said = |outcome: &Outcome| warned(&service, outcome, &NONE, WarningSpan::WholeJob);
        for (part, waits) in [(-0.2, 1_000), (0.03, 100), (0.04, 99)] {
            assert_eq!(said(&of(lost(part, waits))), [], "{part} at {waits}");
        }
        let over = said(&of(lost(0.04, 100)));
        assert_eq!(over[0].kind, WarningKind::OverSlowdown);
        let words = "resnet-prod: background jobs slowed it down by 4 %, and 1 % is allowed; use fewer";
        assert!(over[0].text.starts_with(words), "{}", over[0].text);
        // Lateness at its requests has precedence.
        let felt = Outcome {
            lost_at_requests: lost(0.0, 1_000),
            ..of(lost(0.3, 1_000))
        };
        assert_eq!(said(&felt), []);
    }

    #[test]
    fn a_role_of_a_moment_is_no_warning_for_ever() {
        let mut training = ClientStatus {
            mode: "background".to_string(),
            launches: 1_000,
            waits_expired: 10,
            ..ClientStatus::default()
        };
        let of = |foreground_s: f64| Outcome {
            ran_s: 60.0,
            foreground_s,
            background_s: 50.0,
            ..Outcome::default()
        };
        let said = |training: &_, outcome: &Outcome| warned(training, outcome, &NONE, WarningSpan::WholeJob);
        assert_eq!(said(&training, &of(0.078)), []);
        assert_eq!(said(&training, &of(6.0))[0].kind, WarningKind::NoProfile);
        training.waits_expired = 11;
        assert_eq!(said(&training, &of(0.078))[0].kind, WarningKind::ForcedLaunches);
        training.launches = 0;
        training.waits_expired = 0;
        assert_eq!(said(&training, &of(6.0)), [], "it launched nothing");
    }

    #[test]
    fn who_has_the_gaps_is_named() {
        let training = ClientStatus {
            name: "train.py".to_string(),
            mode: "background".to_string(),
            priority: 5,
            launches: 100,
            waits_expired: 40,
            ..ClientStatus::default()
        };
        let outcome = Outcome::default();
        let mut holder = GapHolder::default();
        let said = |holder: &GapHolder| {
            let facts = ClientFacts {
                status: &training,
                outcome: &outcome,
                allowed: 0.01,
                long: &NONE,
                kernel: "gemm",
                has_company: true,
                switches: false,
                neighbours: Neighbours::Usual,
                holder,
            };
            of_client(&facts, WarningSpan::Now, &BOUNDS).pop()
        };
        // No gap had room.
        holder.take(20, None);
        holder.take(30, Some(("nightly.py".to_string(), 3)));
        assert_eq!(said(&holder).expect("one").kind, WarningKind::ForcedLaunches);
        holder.take(41, Some(("nightly.py".to_string(), 3)));
        let outranked = said(&holder).expect("one");
        assert_eq!(outranked.kind, WarningKind::Outranked);
        let words = "train.py: nightly.py (priority 3) has the gaps first, and this job (priority 5) gets what is left";
        assert!(outranked.text.starts_with(words), "{}", outranked.text);
        // It has ended, or is paused.
        holder.take(41, None);
        assert_eq!(said(&holder), None);
    }

    #[test]
    fn no_advice_is_given_that_does_not_help() {
        let mut service = ClientStatus {
            mode: "foreground".to_string(),
            launches: 1_000,
            ..ClientStatus::default()
        };
        let outcome = Outcome {
            ran_s: 60.0,
            foreground_s: 50.0,
            background_s: 50.0,
            lost: lost(0.5, 1_000),
            cost: lost(0.5, 0),
            ..Outcome::default()
        };
        let told = |status: &ClientStatus, has_company, switches| {
            let facts = ClientFacts {
                status,
                outcome: &outcome,
                allowed: 0.01,
                long: &NONE,
                kernel: "gemm",
                has_company,
                switches,
                neighbours: Neighbours::Usual,
                holder: &GapHolder::default(),
            };
            of_client(&facts, WarningSpan::Now, &BOUNDS)
        };
        let alone = told(&service, false, false);
        assert!(
            alone.iter().all(|warning| warning.kind != WarningKind::NoProfile),
            "{alone:?}"
        );
        service.profile = Some("resnet".to_string());
        let text = &told(&service, true, true)[0].text;
        assert!(text.ends_with("restart the jobs with weft run --mps on"), "{text}");
        let training = ClientStatus {
            mode: "background".to_string(),
            ..ClientStatus::default()
        };
        assert_eq!(told(&training, true, true), [], "a profile makes no switch cheaper");
    }

    #[test]
    fn a_loss_to_a_wanted_part_needs_no_profile_and_a_missed_part_has_its_reason() {
        let part = |had, behind, held| GuaranteedPart {
            seconds: 20.0,
            wanted: 0.6,
            had,
            behind,
            held,
        };
        let told = |mode: &str, loss, neighbours, part| {
            let status = ClientStatus {
                mode: mode.to_string(),
                ..ClientStatus::default()
            };
            let outcome = Outcome {
                foreground_s: 50.0,
                background_s: 50.0,
                lost: lost(loss, 1_000),
                cost: lost(loss, 0),
                part,
                ..Outcome::default()
            };
            let facts = ClientFacts {
                status: &status,
                outcome: &outcome,
                allowed: 0.01,
                long: &NONE,
                kernel: "gemm",
                has_company: false,
                switches: false,
                neighbours,
                holder: &GapHolder::default(),
            };
            let all = of_client(&facts, WarningSpan::Now, &BOUNDS);
            all.into_iter().map(|one| (one.kind, one.text)).collect::<Vec<_>>()
        };
        // 0.6 / (1 - 0.6): one and a half times its time.
        for (loss, kind) in [(1.5, WarningKind::WantedLoss), (4.0, WarningKind::OverSlowdown)] {
            let told = told("foreground", loss, Neighbours::HavePart(0.6), None);
            assert_eq!(told.len(), 1, "{told:?}");
            assert_eq!(told[0].0, kind);
        }
        assert_eq!(told("background", 1.5, Neighbours::HavePart(0.6), None), []);
        let without = told("background", 1.5, Neighbours::Usual, None);
        assert_eq!(without[0].0, WarningKind::BackgroundNoProfile);
        for (part, words) in [
            (part(0.55, 0.2, 0.2), None),
            (
                part(0.44, 0.5, 0.04),
                Some("behind other jobs' for 50 % of the time, so it could have 45.8 % at most"),
            ),
            (
                part(0.3, 0.1, 0.0),
                Some("it had no work for the GPU for 60 % of the time, so it could have 30 % at most"),
            ),
            (
                part(0.3, 0.1, 0.55),
                Some("weft held its launches for 55 % of the time"),
            ),
        ] {
            let told = told("background", 0.0, Neighbours::HavePart(0.6), Some(part));
            assert_eq!(told.len(), usize::from(words.is_some()), "{told:?}");
            for (kind, text) in told {
                assert_eq!(kind, WarningKind::PartMissed);
                assert!(words.is_some_and(|words| text.contains(words)), "{text}");
            }
        }
    }

    #[test]
    fn the_remedy_for_a_slow_service_fits_the_device_and_the_jobs() {
        let service = ClientStatus {
            mode: "foreground".to_string(),
            profile: Some("resnet".to_string()),
            ..ClientStatus::default()
        };
        let outcome = |part| Outcome {
            ran_s: 60.0,
            foreground_s: 50.0,
            lost: lost(part, 1_000),
            ..Outcome::default()
        };
        for (switches, shared, allowed, part, neighbours, words) in [
            (
                false,
                false,
                0.01,
                0.5,
                Neighbours::Usual,
                "use fewer or shorter kernels in the background jobs, or another GPU",
            ),
            (
                true,
                false,
                0.01,
                0.5,
                Neighbours::Usual,
                "restart the jobs with weft run --mps on",
            ),
            (
                true,
                true,
                0.01,
                0.5,
                Neighbours::Usual,
                "run fewer background jobs, or use another GPU",
            ),
            (
                true,
                false,
                0.01,
                0.5,
                Neighbours::HaveLongKernels,
                "use smaller batches there",
            ),
            (
                true,
                false,
                0.01,
                0.5,
                Neighbours::HavePart(0.3),
                "or allow the loss (weft set --slowdown)",
            ),
            (true, false, 0.0, 0.02, Neighbours::Usual, "or pause them (weft pause)"),
            (
                true,
                false,
                0.0,
                0.5,
                Neighbours::Usual,
                "restart the jobs with weft run --mps on",
            ),
        ] {
            let outcome = outcome(part);
            let facts = ClientFacts {
                status: &service,
                outcome: &outcome,
                allowed,
                long: &NONE,
                kernel: "gemm",
                has_company: true,
                switches,
                neighbours,
                holder: &GapHolder::default(),
            };
            let text = &of_client(&facts, WarningSpan::WholeJob, &WarningBounds { shared, ..BOUNDS })[0].text;
            assert!(text.ends_with(words), "{text}");
        }
    }

    #[test]
    fn a_background_job_that_costs_much_is_told_that_it_lacks_a_profile() {
        let training = ClientStatus {
            name: "train.py".to_string(),
            mode: "background".to_string(),
            ..ClientStatus::default()
        };
        let of = |part| Outcome {
            ran_s: 6.0,
            background_s: 5.0,
            cost: lost(part, 0),
            ..Outcome::default()
        };
        for span in [WarningSpan::Now, WarningSpan::WholeJob] {
            assert_eq!(warned(&training, &of(0.03), &NONE, span), []);
            let told = warned(&training, &of(0.5), &NONE, span);
            assert_eq!(told[0].kind, WarningKind::BackgroundNoProfile);
            let text = &told[0].text;
            assert!(text.contains("train.py: this background job has no profile"), "{text}");
            assert!(text.contains("weft profile --name train --"), "{text}");
        }
        let profiled = ClientStatus {
            profile: Some("train".to_string()),
            ..training
        };
        assert_eq!(warned(&profiled, &of(0.5), &NONE, WarningSpan::Now), []);
    }
}
