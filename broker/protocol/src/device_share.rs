//! What a job asks of the device itself, beside what the broker decides. Pure.
//!
//! # Priorities
//!
//! Under MPS the driver knows two priorities of a client (`CUDA_MPS_CLIENT_PRIORITY`): 0, normal,
//! and 1, below normal. The variable maps all of a client's stream priorities to another range.
//! NVIDIA's guide to MPS, "Client Priority Level Control", gives an example. A normal client uses
//! the default stream alone, whose priority is the least. A client below normal uses streams of
//! priority -3. The first goes first; without the variable the second would. So stream priorities
//! count across clients, and the guide calls all of them hints.
//!
//! # A part of the SMs
//!
//! [`SmMechanism`] lists what can keep a job to a part of the device's SMs, and
//! [`SmMechanism::verdict`] says of each whether weft uses it where a driver offers it.
//! [`sm_limit`] decides for a job. No job has a limit that it, or its user, did not ask for.
//!
//! * **MPS's active-thread percentage** (`CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`) is a limit of a
//!   client, set before it begins. The driver carries it out for all streams, and tells the job a
//!   number of SMs that fits. So weft changes no call of the job's.
//! * **Green contexts** (`cuGreenCtxCreate`, CUDA 12.4) belong to a process. weft does not make a
//!   job's work run in one, for these reasons:
//!   - *Order.* What two calls put on one stream happens in that order. A launch that weft sent
//!     through a stream of its own would leave it, and two waits for events a launch would have to
//!     restore it. A capture would record them.
//!   - *The default streams.* `cuGreenCtxStreamCreate` makes non-blocking streams only. A job's
//!     blocking stream orders itself with the legacy default stream, which PyTorch and most
//!     programs launch to. Neither can be replaced by such a stream.
//!   - *The context.* A green context handed out in place of the primary one (`cuCtxFromGreenCtx`)
//!     may be current to one thread at a time. Jobs use the primary one from many.
//!   - *Kernels that wait for one another.* A job asks how many SMs there are, and launches as many
//!     blocks that wait for each other: cooperative launches, NCCL, stream-K. In a part that the
//!     job does not know of, the driver refuses the first, and the others never end.
//!   - *No use without MPS.* Processes then have the device in turns. SMs that a job leaves out in
//!     its turn stay idle. With MPS the percentage does the same, and goes before green contexts.
//!
//!   What they could add under MPS is a limit that changes while the job runs. Whether that is
//!   worth these prices only a GPU can say. A job's own green contexts are left alone.
#![forbid(unsafe_code)]

/// Whether the device is told which jobs matter less: `on` (default) or `off`.
pub const SWITCH: &str = "WEFT_DEVICE_PRIORITIES";

/// Priority of a client of MPS, as the driver reads it.
pub const CLIENT_PRIORITY: &str = "CUDA_MPS_CLIENT_PRIORITY";

/// Value of [`CLIENT_PRIORITY`] for a job that matters less.
pub const BELOW_NORMAL: &str = "1";

/// Part of the SMs of a client of MPS, per cent.
pub const ACTIVE_THREADS: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

/// From this priority on a job is below normal: that of a job which asks for none.
pub const FIRST_BELOW_NORMAL: u8 = 5;

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

/// What a driver offers on a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SmOffer {
    /// Whether the job's process shares the device under MPS; `None`: not known.
    pub mps: Option<bool>,
    /// Whether the driver makes green contexts there; `None`: not known.
    pub green_contexts: Option<bool>,
}

/// What weft does with a mechanism where a driver makes such an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmVerdict {
    /// Uses it for a job with a share.
    Used,
    /// Not known whether it is there. Asking for it does no harm where it is not.
    Unknown,
    /// It is not there.
    Missing,
    /// It is there, and weft leaves it alone.
    LeftAlone,
}

impl SmMechanism {
    /// All of them, the one to take first first.
    pub const ALL: [SmMechanism; 2] = [SmMechanism::ActiveThreads, SmMechanism::GreenContexts];

    /// What weft does with it where a driver makes this offer.
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
    /// Nothing that weft uses keeps it to its share here.
    Nothing(SmShare),
}

/// Decides how a job with this share is limited where a driver makes this offer.
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
