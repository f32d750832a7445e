//! Parser from the text of a node's metrics to its jobs. Pure.
//!
//! The text comes from another machine and is not trusted: control characters are removed, counts
//! are bounded, and unknown lines are ignored.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use weft_daemon::text::clean;

/// Largest number of jobs read from a node; a broker lists 200 (docs/metrics.md).
const MOST_JOBS: usize = 400;

/// Longest label, characters.
const LONGEST_LABEL: usize = 64;

/// Identity of a job in its series.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeriesOwner {
    /// Its client number at its broker.
    pub client: u64,
    /// Its process id.
    pub pid: u64,
    /// Its GPU's UUID, or empty.
    pub gpu: String,
}

/// A job of a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeJob {
    /// Its identity.
    pub owner: SeriesOwner,
    /// Its name at the broker; empty if the broker omits it.
    pub name: String,
    /// Its number in the cluster scheduler, or empty.
    pub cluster_job: String,
    /// User id.
    pub uid: Option<u32>,
    /// 0 (matters most) to 9.
    pub priority: Option<u8>,
    /// Its role.
    pub role: String,
    /// Time since it attached, seconds.
    pub run_s: f64,
    /// Its GPU time so far, seconds, estimated.
    pub gpu_s: Option<f64>,
    /// Lateness because of background jobs, seconds.
    pub late_s: f64,
    /// Slowdown, measured, as a part of its time.
    pub slowdown: Option<f64>,
    /// Device memory that it holds, bytes.
    pub memory: u64,
}

/// Contents of a broker's metrics.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeReport {
    /// The broker's version and policy.
    pub version: String,
    pub policy: String,
    /// Time since the broker started, seconds; the time stamp of all other figures.
    pub uptime_s: f64,
    /// Number of jobs without series of their own.
    pub jobs_left_out: u64,
    /// Number of jobs that wait for device memory.
    pub waiting: u64,
    /// Number of warnings about protection.
    pub warnings: u64,
    /// GPUs that the broker knows, each with its number of jobs.
    pub gpus: BTreeMap<String, u64>,
    /// Jobs with series.
    pub jobs: Vec<NodeJob>,
}

/// Parses a text in Prometheus' format; an error if it is not from a broker.
pub fn report(text: &str) -> Result<NodeReport, String> {
    let mut report = NodeReport::default();
    let mut jobs: BTreeMap<SeriesOwner, NodeJob> = BTreeMap::new();
    let mut is_broker = false;
    for (name, labels, value) in text.lines().filter_map(sample) {
        let label = |wanted: &str| {
            let mut found = labels.iter().filter(|(key, _)| key == wanted);
            found.next().map_or("", |(_, value)| value.as_str())
        };
        let whole = value.max(0.0) as u64;
        match name {
            "weft_broker_info" => {
                is_broker = true;
                report.version = label("version").to_string();
                report.policy = label("policy").to_string();
            }
            "weft_broker_uptime_seconds" => report.uptime_s = value,
            "weft_jobs_left_out" => report.jobs_left_out = whole,
            "weft_jobs_waiting_for_memory" => report.waiting = whole,
            "weft_warnings" => report.warnings = report.warnings.saturating_add(whole),
            "weft_gpu_jobs" if report.gpus.len() < MOST_JOBS => {
                report.gpus.insert(label("gpu").to_string(), whole);
            }
            _ if name.starts_with("weft_job_") => {
                let figure = |text: &str| text.parse().unwrap_or_default();
                let owner = SeriesOwner {
                    client: figure(label("client")),
                    pid: figure(label("pid")),
                    gpu: label("gpu").to_string(),
                };
                if jobs.len() >= MOST_JOBS && !jobs.contains_key(&owner) {
                    continue;
                }
                let job = jobs.entry(owner).or_default();
                match name {
                    "weft_job_info" => {
                        job.name = label("name").to_string();
                        job.cluster_job = label("cluster_job").to_string();
                        job.uid = label("user").parse().ok();
                        job.priority = label("priority").parse().ok();
                        job.role = label("role").to_string();
                    }
                    "weft_job_run_seconds_total" => job.run_s = value,
                    "weft_job_gpu_seconds_total" => job.gpu_s = Some(value),
                    "weft_job_lateness_seconds_total" => job.late_s = value,
                    "weft_job_slowdown_ratio" => job.slowdown = Some(value),
                    "weft_job_memory_bytes" => job.memory = whole,
                    _ => {}
                }
            }
            _ => {}
        }
    }
    if !is_broker {
        return Err("its answer is not from a weft broker".to_string());
    }
    let owned = jobs.into_iter().map(|(owner, job)| NodeJob { owner, ..job });
    report.jobs = owned.collect();
    Ok(report)
}

/// A sample's labels, unescaped.
type Labels = Vec<(String, String)>;

/// A line's name, labels and value; `None` if it is not a sample or its value is not a number.
fn sample(line: &str) -> Option<(&str, Labels, f64)> {
    let name_end = line.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':')?;
    let (name, rest) = line.split_at(name_end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Labels::new(), rest),
    };
    // A time stamp may follow.
    let value: f64 = rest.split_whitespace().next()?.parse().ok()?;
    (!name.is_empty() && value.is_finite()).then_some((name, labels, value))
}

fn labels(mut rest: &str) -> Option<(Labels, &str)> {
    let mut labels = Labels::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (key, value) = rest.split_once("=\"")?;
        let mut text = String::new();
        let mut letters = value.char_indices();
        loop {
            match letters.next()? {
                (at, '"') => {
                    rest = value.get(at + 1..)?;
                    break;
                }
                (_, '\\') => match letters.next()?.1 {
                    'n' => text.push('\n'),
                    other => text.push(other),
                },
                (_, letter) => text.push(letter),
            }
        }
        labels.push((key.to_string(), clean(&text, LONGEST_LABEL)));
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A broker's text with these jobs: client, role, seconds of GPU time, seconds of lateness.
    pub fn text_of(uptime_s: f64, jobs: &[(u64, &str, f64, f64)]) -> String {
        let mut text = format!(
            "# HELP weft_broker_info x\n# TYPE weft_broker_info gauge\n\
             weft_broker_info{{version=\"0.1.0\",policy=\"weft\",shared=\"true\",node=\"n\"}} 1\n\
             weft_broker_uptime_seconds {uptime_s}\nweft_warnings{{kind=\"no_profile\"}} 1\n\
             weft_warnings{{kind=\"no_mps\"}} 1\nweft_jobs_left_out 3\nweft_jobs_waiting_for_memory 2\n\
             weft_gpu_jobs{{gpu=\"GPU-0011\"}} {}\n",
            jobs.len()
        );
        for (client, role, gpu_s, late_s) in jobs {
            let who = format!(
                "client=\"{client}\",name=\"\",cluster_job=\"7_{client}\",pid=\"4{client}\",user=\"100{client}\",gpu=\"GPU-0011\""
            );
            text += &format!(
                "weft_job_info{{{who},priority=\"{client}\",role=\"{role}\"}} 1\n\
                 weft_job_run_seconds_total{{{who}}} 10\nweft_job_gpu_seconds_total{{{who}}} {gpu_s}\n\
                 weft_job_lateness_seconds_total{{{who}}} {late_s}\nweft_job_memory_bytes{{{who}}} 1073741824\n"
            );
            if *role == "foreground" {
                text += &format!("weft_job_slowdown_ratio{{{who}}} 0.005\n");
            }
        }
        text
    }

    #[test]
    fn a_brokers_text_is_its_jobs() {
        let text = text_of(12.5, &[(1, "foreground", 2.0, 0.25), (2, "background", 3.0, 0.0)]);
        let report = report(&text).expect("a broker's");
        assert_eq!((report.policy.as_str(), report.uptime_s), ("weft", 12.5));
        assert_eq!((report.warnings, report.jobs_left_out, report.waiting), (2, 3, 2));
        assert_eq!(report.gpus.get("GPU-0011"), Some(&2));
        let [service, training] = &report.jobs[..] else {
            panic!("{report:?}")
        };
        assert_eq!(
            (service.owner.client, service.owner.pid, service.uid),
            (1, 41, Some(1001))
        );
        assert_eq!((service.role.as_str(), service.priority), ("foreground", Some(1)));
        assert_eq!(
            (service.gpu_s, service.late_s, service.slowdown),
            (Some(2.0), 0.25, Some(0.005))
        );
        assert_eq!((training.cluster_job.as_str(), training.memory), ("7_2", 1 << 30));
        assert_eq!(training.slowdown, None);
    }

    #[test]
    fn labels_are_unescaped_and_made_safe() {
        let (name, labels, value) =
            sample("m{a=\"x\\\\y\\\"z\\n\",b=\"\u{1b}[2J,}=\\\"\"} 1e3 1700000000").expect("a sample");
        assert_eq!((name, value), ("m", 1000.0));
        let pairs = [("a", "x\\y\"z "), ("b", " [2J,}=\"")].map(|(key, value)| (key.to_string(), value.to_string()));
        assert_eq!(labels, pairs);
    }

    #[test]
    fn what_is_no_sample_is_passed_over() {
        for line in [
            "",
            "# HELP m x",
            "m",
            "m{a=\"b\" 1",
            "m{a=\"b\\",
            "m{a} 1",
            "m NaN",
            "m +Inf",
            "m x",
            " 1",
            "{a=\"b\"} 1",
            "größe 1",
        ] {
            assert!(sample(line).is_none(), "{line}");
        }
        assert!(report("up 1\n").is_err());
        assert!(report("<html>").is_err());
        // Absurd figures do no harm.
        let odd = "weft_broker_info 1\nweft_jobs_left_out -3\nweft_job_info{client=\"x\",user=\"-1\"} 1\n\
                   weft_job_memory_bytes{client=\"x\"} 1e300\nweft_warnings 1e300\nweft_warnings 1e300\n";
        let report = report(odd).expect("taken");
        assert_eq!(
            (report.jobs_left_out, report.jobs[0].uid, report.warnings),
            (0, None, u64::MAX)
        );
    }

    #[test]
    fn jobs_are_bounded() {
        let mut text = "weft_broker_info 1\n".to_string();
        for client in 0..2 * MOST_JOBS {
            text += &format!("weft_job_memory_bytes{{client=\"{client}\"}} 1\n");
        }
        assert_eq!(report(&text).expect("taken").jobs.len(), MOST_JOBS);
    }
}
