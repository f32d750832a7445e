//! The environment of a job under weft.
//!
//! What holds: what the user set stays (entries are put beside his, not in their place;
//! `WEFT_CUDA_LIBRARY` is kept), and doing it twice is doing it once.
#![forbid(unsafe_code)]

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::libraries::{self, Driver};
use weft_daemon::places::Places;

/// What is set for a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// Name and value.
    pub set: Vec<(&'static str, OsString)>,
    /// What the person should know before the job starts.
    pub warnings: Vec<String>,
    /// A directory that was made for this job alone, because the user's own place cannot be used.
    /// Who outlives the job has it removed ([`Environment::tidy`]).
    pub made: Option<PathBuf>,
}

impl Environment {
    /// The job has ended: what was made for it alone goes.
    pub fn tidy(&self) {
        if let Some(made) = &self.made {
            let _ = std::fs::remove_dir_all(made);
        }
    }
}

/// What a job is to be.
#[derive(Debug, Clone, Default)]
pub struct Wishes {
    /// 0 to 9, if given.
    pub priority: Option<u8>,
    /// The profile, if given.
    pub profile: Option<String>,
    /// Whether it is sampled.
    pub profiling: bool,
    /// What its device memory is to be, if said.
    pub backing: Option<Backing>,
    /// Where it is to learn from what its kernels touch, if said.
    pub evidence: Option<Evidence>,
    /// Bytes it takes at its peak, if said.
    pub memory: Option<u64>,
    /// short, medium or long, if said.
    pub duration: Option<String>,
    /// Seconds that it waits for memory at most, or `no`.
    pub wait: Option<String>,
}

/// What a job's device memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Backing {
    /// Memory of the device.
    Device,
    /// Managed memory: pages move between host and device.
    Managed,
    /// The device's where the job's fits beside the others', else managed at once instead of a
    /// wait: the broker decides as the job begins.
    Auto,
}

/// What tells which memory a kernel touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Evidence {
    /// The driver, where it does: a simulated one.
    Auto,
    /// The host's page table, launch by launch.
    Residency,
}

/// Puts together what makes a job one of weft's.
pub fn assemble(places: &Places, wishes: &Wishes) -> Result<Environment> {
    let weft = libraries::find_weft()
        .context("libweft.so is not beside the weft command (WEFT_LIBRARY=/path/to/libweft.so names it)")?;
    let (links, made) = links(&weft, places)?;
    let driver = libraries::find_driver(Some(&weft));
    let mut environment = Environment {
        made,
        ..Environment::default()
    };
    if driver.is_none() {
        environment.warnings.push(match env::var_os("WEFT_CUDA_LIBRARY") {
            Some(named) => format!("WEFT_CUDA_LIBRARY={} is no driver", named.display()),
            None => {
                "no NVIDIA driver (libcuda.so.1) was found; the job will find none either (weft doctor)".to_string()
            }
        });
    }
    let preload = preloadable(&weft, &links);
    let current = |name: &str| env::var_os(name).unwrap_or_default();
    environment.set = variables(&preload, &links, driver.as_ref(), &current, wishes);
    // Whatever the job starts is the same job. The process keeps its number when the job takes its
    // place.
    let since = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_micros());
    let gang = format!("{}-{since}", std::process::id());
    environment.set.push(("WEFT_GANG", gang.into()));
    if env::var_os("WEFT_SOCKET").as_deref() != Some(places.socket().as_os_str()) {
        // The job may change the variables that the well-known place is made of.
        environment
            .set
            .push(("WEFT_SOCKET", places.socket().as_os_str().to_os_string()));
    }
    Ok(environment)
}

/// A directory in which the driver's names lead to weft: the one that was laid out beside it, else
/// one in this user's own place, else a fresh one, which is returned once more. On a machine of
/// several users anybody may have been first to make the place (`/tmp/weft-UID`).
fn links(weft: &Path, places: &Places) -> Result<(PathBuf, Option<PathBuf>)> {
    if let Some(beside) = libraries::links_beside(weft) {
        return Ok((beside, None));
    }
    // A shared broker's directory is not this user's to write to.
    let home = match places.is_shared() {
        true => Places::own(),
        false => places.clone(),
    };
    let own = home
        .prepare()
        .with_context(|| format!("this user's directory {}", home.directory().display()))
        .and_then(|()| Ok(libraries::link_directory(weft, &home.directory())?));
    let why = match own {
        Ok(links) => return Ok((links, None)),
        Err(why) => why,
    };
    let fresh = libraries::fresh_directory()
        .with_context(|| format!("{why:#}; nor can a directory be made in {}", env::temp_dir().display()))?;
    match libraries::link_directory(weft, &fresh) {
        Ok(links) => Ok((links, Some(fresh))),
        Err(error) => {
            let _ = std::fs::remove_dir_all(&fresh);
            Err(error).with_context(|| format!("cannot link the driver's names to {}", weft.display()))
        }
    }
}

/// `LD_PRELOAD` is split at blanks and colons and knows no quotes: a library in such a path is
/// named by its link.
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
    driver: Option<&Driver>,
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
        // The directory of links hides the driver from LD_LIBRARY_PATH, so it is named; but a job
        // that goes into a container finds its own.
        set.push((libraries::HINT, driver.path.clone().into_os_string()));
    }
    if let Some(priority) = wishes.priority {
        set.push(("WEFT_PRIORITY", priority.to_string().into()));
    }
    if let Some(profile) = &wishes.profile {
        set.push(("WEFT_PROFILE", profile.into()));
    }
    if let Some(backing) = wishes.backing {
        let value = match backing {
            Backing::Device => "device",
            Backing::Managed => "managed",
            Backing::Auto => "auto",
        };
        set.push(("WEFT_BACKING", value.into()));
    }
    if let Some(evidence) = wishes.evidence {
        let value = match evidence {
            Evidence::Auto => "auto",
            Evidence::Residency => "residency",
        };
        set.push(("WEFT_EVIDENCE_FROM", value.into()));
    }
    if let Some(memory) = wishes.memory {
        // A small number without a unit would be taken for a forgotten one.
        set.push(("WEFT_MEMORY", format!("{memory}b").into()));
    }
    if let Some(duration) = &wishes.duration {
        set.push(("WEFT_DURATION", duration.into()));
    }
    if let Some(wait) = &wishes.wait {
        set.push(("WEFT_WAIT", wait.into()));
    }
    if wishes.profiling {
        set.push(("WEFT_MODE", "profile".into()));
    } else if current("WEFT_MODE") == "profile" {
        // `weft run` serves, also in a shell that took a profile. Who says off means it.
        set.push(("WEFT_MODE", "serve".into()));
    }
    set
}

/// `entry` first, then what was there, without `entry` once more.
fn prepended(entry: &OsStr, existing: &OsStr, separators: &[u8]) -> OsString {
    let rest = others(entry, existing, separators);
    joined(std::iter::once(entry.as_bytes()).chain(rest))
}

/// What was there, without `entry`, then `entry`. So libraries that must come first (ASan's) do,
/// and one that has driver functions of its own gets the job's calls and finds weft's behind them,
/// as it would find the driver's.
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
        let driver = Driver {
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
            priority: Some(0),
            profile: Some("resnet".to_string()),
            backing: Some(Backing::Managed),
            evidence: Some(Evidence::Residency),
            ..Wishes::default()
        };
        let set = values(&[("WEFT_MODE", "profile")], &wishes);
        assert_eq!(value(&set, "WEFT_PRIORITY"), Some(OsStr::new("0")));
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
