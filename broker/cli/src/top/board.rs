// SPDX-License-Identifier: MIT OR Apache-2.0
//! State from successive answers of the broker: shares and lateness of jobs and devices in each
//! interval, and their past.
//!
//! Pure: answers and times in, rows out.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};

use weft_api::status::{ClientStatus, Status};

use super::super::{status, text};

/// Number of looks that are kept: twice as many as a chart usually shows.
const LOOKS_KEPT: usize = 240;

/// Span of a chart, seconds.
const CHART_S: f64 = 120.0;

/// Heights of a chart's bars.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Values of successive looks; `None` if unknown.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Past {
    values: VecDeque<Option<f64>>,
    /// Number of looks so far, including dropped ones.
    looks: u64,
}

impl Past {
    fn push(&mut self, value: Option<f64>) {
        if self.values.len() == LOOKS_KEPT {
            self.values.pop_front();
        }
        self.values.push_back(value);
        self.looks += 1;
    }

    /// The latest value.
    pub fn last(&self) -> Option<f64> {
        self.values.back().copied().flatten()
    }

    /// Means of the looks of the last `width` bars, oldest first. A bar keeps the same looks until
    /// it leaves the chart, so the chart moves without flickering.
    fn bars(&self, width: usize, looks_of_bar: u64) -> Vec<Option<f64>> {
        let first = self.looks - self.values.len() as u64;
        let newest = self.looks.saturating_sub(1) / looks_of_bar;
        let oldest = (newest + 1).saturating_sub(width as u64);
        let mut bars = vec![(0.0, 0u32); (newest - oldest + 1) as usize];
        for (number, value) in (first..).zip(&self.values) {
            let bar = (number / looks_of_bar).checked_sub(oldest);
            if let (Some(bar), Some(value)) = (bar.and_then(|bar| bars.get_mut(bar as usize)), value) {
                *bar = (bar.0 + value, bar.1 + 1);
            }
        }
        let mean = |(sum, count): (f64, u32)| (count > 0).then(|| sum / f64::from(count));
        bars.into_iter().map(mean).collect()
    }

    /// A chart of `width` characters, newest to the right. A full bar is `full`, or the highest
    /// value if that is larger.
    pub fn chart(&self, width: usize, interval_s: f64, full: f64) -> String {
        let looks_of_bar = (CHART_S / interval_s.max(0.1) / width.max(1) as f64).ceil().max(1.0);
        let bars = self.bars(width, looks_of_bar as u64);
        let full = bars.iter().flatten().copied().fold(full, f64::max);
        let bar = |value: Option<f64>| match value {
            None => ' ',
            Some(value) => {
                let height = (value / full * BARS.len() as f64).ceil() as usize;
                BARS[height.clamp(1, BARS.len()) - 1]
            }
        };
        let chart: String = bars.into_iter().map(bar).collect();
        format!("{chart:>width$}")
    }
}

/// A job's part in its device now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobRole {
    /// It launches without waiting: alone, or the foreground job.
    First,
    /// It fills gaps.
    Background,
    /// It waits for device memory.
    Waits,
    /// It runs without weft.
    Free,
}

/// A job on a device.
#[derive(Debug, Clone, PartialEq)]
pub struct JobRow {
    /// Its latest status.
    pub status: ClientStatus,
    /// Its role.
    pub role: JobRole,
    /// Its device's index in [`Board::devices`]; `None` if it has not reported one yet.
    pub device: Option<usize>,
    /// Launches a second in the last interval.
    pub launches_per_s: f64,
    /// Part of the last interval in which the GPU worked for it, estimated, with its past.
    pub gpu: Past,
    /// Whether that is only an upper bound.
    pub gpu_at_most: bool,
    /// Part of the last interval that it lost as a foreground job, or cost one, with its past.
    pub late: Past,
}

/// A device that jobs use.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceOnBoard {
    /// UUID in hexadecimal; empty if not known yet.
    pub uuid: String,
    /// Its name for people.
    pub called: String,
    /// Number of jobs on it.
    pub jobs: usize,
    /// Memory that its jobs hold, bytes.
    pub held: u64,
    /// All its memory, bytes.
    pub memory: Option<u64>,
    /// Part of the last interval in which it worked for its jobs, estimated, with its past; `None`
    /// if unknown for all jobs.
    pub gpu: Past,
    /// Whether that is only an upper bound.
    pub gpu_at_most: bool,
}

/// Key by which jobs are sorted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SortKey {
    /// Foreground jobs first, then by priority.
    #[default]
    Role,
    /// Most GPU time first.
    Gpu,
    /// Most lateness first.
    Late,
    /// Most memory first.
    Memory,
    /// By name.
    Name,
}

impl SortKey {
    /// The next key.
    pub fn next(self) -> SortKey {
        match self {
            SortKey::Role => SortKey::Gpu,
            SortKey::Gpu => SortKey::Late,
            SortKey::Late => SortKey::Memory,
            SortKey::Memory => SortKey::Name,
            SortKey::Name => SortKey::Role,
        }
    }

    /// Its name in one word.
    pub fn name(self) -> &'static str {
        match self {
            SortKey::Role => "role",
            SortKey::Gpu => "GPU",
            SortKey::Late => "late",
            SortKey::Memory => "memory",
            SortKey::Name => "name",
        }
    }
}

/// State that answers add up to.
#[derive(Debug, Default)]
pub struct Board {
    /// Intended seconds between two answers; 0 for a single answer.
    usual_s: f64,
    /// The latest answer.
    latest: Option<Status>,
    at_s: f64,
    /// Length of the last interval, seconds; 0: there was one answer only.
    interval_s: f64,
    jobs: HashMap<u64, JobRow>,
    devices: Vec<DeviceOnBoard>,
}

impl Board {
    /// A board that gets an answer every `usual_s` seconds.
    pub fn new(usual_s: f64) -> Board {
        Board {
            usual_s,
            ..Board::default()
        }
    }

    /// Intended seconds between two answers. Charts use it because measured intervals scatter.
    pub fn usual_s(&self) -> f64 {
        if self.usual_s > 0.0 { self.usual_s } else { 1.0 }
    }

    /// Takes an answer that arrived at this time, seconds since any fixed moment.
    pub fn update(&mut self, status: Status, at_s: f64) {
        // Another broker numbers its clients from the start again.
        let same =
            |before: &Status| before.broker.pid == status.broker.pid && before.broker.socket == status.broker.socket;
        let before = self.latest.take().filter(same);
        let seconds = at_s - self.at_s;
        let interval = before.is_some().then_some(seconds).filter(|seconds| *seconds > 0.0);
        if before.is_none() {
            (self.jobs, self.devices) = (HashMap::new(), Vec::new());
        }
        self.update_devices(&status);
        let mut jobs = std::mem::take(&mut self.jobs);
        self.jobs = HashMap::new();
        for client in &status.clients {
            let row = jobs.remove(&client.client);
            let device = client.device_uuid.as_ref();
            let device = device.and_then(|uuid| self.devices.iter().position(|row| row.uuid == *uuid));
            self.jobs
                .insert(client.client, JobRow::new(client, row, device, interval));
        }
        for (at, device) in self.devices.iter_mut().enumerate() {
            let of_it = || self.jobs.values().filter(move |job| job.device == Some(at));
            device.jobs = of_it().count();
            device.held = of_it().map(|job| job.status.memory).sum();
            let shares: Vec<f64> = of_it().filter_map(|job| job.gpu.last()).collect();
            let sum: f64 = shares.iter().sum();
            device.gpu.push((!shares.is_empty()).then_some(sum.min(1.0)));
            device.gpu_at_most = of_it().any(|job| job.gpu_at_most);
        }
        (self.latest, self.at_s, self.interval_s) = (Some(status), at_s, interval.unwrap_or(0.0));
    }

    /// Updates the devices. They keep their places, because each chart has a past.
    fn update_devices(&mut self, status: &Status) {
        for client in &status.clients {
            if let Some(uuid) = &client.device_uuid
                && !self.devices.iter().any(|row| row.uuid == *uuid)
            {
                self.devices.push(DeviceOnBoard {
                    uuid: uuid.clone(),
                    ..DeviceOnBoard::default()
                });
            }
        }
        for row in &mut self.devices {
            let known = status
                .broker
                .devices
                .iter()
                .find(|device| device.uuid.as_ref() == Some(&row.uuid));
            if let Some(memory) = known.and_then(|device| device.memory) {
                row.memory = Some(memory);
            }
            let name = known.and_then(|device| device.name.as_deref());
            row.called = match (name, row.uuid.get(..8)) {
                (Some(name), Some(begin)) => format!("{name} ({begin})"),
                (Some(name), None) => name.to_string(),
                // The device's job has ended.
                (None, _) if !row.called.is_empty() => continue,
                (None, Some(begin)) => format!("GPU {begin}"),
                (None, None) => "GPU".to_string(),
            };
        }
    }

    /// The latest answer.
    pub fn latest(&self) -> Option<&Status> {
        self.latest.as_ref()
    }

    /// Length of the last interval, seconds; 0: there was one answer only.
    pub fn interval_s(&self) -> f64 {
        self.interval_s
    }

    /// Devices in the order of their first report.
    pub fn devices(&self) -> &[DeviceOnBoard] {
        &self.devices
    }

    /// A job by its client number.
    pub fn job(&self, client: u64) -> Option<&JobRow> {
        self.jobs.get(&client)
    }

    /// Shows a requested priority until the next answer: the next key starts from it.
    pub fn expect_priority(&mut self, client: u64, priority: u8) {
        if let Some(job) = self.jobs.get_mut(&client) {
            job.status.priority = priority;
        }
    }

    /// Jobs sorted by this key.
    pub fn jobs(&self, key: SortKey) -> Vec<&JobRow> {
        let mut jobs: Vec<&JobRow> = self.jobs.values().collect();
        jobs.sort_by(|one, other| {
            let most = |value: fn(&JobRow) -> Option<f64>| {
                let [one, other] = [one, other].map(|job| value(job).unwrap_or(-1.0));
                other.total_cmp(&one)
            };
            let by_key = match key {
                SortKey::Role => one.role.cmp(&other.role),
                SortKey::Gpu => most(|job| job.gpu.last()),
                SortKey::Late => most(|job| job.late.last()),
                SortKey::Memory => other.status.memory.cmp(&one.status.memory),
                SortKey::Name => one.status.name.cmp(&other.status.name),
            };
            let rest = |job: &JobRow| (job.role, job.status.priority, job.status.client);
            by_key.then_with(|| rest(one).cmp(&rest(other)))
        });
        jobs
    }

    /// Warnings about protection, one per line.
    pub fn warnings(&self) -> Vec<String> {
        self.latest.as_ref().map(status::warnings).unwrap_or_default()
    }

    /// The first line: the broker and its number of jobs.
    pub fn headline(&self) -> String {
        let Some(status) = &self.latest else {
            return String::new();
        };
        format!(
            "policy {}, {}, broker {}, up {}",
            status.broker.policy,
            text::count(status.clients.len() as u64, "job", "jobs"),
            status.broker.pid,
            text::span(status.broker.uptime_s),
        )
    }
}

impl JobRow {
    /// `before`: its row at the previous look. `interval`: seconds since that look, if any.
    fn new(client: &ClientStatus, before: Option<JobRow>, device: Option<usize>, interval: Option<f64>) -> JobRow {
        let (old, mut gpu, mut late) = match before {
            Some(row) => (Some(row.status), row.gpu, row.late),
            None => (None, Past::default(), Past::default()),
        };
        // A new job starts with zero figures.
        let old = old.unwrap_or_default();
        let launches = |client: &ClientStatus| client.launches + client.graph_launches;
        let mut gpu_at_most = false;
        gpu.push(interval.and_then(|seconds| {
            let had = |client: &ClientStatus| client.outcome.as_ref().and_then(|outcome| outcome.gpu_ns);
            let before = match had(&old) {
                Some(ns) => ns,
                None if launches(&old) == 0 => 0,
                // First known value: the length of its time is unknown.
                None => return None,
            };
            // Predicted at the launch: it may exceed the interval.
            let outcome = client.outcome.as_ref()?;
            let ns;
            (ns, gpu_at_most) = outcome.gpu_figure(had(client)?.saturating_sub(before));
            Some((ns as f64 / 1e9 / seconds).min(1.0))
        }));
        late.push(interval.and_then(|seconds| {
            let sum = |client: &ClientStatus| {
                let outcome = client.outcome.as_ref()?;
                let [lost, cost] = [outcome.lost, outcome.cost].map(|sum| sum.map(|sum| sum.ns));
                lost.or(cost).map(|_| lost.unwrap_or(0) + cost.unwrap_or(0))
            };
            // Measurements scatter, so the difference can be below zero.
            let ns = sum(client)?.saturating_sub(sum(&old).unwrap_or(0)).max(0);
            Some(ns as f64 / 1e9 / seconds)
        }));
        let role = match client.mode.as_str() {
            "alone" | "foreground" => JobRole::First,
            "background" => JobRole::Background,
            "free" => JobRole::Free,
            _ => JobRole::Waits,
        };
        let new = launches(client).saturating_sub(launches(&old));
        JobRow {
            status: client.clone(),
            role,
            device,
            launches_per_s: interval.map_or(0.0, |seconds| new as f64 / seconds),
            gpu,
            gpu_at_most,
            late,
        }
    }

    /// Whether it lost more to background jobs than it may.
    pub fn is_over(&self) -> bool {
        let lost = self.status.outcome.as_ref().and_then(|outcome| outcome.lost);
        matches!((lost, status::allowed(&self.status)), (Some(lost), Some(allowed)) if lost.part > allowed)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use weft_api::outcome::{LatenessSum, Outcome, Warning, WarningKind};
    use weft_api::status::{BrokerStatus, DeviceStatus};

    /// A service and a training job on one device, after this number of seconds.
    pub fn answer(seconds: u64) -> Status {
        let late = |ns: u64, waits| {
            Some(LatenessSum {
                ns: ns as i64,
                part: 0.002,
                waits,
            })
        };
        let job = |client: u64, name: &str, mode: &str| ClientStatus {
            client,
            pid: 4_710 + client as u32,
            uid: 4_000_000,
            name: name.to_string(),
            command: format!("python -u /home/ann/{name} --lr 0.001"),
            mode: mode.to_string(),
            launches: 1_000 * seconds,
            memory: 3 << 30,
            device: Some("a GPU (16384 MiB)".to_string()),
            device_uuid: Some("0f".repeat(16)),
            ..ClientStatus::default()
        };
        let service = ClientStatus {
            priority: 0,
            slowdown_allowed: Some(0.02),
            profile: Some("resnet".to_string()),
            outcome: Some(Outcome {
                foreground_s: seconds as f64,
                launches: 1_000 * seconds,
                gpu_ns: Some(seconds * 400_000_000),
                lost: late(seconds * 2_000_000, 9),
                ..Outcome::default()
            }),
            ..job(1, "serve.py", "foreground")
        };
        let training = ClientStatus {
            priority: 7,
            waiting: true,
            outcome: Some(Outcome {
                background_s: seconds as f64,
                launches: 1_000 * seconds,
                gpu_ns: Some(seconds * 500_000_000),
                cost: late(seconds * 2_000_000, 0),
                ..Outcome::default()
            }),
            ..job(2, "train.py", "background")
        };
        Status {
            schema: 1,
            broker: BrokerStatus {
                pid: 99,
                policy: "weft".to_string(),
                uptime_s: seconds as f64,
                devices: vec![DeviceStatus {
                    uuid: Some("0f".repeat(16)),
                    name: Some("NVIDIA A GPU".to_string()),
                    memory: Some(16 << 30),
                    ..DeviceStatus::default()
                }],
                ..BrokerStatus::default()
            },
            clients: vec![service, training],
            ended: Vec::new(),
            warnings: vec![Warning {
                kind: WarningKind::NoProfile,
                client: Some(2),
                device: None,
                text: "client 2: the foreground job has no profile, so nothing is known of it".to_string(),
            }],
        }
    }

    /// A board after this number of looks, one per second.
    pub fn board(looks: u64) -> Board {
        let mut board = Board::default();
        for second in 0..looks {
            board.update(answer(second), second as f64);
        }
        board
    }

    fn near(value: Option<f64>, wanted: f64) {
        assert!(
            value.is_some_and(|value| (value - wanted).abs() < 1e-9),
            "{value:?}, not {wanted}"
        );
    }

    #[test]
    fn shares_and_lateness_are_of_the_last_interval() {
        let mut board = board(1);
        let job = board.job(1).expect("there");
        assert_eq!((job.gpu.last(), job.late.last(), job.launches_per_s), (None, None, 0.0));
        assert_eq!(board.devices()[0].gpu.last(), None);
        // Ten seconds' work within twenty.
        board.update(answer(10), 20.0);
        let job = |client| board.job(client).expect("there");
        near(job(1).gpu.last(), 0.2);
        near(job(1).late.last(), 0.001);
        near(job(2).late.last(), 0.001);
        near(board.devices()[0].gpu.last(), 0.45);
        assert_eq!(job(1).launches_per_s, 500.0);
        let device = &board.devices()[0];
        assert_eq!((device.jobs, device.held, device.memory), (2, 6 << 30, Some(16 << 30)));
        assert_eq!(device.called, "NVIDIA A GPU (0f0f0f0f)");
        assert_eq!(board.interval_s(), 20.0);
    }

    #[test]
    fn a_new_client_begins_with_nothing_and_what_was_unknown_is_no_jump() {
        let mut board = Board::default();
        let nobody = Status {
            clients: Vec::new(),
            ..answer(0)
        };
        board.update(nobody, 0.0);
        board.update(answer(1), 2.0);
        near(board.job(1).expect("there").gpu.last(), 0.2);
        let mut unknown = answer(2);
        unknown.clients[0].outcome = None;
        board.update(unknown, 3.0);
        assert_eq!(board.job(1).expect("there").gpu.last(), None);
        board.update(answer(3), 4.0);
        assert_eq!(board.job(1).expect("there").gpu.last(), None);
        board.update(answer(4), 5.0);
        near(board.job(1).expect("there").gpu.last(), 0.4);
        // An estimate that became smaller gives no negative share.
        board.update(answer(3), 6.0);
        near(board.job(1).expect("there").gpu.last(), 0.0);
        near(board.job(1).expect("there").late.last(), 0.0);
    }

    #[test]
    fn another_broker_is_another_board() {
        let mut board = board(9);
        let mut other = answer(1);
        other.broker.pid = 100;
        board.update(other, 10.0);
        let job = board.job(1).expect("there");
        assert_eq!((job.gpu.last(), job.gpu.values.len()), (None, 1));
        assert_eq!(board.interval_s(), 0.0);
    }

    #[test]
    fn who_has_ended_is_gone_and_the_device_stays() {
        let mut board = board(3);
        let mut one = answer(3);
        one.clients.remove(0);
        one.broker.devices[0].name = None;
        board.update(one, 3.0);
        assert!(board.job(1).is_none());
        assert_eq!(
            (board.devices()[0].jobs, board.devices()[0].called.as_str()),
            (1, "NVIDIA A GPU (0f0f0f0f)")
        );
    }

    #[test]
    fn jobs_are_sorted_by_what_is_asked() {
        let order = |change: &dyn Fn(&mut Status), key| {
            let mut board = Board::default();
            for second in [0, 1] {
                let mut status = answer(second);
                change(&mut status);
                board.update(status, second as f64);
            }
            let jobs = board.jobs(key);
            jobs.iter().map(|job| job.status.client).collect::<Vec<_>>()
        };
        let none = |_: &mut Status| {};
        assert_eq!(order(&none, SortKey::Role), [1, 2]);
        assert_eq!(order(&none, SortKey::Gpu), [2, 1]);
        assert_eq!(order(&none, SortKey::Late), [1, 2], "equals by role");
        assert_eq!(order(&none, SortKey::Name), [1, 2]);
        assert_eq!(order(&|status| status.clients[1].memory <<= 1, SortKey::Memory), [2, 1]);
        assert_eq!(
            order(&|status| status.clients[0].name = "z".to_string(), SortKey::Name),
            [2, 1]
        );
        let waits = |status: &mut Status| status.clients[0].mode = "waits for memory".to_string();
        assert_eq!(order(&waits, SortKey::Role), [2, 1]);
        let keys = std::iter::successors(Some(SortKey::Role), |key| Some(key.next()));
        let names: Vec<_> = keys.take(6).map(SortKey::name).collect();
        assert_eq!(names, ["role", "GPU", "late", "memory", "name", "role"]);
    }

    #[test]
    fn a_chart_moves_and_does_not_flicker() {
        let mut past = Past::default();
        assert_eq!(past.chart(4, 1.0, 1.0), "    ");
        for value in [None, Some(0.0), Some(0.5), Some(1.0)] {
            past.push(value);
        }
        // With 30 s between looks a bar is one look.
        assert_eq!(past.chart(6, 30.0, 1.0), "   ▁▄█");
        assert_eq!(past.chart(2, 60.0, 2.0), "▂▄");
        assert_eq!(past.chart(2, 60.0, 0.1), "▄█", "the highest fills it");
        // Two looks per bar: their mean.
        assert_eq!(past.chart(2, 30.0, 1.0), "▁▆");
        past.push(Some(0.25));
        assert_eq!(past.chart(2, 30.0, 1.0), "▆▂");
        for _ in 0..1_000 {
            past.push(Some(1.0));
        }
        assert_eq!(
            (past.values.len(), past.chart(3, 1.0, 1.0)),
            (LOOKS_KEPT, "███".to_string())
        );
    }

    #[test]
    fn lateness_over_what_is_allowed_is_known() {
        let mut board = board(2);
        assert!(!board.job(1).expect("there").is_over());
        let mut over = answer(2);
        over.clients[0].slowdown_allowed = Some(0.001);
        board.update(over, 2.0);
        assert!(board.job(1).expect("there").is_over() && !board.job(2).expect("there").is_over());
    }
}
