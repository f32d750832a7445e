// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samples from a status. Pure: its inputs are statuses in the order of time.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::Arc;

use super::family::{self, MetricFamily, MetricKind};
use weft_api::outcome::WarningKind;
use weft_api::plain_text::clean;
use weft_api::status::{ClientStatus, Status};

/// Most jobs with series of their own. Each has about 15, so a page is below a megabyte.
const MOST_JOBS: usize = 200;

/// Longest name of a job in a label, characters.
const LONGEST_NAME: usize = 64;

/// Longest number of a job at a cluster's engine, characters: two 32-bit numbers and a separator.
const LONGEST_NUMBER: usize = 21;

/// Roles that always have a sample, so that a query finds 0.
const ROLES: [&str; 5] = ["alone", "foreground", "background", "free", "waits for memory"];

/// All kinds of warnings, which always have a sample: an alert needs the 0.
const KINDS: [WarningKind; 12] = [
    WarningKind::LongKernels,
    WarningKind::NoProfile,
    WarningKind::WrongProfile,
    WarningKind::SamePriority,
    WarningKind::OtherBroker,
    WarningKind::ForcedLaunches,
    WarningKind::BackgroundNoProfile,
    WarningKind::OverSlowdown,
    WarningKind::NoMps,
    WarningKind::Outranked,
    WarningKind::WantedLoss,
    WarningKind::PartMissed,
];

/// Readers of a page, by the names that they may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsAudience {
    /// The broker's owner: names of jobs and of pods.
    Owner,
    /// Whoever reaches the TCP address that the administrator opened: names of pods.
    Network,
    /// Other users of the machine: neither.
    Guest,
}

/// One value, with its labels as text.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MetricSample {
    /// `key="value"`, joined by commas; values are escaped.
    pub labels: Arc<str>,
    pub value: f64,
}

/// The samples of all families at one time.
#[derive(Debug, Clone, Default)]
pub(super) struct MetricsPage(HashMap<&'static str, Vec<MetricSample>>);

impl MetricsPage {
    /// A family's samples.
    pub fn samples(&self, family: &MetricFamily) -> &[MetricSample] {
        self.0.get(family.name).map_or(&[], Vec::as_slice)
    }

    fn put(&mut self, family: &MetricFamily, labels: impl Into<Arc<str>>, value: f64) {
        let labels = labels.into();
        self.0
            .entry(family.name)
            .or_default()
            .push(MetricSample { labels, value });
    }
}

/// The highest value that each counter of the broker had: a job that ends while records are added
/// up is missing from the sum for a moment. Counters of jobs do not fall ([`JobCounters`]).
///
/// [`JobCounters`]: weft_api::outcome::JobCounters
#[derive(Debug, Default)]
struct Highest(HashMap<(&'static str, Arc<str>), f64>);

impl Highest {
    /// Raises the page's counters that fell.
    fn raise(&mut self, page: &mut MetricsPage) {
        for family in family::FAMILIES {
            let counter = family.kind == MetricKind::Counter;
            let samples = page.0.get_mut(family.name).filter(|_| counter);
            for sample in samples.into_iter().flatten() {
                let series = (family.name, Arc::clone(&sample.labels));
                let highest = self.0.entry(series).or_insert(0.0);
                *highest = highest.max(sample.value);
                sample.value = *highest;
            }
        }
    }
}

/// Maker of pages.
#[derive(Debug, Default)]
pub(super) struct PageMaker {
    highest: Highest,
}

impl PageMaker {
    /// The page of a status.
    pub fn page(&mut self, status: &Status, audience: MetricsAudience) -> MetricsPage {
        let mut page = MetricsPage::default();
        of_broker(&mut page, status);
        self.highest.raise(&mut page);
        of_warnings(&mut page, status);
        let gpus = of_gpus(&mut page, status);
        // Most important first, then in the order of arrival, so a job with series keeps them.
        for client in status.clients.iter().take(MOST_JOBS) {
            let of_job: Arc<str> = job_labels(status, client, gpus.get(&client.client), audience).into();
            of_client(&mut page, status, client, &of_job);
        }
        page.put(
            &family::JOBS_LEFT_OUT,
            "",
            status.clients.len().saturating_sub(MOST_JOBS) as f64,
        );
        page
    }
}

fn of_broker(page: &mut MetricsPage, status: &Status) {
    let broker = &status.broker;
    let shared = broker.shared.to_string();
    let info = [
        ("version", &broker.version),
        ("policy", &broker.policy),
        ("shared", &shared),
        ("node", &broker.node),
    ];
    page.put(&family::BROKER, labels(info), 1.0);
    page.put(&family::UPTIME, "", broker.uptime_s);
    page.put(&family::RECORDS, "", broker.records as f64);
    page.put(&family::RECORDS_LOST, "", broker.records_lost as f64);
    page.put(&family::DECISIONS, "", broker.decisions as f64);
    page.put(&family::JOBS_REFUSED, "", broker.refused as f64);
    for (ending, count) in [
        ("goodbye", broker.goodbyes),
        ("vanished", broker.vanished),
        ("detached", broker.detached),
    ] {
        page.put(&family::JOBS_ENDED, labels([("ending", ending)]), count as f64);
    }
    let exits = broker.exits;
    for (how, count) in [
        ("well", exits.well),
        ("failed", exits.failed),
        ("killed", exits.killed),
        ("cancelled", exits.cancelled),
        ("unknown", exits.unknown),
    ] {
        page.put(&family::JOBS_EXITED, labels([("how", how)]), count as f64);
    }
    let mut roles: BTreeMap<&str, usize> = ROLES.map(|role| (role, 0)).into();
    for client in &status.clients {
        *roles.entry(client.mode.as_str()).or_default() += 1;
    }
    for (role, count) in roles {
        page.put(&family::JOBS, labels([("role", role)]), count as f64);
    }
    let waiting = status
        .clients
        .iter()
        .filter(|client| client.waits_for_memory_s.is_some());
    page.put(&family::JOBS_WAITING, "", waiting.count() as f64);
}

/// The name of a kind, as in JSON. A new kind must be added to [`KINDS`] too.
fn kind_name(kind: WarningKind) -> &'static str {
    match kind {
        WarningKind::LongKernels => "long_kernels",
        WarningKind::NoProfile => "no_profile",
        WarningKind::WrongProfile => "wrong_profile",
        WarningKind::SamePriority => "same_priority",
        WarningKind::OtherBroker => "other_broker",
        WarningKind::ForcedLaunches => "forced_launches",
        WarningKind::BackgroundNoProfile => "background_no_profile",
        WarningKind::OverSlowdown => "over_slowdown",
        WarningKind::NoMps => "no_mps",
        WarningKind::Outranked => "outranked",
        WarningKind::WantedLoss => "wanted_loss",
        WarningKind::PartMissed => "part_missed",
    }
}

fn of_warnings(page: &mut MetricsPage, status: &Status) {
    for kind in KINDS {
        let count = status.warnings.iter().filter(|warning| warning.kind == kind).count();
        page.put(&family::WARNINGS, labels([("kind", kind_name(kind))]), count as f64);
    }
}

/// The devices' samples. Returns each client's device.
fn of_gpus(page: &mut MetricsPage, status: &Status) -> HashMap<u64, String> {
    let mut gpus = HashMap::new();
    for device in &status.broker.devices {
        let gpu = gpu_name(device.uuid.as_deref().unwrap_or_default());
        let clients = device.core["clients"].as_array().map_or(&[][..], Vec::as_slice);
        for client in clients.iter().filter_map(|client| client["client"].as_u64()) {
            gpus.insert(client, gpu.clone());
        }
        let of_gpu: Arc<str> = labels([("node", &status.broker.node), ("gpu", &gpu)]).into();
        page.put(&family::GPU_JOBS, Arc::clone(&of_gpu), clients.len() as f64);
        if device.under_mps + device.not_under_mps > 0 {
            let under_mps = if device.not_under_mps == 0 { 1.0 } else { 0.0 };
            page.put(&family::GPU_UNDER_MPS, Arc::clone(&of_gpu), under_mps);
        }
        let had = |role: &str| {
            let times = clients.iter().filter_map(|client| client[role]["gpu"].as_u64());
            times.sum::<u64>() as f64
        };
        let (foreground, background) = (had("foreground"), had("background"));
        if foreground + background > 0.0 {
            let part = background / (foreground + background);
            page.put(&family::GPU_BACKGROUND, of_gpu, part);
        }
    }
    gpus
}

fn of_client(page: &mut MetricsPage, status: &Status, client: &ClientStatus, of_job: &Arc<str>) {
    let now = labels([("priority", client.priority.to_string()), ("role", client.mode.clone())]);
    page.put(&family::JOB, format!("{of_job},{now}"), 1.0);
    for kind in KINDS {
        let of_this =
            |warning: &&weft_api::outcome::Warning| warning.kind == kind && warning.client == Some(client.client);
        let count = status.warnings.iter().filter(of_this).count();
        if count > 0 {
            let of_kind = labels([("kind", kind_name(kind))]);
            page.put(&family::JOB_WARNINGS, format!("{of_job},{of_kind}"), count as f64);
        }
    }
    let mut put = |family, value| page.put(family, Arc::clone(of_job), value);
    put(&family::JOB_MEMORY, client.memory as f64);
    if let Some(allowed) = client.slowdown_allowed {
        put(&family::JOB_SLOWDOWN_ALLOWED, allowed);
    }
    if let Some(measured) = client.slowdown_measured {
        put(&family::JOB_SLOWDOWN, measured);
    }
    let Some(outcome) = &client.outcome else {
        return;
    };
    // Present from the first scrape on: a counter that appears later hides its first step.
    let counters = &outcome.counters;
    put(&family::JOB_RUN, counters.run_s);
    put(&family::JOB_LAUNCHES, counters.launches as f64);
    put(&family::JOB_FORCED, counters.forced_launches as f64);
    put(&family::JOB_GATE_WAIT, seconds(counters.gate_ns));
    put(&family::JOB_LATENESS, seconds(counters.late_ns));
    put(&family::JOB_LATENESS_CAUSED, seconds(counters.cost_ns));
    put(&family::JOB_WON, seconds(counters.won_ns));
    put(&family::JOB_MEMORY_MOVED, counters.memory_moved as f64);
    if let Some(gpu_ns) = counters.gpu_ns {
        put(&family::JOB_GPU, seconds(gpu_ns));
    }
    if let Some(known) = outcome.launches_known {
        put(&family::JOB_LAUNCHES_KNOWN, known);
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// A job's number at the cluster's engine, which ends its name: `train[120_4]`. Only digits, so
/// that a hidden name shows nothing else.
fn cluster_job(name: &str) -> &str {
    let number = name.strip_suffix(']').and_then(|name| name.rsplit_once('['));
    let number = number.map_or("", |(_, number)| number);
    let known = |letter: u8| letter.is_ascii_digit() || letter == b'_';
    match number.len() <= LONGEST_NUMBER && number.bytes().all(known) {
        true => number,
        false => "",
    }
}

fn job_labels(status: &Status, client: &ClientStatus, gpu: Option<&String>, audience: MetricsAudience) -> String {
    let name = match audience {
        MetricsAudience::Owner => clean(&client.name, LONGEST_NAME),
        MetricsAudience::Network | MetricsAudience::Guest => String::new(),
    };
    let of_job = labels([
        ("node", status.broker.node.clone()),
        ("client", client.client.to_string()),
        ("name", name),
        ("cluster_job", cluster_job(&client.name).to_string()),
        ("pid", client.pid.to_string()),
        ("user", client.uid.to_string()),
        ("gpu", gpu.cloned().unwrap_or_default()),
    ]);
    if !status.broker.knows_pods {
        return of_job;
    }
    let pod = client.pod.as_ref().filter(|_| audience != MetricsAudience::Guest);
    // A job outside of pods has empty ones. Prometheus then does not add those of the broker's pod.
    let [namespace, pod, container] = pod.map_or([""; 3], |pod| {
        [&pod.namespace, &pod.pod, &pod.container].map(String::as_str)
    });
    let of_pod = labels([("namespace", namespace), ("pod", pod), ("container", container)]);
    format!("{of_job},{of_pod}")
}

/// A device's UUID in the format of `nvidia-smi -L` and the DCGM exporter.
fn gpu_name(uuid: &str) -> String {
    match uuid.len() == 32 && uuid.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => format!(
            "GPU-{}-{}-{}-{}-{}",
            &uuid[..8],
            &uuid[8..12],
            &uuid[12..16],
            &uuid[16..20],
            &uuid[20..]
        ),
        false => uuid.to_string(),
    }
}

/// Labels as text, the same in both formats.
fn labels<V: AsRef<str>, const N: usize>(pairs: [(&str, V); N]) -> String {
    let mut text = String::new();
    for (key, value) in pairs {
        let comma = if text.is_empty() { "" } else { "," };
        let _ = write!(text, "{comma}{key}=\"");
        for letter in value.as_ref().chars() {
            match letter {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                letter => text.push(letter),
            }
        }
        text.push('"');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::MetricsAudience::{Guest, Network, Owner};
    use super::*;
    use weft_api::outcome::{JobCounters, Outcome, Warning};
    use weft_api::status::{DeviceStatus, PodContainer};

    pub(super) fn status(clients: Vec<ClientStatus>) -> Status {
        Status {
            schema: weft_api::status::SCHEMA,
            broker: Default::default(),
            clients,
            ended: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn client(number: u64) -> ClientStatus {
        ClientStatus {
            client: number,
            pid: 40 + number as u32,
            uid: 1000,
            command: "python /home/ann/run.py".to_string(),
            name: "serve.py".to_string(),
            mode: "foreground".to_string(),
            outcome: Some(Outcome::default()),
            ..ClientStatus::default()
        }
    }

    fn value(page: &MetricsPage, family: &MetricFamily, with: &str) -> Option<f64> {
        let found = page.samples(family).iter().find(|sample| sample.labels.contains(with));
        found.map(|sample| sample.value)
    }

    #[test]
    fn a_gauge_falls() {
        let mut maker = PageMaker::default();
        let mut job = client(1);
        job.memory = 5;
        maker.page(&status(vec![job.clone()]), Owner);
        job.memory = 3;
        let page = maker.page(&status(vec![job]), Owner);
        assert_eq!(value(&page, &family::JOB_MEMORY, ""), Some(3.0));
    }

    #[test]
    fn labels_tell_who_it_is_and_stay() {
        let mut maker = PageMaker::default();
        let mut job = client(3);
        job.priority = 2;
        let mut seen = status(vec![job]);
        seen.broker.node = "gpu7".to_string();
        seen.broker.devices = vec![DeviceStatus {
            uuid: Some("00112233445566778899aabbccddeeff".to_string()),
            under_mps: 1,
            not_under_mps: 1,
            core: json!({"clients": [
                {"client": 3, "foreground": {"gpu": 30}, "background": {"gpu": 10}},
            ]}),
            ..DeviceStatus::default()
        }];
        seen.warnings = vec![Warning {
            kind: WarningKind::NoProfile,
            client: Some(3),
            device: None,
            text: String::new(),
        }];
        let page = maker.page(&seen, Owner);
        let gpu = "GPU-00112233-4455-6677-8899-aabbccddeeff";
        let who = format!(
            "node=\"gpu7\",client=\"3\",name=\"serve.py\",cluster_job=\"\",pid=\"43\",user=\"1000\",gpu=\"{gpu}\""
        );
        assert_eq!(&*page.samples(&family::JOB_RUN)[0].labels, who);
        assert_eq!(
            &*page.samples(&family::JOB)[0].labels,
            format!("{who},priority=\"2\",role=\"foreground\"")
        );
        assert_eq!(value(&page, &family::JOB_WARNINGS, "no_profile"), Some(1.0));
        assert_eq!(value(&page, &family::WARNINGS, "no_profile"), Some(1.0));
        assert_eq!(value(&page, &family::WARNINGS, "no_mps"), Some(0.0));
        assert_eq!(value(&page, &family::GPU_UNDER_MPS, gpu), Some(0.0));
        assert_eq!(value(&page, &family::GPU_BACKGROUND, gpu), Some(0.25));
        assert_eq!(value(&page, &family::JOBS, "foreground"), Some(1.0));
        assert_eq!(value(&page, &family::JOBS, "background"), Some(0.0));
        let page = maker.page(&seen, Network);
        assert!(page.samples(&family::JOB)[0].labels.contains("name=\"\",cluster_job"));
        assert!(page.samples(&family::BROKER)[0].labels.contains("node=\"gpu7\""));
        assert!(
            page.samples(&family::GPU_JOBS)[0]
                .labels
                .starts_with("node=\"gpu7\",gpu=")
        );
    }

    #[test]
    fn a_pods_names_are_for_the_network_and_only_where_there_are_pods() {
        let mut job = client(1);
        job.name = "secret".to_string();
        job.pod = Some(PodContainer {
            namespace: "team-a".to_string(),
            pod: "train-0".to_string(),
            container: "main".to_string(),
        });
        let mut seen = status(vec![job, client(2)]);
        let of = |seen: &Status, audience| {
            let page = PageMaker::default().page(seen, audience);
            let labels = page
                .samples(&family::JOB_RUN)
                .iter()
                .map(|sample| sample.labels.to_string());
            labels.collect::<Vec<_>>()
        };
        assert!(of(&seen, Owner).iter().all(|labels| !labels.contains("namespace")));
        seen.broker.knows_pods = true;
        let pod = ",namespace=\"team-a\",pod=\"train-0\",container=\"main\"";
        let none = ",namespace=\"\",pod=\"\",container=\"\"";
        for (audience, first) in [(Owner, pod), (Network, pod), (Guest, none)] {
            let labels = of(&seen, audience);
            assert!(labels[0].ends_with(first) && labels[1].ends_with(none), "{labels:?}");
            assert_eq!(labels[0].contains("secret"), audience == Owner, "{labels:?}");
        }
        // Nor may another user of the machine read them in the status.
        seen.clients[0].hide();
        assert_eq!(seen.clients[0].pod, None);
    }

    #[test]
    fn a_jobs_number_at_an_engine_is_told_and_no_more_of_its_name() {
        for (name, number) in [
            ("train[123]", "123"),
            ("my[0] train[120_4]", "120_4"),
            ("train", ""),
            ("train[]", ""),
            ("train[secret]", ""),
            ("train[1", ""),
            ("train[1234567890123456789012]", ""),
        ] {
            assert_eq!(cluster_job(name), number, "{name}");
        }
        let mut job = client(1);
        job.name = "secret[77]".to_string();
        let page = PageMaker::default().page(&status(vec![job]), Network);
        let labels = &page.samples(&family::JOB_RUN)[0].labels;
        assert!(
            labels.contains("name=\"\",cluster_job=\"77\"") && !labels.contains("secret"),
            "{labels}"
        );
    }

    #[test]
    fn further_jobs_are_counted_and_have_no_series() {
        let mut maker = PageMaker::default();
        let many = status((1..=MOST_JOBS as u64 + 7).map(client).collect());
        let page = maker.page(&many, Owner);
        for family in [&family::JOB, &family::JOB_RUN, &family::JOB_WON] {
            assert_eq!(page.samples(family).len(), MOST_JOBS, "{}", family.name);
        }
        assert_eq!(value(&page, &family::JOBS_LEFT_OUT, ""), Some(7.0));
        assert_eq!(value(&page, &family::JOBS, "foreground"), Some(207.0));
        let last = format!("client=\"{}\"", MOST_JOBS);
        assert!(value(&page, &family::JOB_RUN, &last).is_some());
    }

    #[test]
    fn times_are_seconds_and_an_unknown_one_is_absent() {
        let mut job = client(1);
        job.outcome = Some(Outcome {
            counters: JobCounters {
                won_ns: 1_500_000_000,
                ..JobCounters::default()
            },
            ..Outcome::default()
        });
        let page = PageMaker::default().page(&status(vec![job]), Owner);
        assert_eq!(value(&page, &family::JOB_WON, ""), Some(1.5));
        assert_eq!(value(&page, &family::JOB_LATENESS, ""), Some(0.0));
        assert_eq!(value(&page, &family::JOB_GPU, ""), None, "nothing to estimate from");
    }

    #[test]
    fn kinds_are_called_as_in_json() {
        for kind in KINDS {
            assert_eq!(serde_json::to_value(kind).expect("JSON"), kind_name(kind));
        }
    }

    #[test]
    fn labels_cannot_be_broken_out_of() {
        assert_eq!(labels([("name", "a\"} 1\n\\b")]), r#"name="a\"} 1\n\\b""#);
    }
}
