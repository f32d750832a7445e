// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests of a job to the device itself, in addition to the broker's decisions. Pure.
//!
//! # Priorities
//!
//! Under MPS the driver knows two priorities of a client (`CUDA_MPS_CLIENT_PRIORITY`): 0, normal,
//! and 1, below normal. The variable maps all of a client's stream priorities to another range.
//! NVIDIA's guide to MPS, "Client Priority Level Control", gives an example. A normal client uses
//! only the default stream, which has the least priority. A client below normal uses streams of
//! priority -3. The normal client's work goes first; without the variable the other client's work
//! would. So stream priorities count across clients, and the guide calls all of them hints.
//!
//! # A part of the SMs
//!
//! [`SmMechanism`] lists the mechanisms that can keep a job to a part of the device's SMs.
//! [`SmMechanism::verdict`] decides for each whether weft uses it on a driver that offers it.
//! [`sm_limit`] decides for a job. A job has a limit only if the job or its user asked for one.
//!
//! * **MPS's active-thread percentage** (`CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`) is a limit of a
//!   client, set before it begins. The driver enforces it on all streams and reports a matching
//!   number of SMs to the job. So weft changes none of the job's calls.
//! * **Green contexts** (`cuGreenCtxCreate`, CUDA 12.4) belong to a process. weft does not run a
//!   job's work in one, for these reasons:
//!   - *Order.* Two calls on one stream take effect in that order. A launch that weft sent through
//!     a stream of its own would leave this order. Each launch would need two event waits to
//!     restore it, and a capture would record them.
//!   - *The default streams.* `cuGreenCtxStreamCreate` makes only non-blocking streams. A job's
//!     blocking stream orders itself with the legacy default stream, which PyTorch and most
//!     programs launch to. A non-blocking stream can replace neither.
//!   - *The context.* A green context handed out in place of the primary one (`cuCtxFromGreenCtx`)
//!     may be current to one thread at a time. Jobs use the primary one from many threads.
//!   - *Kernels that wait for one another.* A job asks for the number of SMs, and launches that
//!     many blocks, which wait for each other: cooperative launches, NCCL, stream-K. In a part of
//!     the SMs that the job does not know of, the driver refuses cooperative launches, and the
//!     others never end.
//!   - *No use without MPS.* Processes then have the device in turns. SMs that a job does not use
//!     in its turn stay idle. With MPS the percentage has the same effect, and weft prefers it to
//!     green contexts.
//!
//!   Under MPS green contexts could add a limit that changes while the job runs. Only a test on a
//!   GPU can show whether that is worth these costs. weft does not touch a job's own green
//!   contexts.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Folder of the pipes of an MPS daemon or, under version 3, of a server or namespace. The driver
/// reads the variable at `cuInit`.
pub const PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// The folder of pipes without [`PIPES`].
pub const DEFAULT_PIPES: &str = "/tmp/nvidia-mps";

/// Number of the MPS server that a process with this folder of pipes uses, equal in all mount
/// namespaces. `None`: there is no such folder.
///
/// Under version 3, `PIPES/server/namespace` is a namespace of the server at `PIPES/server`, by
/// NVIDIA's page "MPS v3 Namespaces". Clients of two namespaces share a server.
pub fn mps_server(pipes: &Path) -> Option<u64> {
    let listens = |folder: &Path| folder.join("control").exists();
    let server = pipes
        .parent()
        .filter(|server| listens(server) && server.parent().is_some_and(listens));
    let facts = fs::metadata(server.unwrap_or(pipes)).ok()?;
    Some(facts.dev().rotate_left(32) ^ facts.ino())
}

/// Environment variable for device priorities: `on` (default) or `off`. If on, the driver gets a
/// hint which jobs matter less.
pub const SWITCH: &str = "WEFT_DEVICE_PRIORITIES";

/// Priority of a client of MPS, as the driver reads it.
pub const CLIENT_PRIORITY: &str = "CUDA_MPS_CLIENT_PRIORITY";

/// Value of [`CLIENT_PRIORITY`] for a job that matters less.
pub const BELOW_NORMAL: &str = "1";

/// Part of the SMs of a client of MPS, per cent.
pub const ACTIVE_THREADS: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

/// First priority that is always below normal, which is also the priority of a job that asks for
/// none.
pub const FIRST_BELOW_NORMAL: u8 = 5;

/// Whether a job of this priority begins below normal. The driver fixes a client's priority at its
/// start, so the jobs that are there then decide. `most_important`: the most important priority
/// among them.
pub fn begins_below_normal(priority: u8, most_important: Option<u8>) -> bool {
    priority >= FIRST_BELOW_NORMAL || most_important.is_some_and(|other| other < priority)
}

/// Parses [`SWITCH`]; empty is on.
pub fn parse_switch(text: &str) -> Result<bool, String> {
    match text.trim() {
        "" | "on" => Ok(true),
        "off" => Ok(false),
        other => Err(format!("{SWITCH}={other} is neither on nor off")),
    }
}

/// Part of the SMs that a job may use, per cent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmShare(u8);

impl SmShare {
    /// Parses `25%`.
    pub fn parse(text: &str) -> Result<SmShare, String> {
        let percent = text.trim().strip_suffix('%').map(str::trim_end);
        percent
            .and_then(SmShare::from_percentage)
            .ok_or_else(|| format!("{text} is not a part of the SMs: write 25%, a whole number from 1% to 100%"))
    }

    /// The share of a value of [`ACTIVE_THREADS`], if it is a whole number.
    pub fn from_percentage(text: &str) -> Option<SmShare> {
        let percent = text.trim().parse().ok();
        percent.filter(|percent| (1..=100).contains(percent)).map(SmShare)
    }

    /// Per cent, 1 to 100.
    pub fn percent(self) -> u8 {
        self.0
    }
}

/// A way to keep a job to a part of the SMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmMechanism {
    /// [`ACTIVE_THREADS`].
    ActiveThreads,
    /// `cuGreenCtxCreate`.
    GreenContexts,
}

/// Support of a driver for the mechanisms on a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SmOffer {
    /// Whether the job's process shares the device under MPS; `None`: not known.
    pub mps: Option<bool>,
    /// Whether the driver makes green contexts there; `None`: not known.
    pub green_contexts: Option<bool>,
}

/// Use that weft makes of a mechanism, given a driver's support.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmVerdict {
    /// Uses it for a job with a share.
    Used,
    /// Not known whether the driver has it. A request for it does no harm if it is missing.
    Unknown,
    /// The driver does not have it.
    Missing,
    /// The driver has it, and weft does not use it.
    LeftAlone,
}

impl SmMechanism {
    /// All mechanisms, the preferred one first.
    pub const ALL: [SmMechanism; 2] = [SmMechanism::ActiveThreads, SmMechanism::GreenContexts];

    /// Use that weft makes of the mechanism, given this support.
    pub fn verdict(self, offer: SmOffer) -> SmVerdict {
        let (offered, used) = match self {
            SmMechanism::ActiveThreads => (offer.mps, true),
            SmMechanism::GreenContexts => (offer.green_contexts, false),
        };
        match (offered, used) {
            (Some(false), _) => SmVerdict::Missing,
            (None, _) => SmVerdict::Unknown,
            (Some(true), true) => SmVerdict::Used,
            (Some(true), false) => SmVerdict::LeftAlone,
        }
    }
}

/// How a job is kept to its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmLimit {
    /// It asked for no share: it may use the whole device.
    Whole,
    /// The driver keeps it to this share: set [`ACTIVE_THREADS`].
    ActiveThreads(SmShare),
    /// No mechanism that weft uses keeps it to its share here.
    Nothing(SmShare),
}

/// Limit of a job with this share on a driver with this support.
pub fn sm_limit(offer: SmOffer, share: Option<SmShare>) -> SmLimit {
    let Some(share) = share else {
        return SmLimit::Whole;
    };
    match SmMechanism::ActiveThreads.verdict(offer) {
        SmVerdict::Used | SmVerdict::Unknown => SmLimit::ActiveThreads(share),
        SmVerdict::Missing | SmVerdict::LeftAlone => SmLimit::Nothing(share),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_one_server_have_one_number() {
        // The folders of NVIDIA's page "MPS v3 Namespaces".
        let root = std::env::temp_dir().join(format!("weft-mps-{}", std::process::id()));
        for folder in ["training/default", "training/high_priority", "other/default", "apart"] {
            fs::create_dir_all(root.join(folder)).expect("a folder");
        }
        for socket in [
            "",
            "training",
            "training/default",
            "training/high_priority",
            "other",
            "other/default",
        ] {
            fs::write(root.join(socket).join("control"), "").expect("a file");
        }
        let number = |folder: &str| mps_server(&root.join(folder));
        let training = number("training");
        assert!(training.is_some());
        assert_eq!(number("training/default"), training);
        assert_eq!(number("training/high_priority"), training);
        let others = [number("other/default"), number(""), number("apart")];
        assert!(
            others.iter().all(|other| other.is_some() && *other != training),
            "{others:?}"
        );
        assert_eq!(number("missing"), None);
        fs::remove_dir_all(&root).expect("removed");
    }

    #[test]
    fn the_role_decides_before_the_number() {
        for (priority, most_important, below) in [
            (0, None, false),
            (4, None, false),
            (4, Some(4), false),
            (4, Some(7), false),
            (4, Some(0), true),
            (1, Some(0), true),
            (5, None, true),
            (5, Some(9), true),
        ] {
            assert_eq!(
                begins_below_normal(priority, most_important),
                below,
                "{priority}, {most_important:?}"
            );
        }
    }

    #[test]
    fn the_switch_is_on_or_off() {
        for (text, means) in [("", true), ("on", true), (" on ", true), ("off", false)] {
            assert_eq!(parse_switch(text), Ok(means), "{text}");
        }
        for wrong in ["0", "1", "On", "none"] {
            assert!(parse_switch(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_share_is_a_whole_number_of_per_cent() {
        for (text, percent) in [("25%", 25), (" 1 % ", 1), ("100%", 100)] {
            assert_eq!(SmShare::parse(text).map(SmShare::percent), Ok(percent), "{text}");
        }
        for wrong in ["25", "0%", "101%", "-1%", "2.5%", "0.25", "a%", "%", ""] {
            assert!(SmShare::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(SmShare::from_percentage(" 30 ").map(SmShare::percent), Some(30));
        for other in ["", "0", "12.5", "30%", "300"] {
            assert_eq!(SmShare::from_percentage(other), None, "{other}");
        }
    }

    const ANSWERS: [Option<bool>; 3] = [None, Some(false), Some(true)];

    #[test]
    fn nobody_is_limited_who_did_not_ask() {
        for mps in ANSWERS {
            for green_contexts in ANSWERS {
                let offer = SmOffer { mps, green_contexts };
                assert_eq!(sm_limit(offer, None), SmLimit::Whole, "{offer:?}");
            }
        }
    }

    #[test]
    fn a_share_is_mps_s_affair_and_green_contexts_are_left_alone() {
        let share = SmShare(25);
        for green_contexts in ANSWERS {
            let limit = |mps| sm_limit(SmOffer { mps, green_contexts }, Some(share));
            assert_eq!(limit(Some(true)), SmLimit::ActiveThreads(share));
            assert_eq!(
                limit(None),
                SmLimit::ActiveThreads(share),
                "harmless where there is none"
            );
            assert_eq!(limit(Some(false)), SmLimit::Nothing(share));
        }
        let verdicts = |mps, green_contexts| {
            let offer = SmOffer { mps, green_contexts };
            SmMechanism::ALL.map(|mechanism| mechanism.verdict(offer))
        };
        use SmVerdict::{LeftAlone, Missing, Unknown, Used};
        assert_eq!(verdicts(Some(true), Some(true)), [Used, LeftAlone]);
        assert_eq!(verdicts(Some(false), Some(false)), [Missing, Missing]);
        assert_eq!(verdicts(None, None), [Unknown, Unknown]);
    }
}
