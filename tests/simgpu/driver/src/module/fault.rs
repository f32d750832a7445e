// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launches that fail because a test asks for it: `SIMGPU_FAULT=PART[:N[:CODE]]`.
//!
//! The N-th launch (by default the first) of the process's kernels with PART in their symbol ends
//! with an error (by default 700, an illegal address). From then on its context answers all calls
//! about work with that error, as a real one does until the process ends.
#![forbid(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::Error;

/// The content of the variable.
struct Asked {
    part: String,
    at: u64,
    error: Error,
    /// Launches so far.
    launches: AtomicU64,
}

/// Which launch of a kernel fails.
pub(crate) struct LaunchFailure(&'static Asked);

fn parse(text: &str) -> Option<Asked> {
    let mut words = text.split(':');
    let part = words.next().filter(|part| !part.is_empty())?.to_string();
    let at = words.next().map_or(Some(1), |word| word.parse().ok())?;
    let error = words
        .next()
        .map_or(Some(Error::ILLEGAL_ADDRESS), |word| word.parse().ok().map(Error))?;
    words.next().is_none().then_some(Asked {
        part,
        at,
        error,
        launches: AtomicU64::new(0),
    })
}

fn asked() -> Option<&'static Asked> {
    static ASKED: OnceLock<Option<Asked>> = OnceLock::new();
    let read = || {
        let text = std::env::var("SIMGPU_FAULT").ok()?;
        let asked = parse(&text);
        if asked.is_none() {
            eprintln!(
                "simcuda[{}] SIMGPU_FAULT={text}: not PART[:N[:CODE]]",
                std::process::id()
            );
        }
        asked
    };
    ASKED.get_or_init(read).as_ref()
}

/// Whether launches of a kernel of this name are counted.
pub(crate) fn of(name: &str) -> Option<LaunchFailure> {
    asked().filter(|asked| name.contains(&asked.part)).map(LaunchFailure)
}

impl LaunchFailure {
    /// The error of the launch that is being made, if it is the one.
    pub(crate) fn now(&self) -> Option<Error> {
        let number = self.0.launches.fetch_add(1, Ordering::Relaxed) + 1;
        (number == self.0.at).then_some(self.0.error)
    }
}

#[cfg(test)]
mod tests {
    use super::{Error, parse};

    #[test]
    fn what_may_be_said() {
        let said = |text| parse(text).map(|asked| (asked.part, asked.at, asked.error.0));
        assert_eq!(said("fill"), Some(("fill".into(), 1, 700)));
        assert_eq!(said("fill:3"), Some(("fill".into(), 3, 700)));
        assert_eq!(said("fill:3:719"), Some(("fill".into(), 3, 719)));
        for wrong in ["", ":3", "fill:x", "fill:3:x", "fill:3:719:1"] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
        assert_eq!(Error::ILLEGAL_ADDRESS.0, 700);
    }
}
