// SPDX-License-Identifier: MIT OR Apache-2.0
//! The environment's settings. Pure: variables in, settings and warnings out.
//!
//! A warning is one line: the fault, its place, and the value used instead.
#![forbid(unsafe_code)]

use std::sync::LazyLock;

use weft_protocol::amount::MemoryNeed;
use weft_protocol::control::LONGEST_JOB_NAME;
use weft_protocol::latency_budget::{self, LatencyBudget};
use weft_protocol::{Ns, PRIORITIES, duration as time_text, priority};

use super::backing_mode::{RequestedBacking, VARIABLE};
use super::deferral::QueueChoice;
use super::device_share::DeviceShare;

pub const DEFAULT_PRIORITY: u8 = 5;

/// Priority for an invalid value. A typing error may slow its own job, never a more important one.
const PRIORITY_OF_A_MISTAKE: u8 = PRIORITIES as u8 - 1;

/// Time to spin at the gate: below one wake-up of a sleeping core (25-65 us).
const SPIN_NS: Ns = 20_000;

/// Most cores with which spinning blocks the awaited thread.
const FEW_CORES: usize = 2;

pub const EVIDENCE_FROM: &str = "WEFT_EVIDENCE_FROM";

/// Source of evidence of the memory that launches touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvidenceSource {
    /// The simulated GPU's ledger, if there is one.
    Ledger,
    /// The host's page table.
    Residency,
}

impl EvidenceSource {
    pub fn parse(text: Option<&str>) -> Result<EvidenceSource, String> {
        match text.map(str::trim) {
            None | Some("" | "auto" | "ledger") => Ok(EvidenceSource::Ledger),
            Some("residency") => Ok(EvidenceSource::Residency),
            Some(other) => Err(format!(
                "{EVIDENCE_FROM}={other} is not one of auto, ledger, residency; using auto"
            )),
        }
    }
}

/// Purpose of weft in a process (`WEFT_MODE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Share the device.
    Serve,
    /// Take stage-1 samples.
    Profile,
    /// Record calls into the file that `WEFT_TRACE` names.
    Trace,
    /// None: only lookups are hooked, and other calls pass through.
    Off,
}

impl Purpose {
    /// Reads the variables through `variable`, which removes blanks and empty values.
    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Purpose, String> {
        match variable("WEFT_MODE").as_deref() {
            None | Some("serve") => Ok(Purpose::Serve),
            Some("profile") => Ok(Purpose::Profile),
            Some("trace") if variable("WEFT_TRACE").is_some() => Ok(Purpose::Trace),
            Some("off") => Ok(Purpose::Off),
            Some(other) => Err(format!(
                "WEFT_MODE={other} is not one of serve, profile, trace, off; using serve"
            )),
        }
    }

    /// The process's own. Read once, because it decides which hooks are bound.
    pub fn of_process() -> Purpose {
        static OWN: LazyLock<Purpose> =
            LazyLock::new(|| Purpose::read(|name| set(env_variable(name))).unwrap_or(Purpose::Serve));
        *OWN
    }
}

fn env_variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// A value without blanks around it; none if it is empty.
fn set(value: Option<String>) -> Option<String> {
    value
        .map(|value| value.trim().to_string())
        .filter(|value| !value.is_empty())
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub purpose: Purpose,
    pub priority: u8,
    /// `WEFT_SLOWDOWN`, `WEFT_SLO`: the latency that the job may lose as a foreground job.
    pub budget: LatencyBudget,
    /// Requests to the device itself.
    pub device_share: DeviceShare,
    pub profile: Option<String>,
    /// `WEFT_AUTOSTART`: whether to start a missing broker.
    pub autostart: bool,
    /// How long a launch spins at the gate before it sleeps, ns.
    pub spin: Ns,
    /// `WEFT_MEMORY`: the job's peak, bytes, or its request and limit.
    pub memory: Option<MemoryNeed>,
    /// `WEFT_DURATION`: short, medium or long.
    pub duration: Option<String>,
    /// `WEFT_WAIT=SECONDS`: longest wait for memory, ns.
    pub wait: Option<Ns>,
    /// `WEFT_WAIT=no`: end instead of waiting for memory.
    pub no_wait: bool,
    /// `WEFT_LONGEST_EVICTED`: time for which movable memory makes room for other jobs, ns.
    pub longest_evicted: Option<Ns>,
    /// `WEFT_EVICT_IDLE`: time without a call after which movable memory leaves the device, ns.
    pub evict_idle: Option<Ns>,
    /// `WEFT_GANG`: name shared by the processes of one job.
    pub gang: String,
    /// `LOCAL_WORLD_SIZE`, from torchrun: processes of the job on a device.
    pub processes: u32,
    /// `WEFT_USER`: user for fair shares.
    pub user: String,
    /// `WEFT_NAME`: the user's name for the job.
    pub name: Option<String>,
    /// `WEFT_OUTCOME`: whether to print the outcome at the job's end.
    pub outcome: bool,
    /// Whether a setting needs a broker: its absence is then worth a warning.
    pub explicit: bool,
}

impl Settings {
    /// Reads the variables through `variable`.
    pub fn read(variable: impl Fn(&str) -> Option<String>, cores: usize) -> (Settings, Vec<String>) {
        let mut complaints = Vec::new();
        let variable = |name: &str| set(variable(name));
        let purpose = Purpose::read(variable).unwrap_or_else(|complaint| {
            complaints.push(complaint);
            Purpose::Serve
        });
        let asked = variable("WEFT_PRIORITY");
        let priority = match asked.as_deref().map(|text| (text, priority::parse(text))) {
            None => DEFAULT_PRIORITY,
            Some((_, Some(priority))) => priority,
            Some((text, None)) => {
                complaints.push(format!(
                    "WEFT_PRIORITY={text} is not a whole number from 0 (most important) to 9, nor high, normal, low or idle; this job runs at {PRIORITY_OF_A_MISTAKE}, the lowest"
                ));
                PRIORITY_OF_A_MISTAKE
            }
        };
        let autostart = match variable("WEFT_AUTOSTART").as_deref() {
            None | Some("1") => true,
            Some("0") => false,
            Some(other) => {
                complaints.push(format!("WEFT_AUTOSTART={other} is neither 0 nor 1; using 1"));
                true
            }
        };
        if let Some(socket) = variable("WEFT_SOCKET").filter(|socket| !socket.starts_with('/')) {
            complaints.push(format!(
                "WEFT_SOCKET={socket} is relative to each process's folder: jobs in other folders look for other brokers; use an absolute path"
            ));
        }
        let outcome = match variable("WEFT_OUTCOME").as_deref() {
            None | Some("off") => false,
            Some("on") => true,
            Some(other) => {
                complaints.push(format!("WEFT_OUTCOME={other} is neither on nor off; using off"));
                false
            }
        };
        let spin = if cores <= FEW_CORES { 0 } else { SPIN_NS };
        if let Err(complaint) = QueueChoice::parse(variable("WEFT_QUEUE").as_deref()) {
            complaints.push(complaint);
        }
        if let Err(complaint) = RequestedBacking::parse(variable(VARIABLE).as_deref()) {
            complaints.push(complaint);
        }
        if let Err(complaint) = EvidenceSource::parse(variable(EVIDENCE_FROM).as_deref()) {
            complaints.push(complaint);
        }
        let mut said = |name: &str, complaint: String| {
            complaints.push(format!("{name}: {complaint}; ignored"));
        };
        let slowdown = variable("WEFT_SLOWDOWN").map(|text| latency_budget::parse_slowdown(&text));
        let slo = variable("WEFT_SLO").map(|text| latency_budget::parse_slo(&text));
        let at_least = variable("WEFT_AT_LEAST").map(|text| latency_budget::parse_at_least(&text));
        let budget = LatencyBudget {
            slowdown: slowdown.and_then(|parsed| parsed.map_err(|wrong| said("WEFT_SLOWDOWN", wrong)).ok()),
            slo: slo.and_then(|parsed| parsed.map_err(|wrong| said("WEFT_SLO", wrong)).ok()),
            at_least: at_least.and_then(|parsed| parsed.map_err(|wrong| said("WEFT_AT_LEAST", wrong)).ok()),
        };
        let (device_share, complaint) = DeviceShare::read(variable, priority, purpose == Purpose::Serve);
        complaints.extend(complaint);
        let profile = variable("WEFT_PROFILE");
        let memory = variable("WEFT_MEMORY").and_then(|text| match text.parse::<MemoryNeed>() {
            Ok(need) => Some(need),
            Err(complaint) => {
                complaints.push(format!("WEFT_MEMORY: {complaint}; ignored"));
                None
            }
        });
        if memory.is_some_and(|need| need.limit.is_some())
            && RequestedBacking::parse(variable(VARIABLE).as_deref()) != Ok(RequestedBacking::Movable)
        {
            complaints.push(
                "WEFT_MEMORY: without movable memory (--backing movable) the part above the request is refused when none is free, but never taken back for other jobs".into(),
            );
        }
        let duration = variable("WEFT_DURATION").filter(|text| {
            let known = matches!(text.as_str(), "short" | "medium" | "long");
            if !known {
                complaints.push(format!(
                    "WEFT_DURATION={text} is not one of short, medium, long; ignored"
                ));
            }
            known
        });
        let asked_wait = variable("WEFT_WAIT");
        let no_wait = asked_wait.as_deref() == Some("no");
        let wait = asked_wait
            .filter(|_| !no_wait)
            .and_then(|text| match text.parse::<u64>() {
                Ok(seconds) => Some(seconds.saturating_mul(1_000_000_000)),
                Err(_) => {
                    complaints.push(format!(
                        "WEFT_WAIT={text} is neither a whole number of seconds nor no; waiting without limit"
                    ));
                    None
                }
            });
        let mut time = |name: &str| {
            variable(name).and_then(|text| match time_text::parse_some(&text) {
                Ok(time) => Some(u64::try_from(time.as_nanos()).unwrap_or(Ns::MAX)),
                Err(complaint) => {
                    complaints.push(format!("{name}: {complaint}; ignored"));
                    None
                }
            })
        };
        let (evict_idle, longest_evicted) = (time("WEFT_EVICT_IDLE"), time("WEFT_LONGEST_EVICTED"));
        let gang = variable("WEFT_GANG").unwrap_or_default();
        let processes = variable("LOCAL_WORLD_SIZE")
            .and_then(|text| text.parse().ok())
            .unwrap_or(1);
        let user = variable("WEFT_USER").unwrap_or_default();
        let name = variable("WEFT_NAME").map(|name| name.chars().take(LONGEST_JOB_NAME).collect());
        let told = asked.is_some() || profile.is_some() || memory.is_some() || !budget.is_unsaid();
        let explicit = told || purpose == Purpose::Profile;
        let settings = Settings {
            purpose,
            priority,
            budget,
            device_share,
            profile,
            autostart,
            spin,
            memory,
            duration,
            wait,
            no_wait,
            evict_idle,
            longest_evicted,
            gang,
            processes,
            user,
            name,
            outcome,
            explicit,
        };
        (settings, complaints)
    }

    /// Most device memory that the job gets, bytes.
    pub fn limit(&self) -> Option<u64> {
        self.memory.and_then(|need| need.limit)
    }

    pub fn of_process() -> (Settings, Vec<String>) {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Settings::read(env_variable, cores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> (Settings, Vec<String>) {
        let find = |name: &str| {
            variables
                .iter()
                .find(|(other, _)| *other == name)
                .map(|(_, value)| value.to_string())
        };
        Settings::read(find, 8)
    }

    #[test]
    fn nothing_set_is_nothing_said() {
        let (settings, complaints) = read(&[("WEFT_PRIORITY", ""), ("WEFT_PROFILE", " ")]);
        assert_eq!(complaints, [""; 0]);
        assert_eq!(settings.priority, DEFAULT_PRIORITY);
        assert_eq!(settings.purpose, Purpose::Serve);
        assert_eq!((&settings.profile, &settings.name), (&None, &None));
        assert!(settings.autostart && !settings.explicit);
        assert_eq!(settings.spin, SPIN_NS);
        assert!(!settings.outcome, "a preloaded job says nothing");
    }

    #[test]
    fn what_is_set_is_taken() {
        let (settings, complaints) = read(&[
            ("WEFT_PRIORITY", "0"),
            ("WEFT_PROFILE", "resnet"),
            ("WEFT_MODE", "profile"),
            ("WEFT_AUTOSTART", "0"),
            ("WEFT_QUEUE", "always"),
            ("WEFT_SLOWDOWN", "2%"),
            ("WEFT_SLO", "50ms"),
            ("WEFT_AT_LEAST", "30%"),
            ("WEFT_OUTCOME", "on"),
            ("WEFT_NAME", " resnet prod "),
        ]);
        assert!(settings.outcome);
        assert_eq!(settings.name.as_deref(), Some("resnet prod"));
        assert!(complaints.is_empty(), "{complaints:?}");
        assert_eq!((settings.priority, settings.purpose), (0, Purpose::Profile));
        assert_eq!(settings.profile.as_deref(), Some("resnet"));
        assert!(!settings.autostart && settings.explicit);
        let budget = settings.budget;
        assert_eq!((budget.slowdown_part(), budget.slo), (Some(0.02), Some(50_000_000)));
        assert_eq!(budget.at_least, Some(300_000));
    }

    #[test]
    fn a_wrong_priority_is_told_and_can_hurt_nobody() {
        for wrong in ["abc", "12", "-1", "10", "3.5", "256"] {
            let (settings, complaints) = read(&[("WEFT_PRIORITY", wrong)]);
            assert_eq!(settings.priority, 9, "{wrong}");
            let [complaint] = complaints.as_slice() else {
                panic!("{complaints:?}")
            };
            assert!(complaint.contains(&format!("WEFT_PRIORITY={wrong}")), "{complaint}");
            assert!(complaint.contains("0 (most important) to 9"), "{complaint}");
        }
        let (_, complaints) = read(&[
            ("WEFT_MODE", "on"),
            ("WEFT_AUTOSTART", "no"),
            ("WEFT_BACKING", "all"),
            ("WEFT_MEMORY", "much"),
            ("WEFT_DURATION", "eternal"),
            ("WEFT_WAIT", "a while"),
            ("WEFT_EVICT_IDLE", "soon"),
            ("WEFT_LONGEST_EVICTED", "long"),
            ("WEFT_SLOWDOWN", "2"),
            ("WEFT_SLO", "50"),
            ("WEFT_DEVICE_PRIORITIES", "maybe"),
            ("WEFT_OUTCOME", "1"),
            ("WEFT_QUEUE", "foo"),
        ]);
        assert_eq!(complaints.len(), 13);
    }

    #[test]
    fn a_priority_may_be_named() {
        for (name, priority) in [("high", 0), ("normal", DEFAULT_PRIORITY), ("low", 7), ("idle", 9)] {
            let (settings, complaints) = read(&[("WEFT_PRIORITY", name)]);
            assert_eq!(complaints, [""; 0]);
            assert_eq!(settings.priority, priority);
            assert!(settings.explicit, "{name}");
        }
    }

    #[test]
    fn few_cores_do_not_spin() {
        let (settings, _) = Settings::read(|_| None, 2);
        assert_eq!(settings.spin, 0);
    }
}
