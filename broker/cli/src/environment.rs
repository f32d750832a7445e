// SPDX-License-Identifier: MIT OR Apache-2.0
//! The environment of a job under weft.
//!
//! User settings stay, and weft adds its entries to them. Applying it twice has the same result as
//! applying it once.
#![forbid(unsafe_code)]

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::device_share::{self, SmShare};
use super::libraries::{self, DriverLibrary};
use weft_api::paths::Places;
use weft_protocol::amount::MemoryNeed;
use weft_protocol::latency_budget::{self, LatencyBudget};

/// Variables and warnings for a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// Names and values.
    pub set: Vec<(&'static str, OsString)>,
    /// Messages for the user before the job starts.
    pub warnings: Vec<String>,
    /// Directory made for this job because the user's own directory is unusable. A parent that
    /// outlives the job removes it ([`Environment::tidy`]).
    pub made: Option<PathBuf>,
}

impl Environment {
    /// Removes the directory made for the ended job.
    pub fn tidy(&self) {
        if let Some(made) = &self.made {
            let _ = std::fs::remove_dir_all(made);
        }
    }
}

/// Requested properties of a job.
#[derive(Debug, Clone, Default)]
pub struct Wishes {
    /// Name of the job.
    pub name: Option<String>,
    /// Priority, 0 to 9.
    pub priority: Option<u8>,
    /// Allowed slowdown as a foreground job.
    pub budget: LatencyBudget,
    /// Profile.
    pub profile: Option<String>,
    /// Whether the job is sampled.
    pub profiling: bool,
    /// Backing of its device memory.
    pub backing: Option<BackingOption>,
    /// Time without a call after which its movable memory leaves the device.
    pub evict_idle: Option<Duration>,
    /// Longest time for which its movable memory makes room for other jobs.
    pub longest_evicted: Option<Duration>,
    /// Source of which memory its kernels touch.
    pub evidence: Option<EvidenceOption>,
    /// Device memory.
    pub memory: Option<MemoryNeed>,
    /// short, medium or long.
    pub duration: Option<String>,
    /// Longest wait for memory, in seconds, or `no`.
    pub wait: Option<String>,
    /// Part of the device's SMs, under MPS.
    pub sm_share: Option<SmShare>,
    /// Most important priority of the attached jobs.
    pub most_important: Option<u8>,
    /// Whether the outcome is printed at the job's end; `None` leaves it to the variable.
    pub outcome: Option<bool>,
    /// Variables from weft.toml, without those that the user set.
    pub defaults: Vec<(&'static str, OsString)>,
}

/// Kind of a job's device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum BackingOption {
    /// Memory of the device.
    Device,
    /// Managed memory: pages move between host and device.
    Managed,
    /// Device memory if it fits next to that of other jobs, else managed memory instead of a wait:
    /// the broker decides when the job begins.
    Auto,
    /// Device memory that `weft pause --evict` can move to the host while the job waits.
    Movable,
}

/// Source of which memory a kernel touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum EvidenceOption {
    /// The driver, if it reports this: a simulated one.
    Auto,
    /// The host's page table, launch by launch.
    Residency,
}

/// Assembles the environment of a job under weft.
pub fn assemble(places: &Places, wishes: &Wishes) -> Result<Environment> {
    let weft = libraries::find_weft().with_context(|| match std::env::var_os("WEFT_LIBRARY") {
        Some(named) if !named.is_empty() => format!("WEFT_LIBRARY={} is no shared library", named.display()),
        _ => "libweft.so is not next to the weft command (set WEFT_LIBRARY=/path/to/libweft.so)".to_owned(),
    })?;
    let (links, made) = links(&weft, places)?;
    let driver = libraries::find_driver(Some(&weft));
    let mut environment = Environment {
        made,
        ..Environment::default()
    };
    if driver.is_none() {
        environment
            .warnings
            .push(libraries::misnamed_driver().unwrap_or_else(|| {
                "no NVIDIA driver (libcuda.so.1) was found, so the job will not find one either (weft doctor)"
                    .to_string()
            }));
    }
    let preload = preloadable(&weft, &links);
    let default = |name: &str| {
        let found = wishes.defaults.iter().find(|(set, _)| *set == name);
        found.map(|(_, value)| value.clone())
    };
    let said = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    let current = |name: &str| said(name).or_else(|| default(name)).unwrap_or_default();
    environment.set = variables(&preload, &links, driver.as_ref(), &current, wishes);
    // All processes that the job starts are one job. The pid stays the same when the job replaces
    // this process.
    let since = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_micros());
    let gang = format!("{}-{since}", std::process::id());
    environment.set.push(("WEFT_GANG", gang.into()));
    if env::var_os("WEFT_SOCKET").as_deref() != Some(places.socket().as_os_str()) {
        // The job may change the variables that determine the default path.
        environment
            .set
            .push(("WEFT_SOCKET", places.socket().as_os_str().to_os_string()));
    }
    Ok(environment)
}

/// A directory whose driver names link to weft: next to the library, else in the user's own
/// directory, else a fresh one, which is also the second value. The fresh one is needed because
/// another user may have made `/tmp/weft-UID` first.
fn links(weft: &Path, places: &Places) -> Result<(PathBuf, Option<PathBuf>)> {
    if let Some(beside) = libraries::links_beside(weft) {
        return Ok((beside, None));
    }
    let home = match places.is_shared() {
        true => Places::own(),
        false => places.clone(),
    };
    let own = home
        .prepare()
        .map_err(anyhow::Error::from)
        .and_then(|()| Ok(libraries::link_directory(weft, &home.directory())?));
    let why = match own {
        Ok(links) => return Ok((links, None)),
        Err(why) => why,
    };
    let fresh = libraries::fresh_directory().with_context(|| {
        format!(
            "{why:#}; a directory cannot be made in {} either",
            env::temp_dir().display()
        )
    })?;
    match libraries::link_directory(weft, &fresh) {
        Ok(links) => Ok((links, Some(fresh))),
        Err(error) => {
            let _ = std::fs::remove_dir_all(&fresh);
            Err(error).with_context(|| format!("cannot link the driver's names to {}", weft.display()))
        }
    }
}

/// The library's path for `LD_PRELOAD`. The list is split at blanks and colons, so a path that has
/// one is replaced by its link.
fn preloadable(weft: &Path, links: &Path) -> PathBuf {
    let splits = |path: &Path| path.as_os_str().as_bytes().iter().any(|byte| b" :\t\n".contains(byte));
    match splits(weft) {
        true => links.join(libraries::DRIVER),
        false => weft.to_path_buf(),
    }
}

fn variables(
    preload: &Path,
    links: &Path,
    driver: Option<&DriverLibrary>,
    current: &dyn Fn(&str) -> OsString,
    wishes: &Wishes,
) -> Vec<(&'static str, OsString)> {
    let mut set = vec![
        (
            "LD_PRELOAD",
            appended(preload.as_os_str(), &current("LD_PRELOAD"), b" :"),
        ),
        (
            "LD_LIBRARY_PATH",
            prepended(links.as_os_str(), &current("LD_LIBRARY_PATH"), b":"),
        ),
    ];
    if let Some(driver) = driver
        && current("WEFT_CUDA_LIBRARY").is_empty()
    {
        // The links hide the driver from LD_LIBRARY_PATH, so its path is passed on. It is only a
        // hint: in a container the job finds another driver.
        set.push((libraries::HINT, driver.path.clone().into_os_string()));
    }
    set.extend(wishes.defaults.iter().cloned());
    if let Some(name) = &wishes.name {
        set.push(("WEFT_NAME", name.into()));
    }
    if let Some(priority) = wishes.priority {
        set.push(("WEFT_PRIORITY", priority.to_string().into()));
    }
    if let Some(slowdown) = wishes.budget.slowdown {
        set.push(("WEFT_SLOWDOWN", latency_budget::slowdown_text(slowdown).into()));
    }
    if let Some(slo) = wishes.budget.slo {
        set.push(("WEFT_SLO", latency_budget::slo_text(slo).into()));
    }
    if let Some(at_least) = wishes.budget.at_least {
        set.push(("WEFT_AT_LEAST", latency_budget::slowdown_text(at_least).into()));
    }
    if let Some(profile) = &wishes.profile {
        set.push(("WEFT_PROFILE", profile.into()));
    }
    if let Some(backing) = wishes.backing {
        let value = match backing {
            BackingOption::Device => "device",
            BackingOption::Managed => "managed",
            BackingOption::Auto => "auto",
            BackingOption::Movable => "movable",
        };
        set.push(("WEFT_BACKING", value.into()));
    }
    for (name, time) in [
        ("WEFT_EVICT_IDLE", wishes.evict_idle),
        ("WEFT_LONGEST_EVICTED", wishes.longest_evicted),
    ] {
        set.extend(time.map(|time| (name, format!("{}s", time.as_secs_f64()).into())));
    }
    if let Some(evidence) = wishes.evidence {
        let value = match evidence {
            EvidenceOption::Auto => "auto",
            EvidenceOption::Residency => "residency",
        };
        set.push(("WEFT_EVIDENCE_FROM", value.into()));
    }
    if let Some(memory) = wishes.memory {
        set.push(("WEFT_MEMORY", memory.to_string().into()));
    }
    if let Some(duration) = &wishes.duration {
        set.push(("WEFT_DURATION", duration.into()));
    }
    if let Some(wait) = &wishes.wait {
        set.push(("WEFT_WAIT", wait.into()));
    }
    if let Some(outcome) = wishes.outcome {
        set.push(("WEFT_OUTCOME", if outcome { "on" } else { "off" }.into()));
    }
    set.extend(device_share::variables(
        wishes.priority,
        wishes.budget.at_least,
        wishes.sm_share,
        wishes.most_important,
        current,
    ));
    if wishes.profiling {
        set.push(("WEFT_MODE", "profile".into()));
    } else if current("WEFT_MODE") == "profile" {
        // Overrides the mode of a shell set up to profile. `off` is kept.
        set.push(("WEFT_MODE", "serve".into()));
    }
    set
}

/// `entry` first, then the existing entries without it.
fn prepended(entry: &OsStr, existing: &OsStr, separators: &[u8]) -> OsString {
    let rest = others(entry, existing, separators);
    joined(std::iter::once(entry.as_bytes()).chain(rest))
}

/// The existing entries without `entry`, then `entry`. Libraries that must come first (ASan's) stay
/// first. A library with its own driver functions gets the job's calls and then finds weft's
/// functions.
fn appended(entry: &OsStr, existing: &OsStr, separators: &[u8]) -> OsString {
    let rest = others(entry, existing, separators);
    joined(rest.chain(std::iter::once(entry.as_bytes())))
}

fn others<'a>(entry: &'a OsStr, existing: &'a OsStr, separators: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let parts = existing.as_bytes().split(|byte| separators.contains(byte));
    parts.filter(|part| !part.is_empty() && *part != entry.as_bytes())
}

fn joined<'a>(parts: impl Iterator<Item = &'a [u8]>) -> OsString {
    OsString::from_vec(parts.collect::<Vec<_>>().join(&b':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(current: &[(&str, &str)], wishes: &Wishes) -> Vec<(&'static str, OsString)> {
        let driver = DriverLibrary {
            path: "/real/libcuda.so.1".into(),
            by: String::new(),
        };
        let lookup = |name: &str| {
            current
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
                .unwrap_or_default()
        };
        variables(
            Path::new("/w/libweft.so"),
            Path::new("/w/lib"),
            Some(&driver),
            &lookup,
            wishes,
        )
    }

    fn value<'a>(set: &'a [(&'static str, OsString)], name: &str) -> Option<&'a OsStr> {
        set.iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.as_os_str())
    }

    #[test]
    fn what_the_user_preloads_stays() {
        let set = values(
            &[
                ("LD_PRELOAD", "/a.so /b.so:/w/libweft.so"),
                ("LD_LIBRARY_PATH", "/x:/y"),
            ],
            &Wishes::default(),
        );
        assert_eq!(value(&set, "LD_PRELOAD"), Some(OsStr::new("/a.so:/b.so:/w/libweft.so")));
        assert_eq!(value(&set, "LD_LIBRARY_PATH"), Some(OsStr::new("/w/lib:/x:/y")));
        assert_eq!(value(&set, libraries::HINT), Some(OsStr::new("/real/libcuda.so.1")));
        assert_eq!(value(&set, "WEFT_CUDA_LIBRARY"), None, "that is the user's word alone");
        assert_eq!(value(&set, "WEFT_PRIORITY"), None);
    }

    #[test]
    fn a_named_driver_is_kept() {
        let set = values(&[("WEFT_CUDA_LIBRARY", "/mine.so")], &Wishes::default());
        assert_eq!(value(&set, "WEFT_CUDA_LIBRARY"), None);
        assert_eq!(value(&set, libraries::HINT), None);
    }

    #[test]
    fn wishes_become_variables() {
        let wishes = Wishes {
            name: Some("resnet prod".to_string()),
            priority: Some(0),
            budget: LatencyBudget {
                slowdown: Some(20_000),
                slo: Some(50_000_000),
                at_least: Some(300_000),
            },
            profile: Some("resnet".to_string()),
            backing: Some(BackingOption::Managed),
            evict_idle: Some(Duration::from_secs(90)),
            evidence: Some(EvidenceOption::Residency),
            ..Wishes::default()
        };
        let set = values(&[("WEFT_MODE", "profile")], &wishes);
        assert_eq!(value(&set, "WEFT_NAME"), Some(OsStr::new("resnet prod")));
        assert_eq!(value(&set, "WEFT_PRIORITY"), Some(OsStr::new("0")));
        assert_eq!(value(&set, "WEFT_SLOWDOWN"), Some(OsStr::new("2%")));
        assert_eq!(value(&set, "WEFT_EVICT_IDLE"), Some(OsStr::new("90s")));
        assert_eq!(value(&set, "WEFT_SLO"), Some(OsStr::new("50000000ns")));
        assert_eq!(value(&set, "WEFT_AT_LEAST"), Some(OsStr::new("30%")));
        assert_eq!(value(&set, "WEFT_PROFILE"), Some(OsStr::new("resnet")));
        assert_eq!(value(&set, "WEFT_MODE"), Some(OsStr::new("serve")));
        assert_eq!(value(&set, "WEFT_BACKING"), Some(OsStr::new("managed")));
        assert_eq!(value(&set, "WEFT_EVIDENCE_FROM"), Some(OsStr::new("residency")));
    }

    #[test]
    fn a_path_that_the_linker_would_split_goes_by_its_link() {
        let linked = preloadable(Path::new("/my jobs/libweft.so"), Path::new("/run/lib"));
        assert_eq!(linked, Path::new("/run/lib/libcuda.so.1"));
    }
}
