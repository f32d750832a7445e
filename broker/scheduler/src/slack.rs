//! How much a foreground job can be kept waiting within a stretch of launches before anybody
//! notices: for policy `weft`, where going to another process costs the device nothing.
//!
//! A foreground job whose host launches more slowly than the device works leaves a short gap after
//! each kernel. A background job's kernel that is still in progress at the end of such a gap delays
//! the kernel behind it, but nobody waits for that one: the next is launched when the host comes to
//! it, and by then the device has caught up. What is felt is the delay of the last kernel before
//! the foreground job waits for the device. A background job goes only when nothing of the
//! foreground job is left there, so of all the delays of a stretch one is felt at most, and that is
//! no longer than a background job's kernel in progress.
//!
//! In the gap after a wait any delay is felt: there the chance of one is what is bounded, by the
//! same part.
//!
//! So within a stretch a kernel may last beyond its gap by a part of the time for which the
//! foreground job usually works between two waits. A foreground job that waits after every kernel
//! is allowed next to nothing.
#![forbid(unsafe_code)]

use weft_protocol::Ns;

/// This part of a stretch may be lost at its end.
///
/// 0.7 %: half of it is lost on the average, since a kernel in progress is found at any point of
/// it. The aims are 2 % in the mean, and 0.5 % beside background jobs with short kernels. One per
/// cent took 0.52 % from the tightest case of the lab (decoding by graphs); where background jobs'
/// hosts run ahead, so that a kernel is there in every gap, 0.8 took 0.75 and 0.7 takes 0.45.
const PART: f64 = 0.007;

/// How much a stretch changes what is known of their lengths, as a part of the difference.
const GAIN: f64 = 1.0 / 16.0;

/// What is left of a background job's kernel when the foreground job finds it in progress, in ns:
/// half of 50 us, as long as the kernels of most models.
const RESIDUAL: f64 = 25_000.0;

/// However often a foreground job waits, with this chance it may be kept waiting: else next to
/// nothing would go beside one that waits after every kernel.
const LEAST_RISK: f64 = 0.1;

/// And one of which little is known with this.
const UNKNOWN_RISK: f64 = 0.5;

/// So many stretches are seen before anything is allowed.
const ENOUGH: u32 = 4;

/// Stretches of launches between two times at which the foreground job waited for the device.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Slack {
    since: Option<Ns>,
    /// Mean length of the last dozens.
    length: f64,
    seen: u32,
}

impl Slack {
    /// It launches.
    pub(super) fn launched(&mut self, at: Ns) {
        self.since.get_or_insert(at);
    }

    /// A call of it that waited saw that all has ended.
    pub(super) fn waited(&mut self, at: Ns) {
        let Some(since) = self.since.take() else { return };
        let length = at.saturating_sub(since) as f64;
        self.seen = self.seen.saturating_add(1);
        // A plain mean: what is felt of all stretches together is to be a part of all of their
        // time.
        let gain = GAIN.max(1.0 / f64::from(self.seen));
        self.length += (length - self.length) * gain;
    }

    /// It was not watched for a while.
    pub(super) fn interrupted(&mut self) {
        self.since = None;
    }

    /// The chance that a kernel of this time in the gap after a wait may have of keeping the
    /// foreground job waiting, `most` at the utmost: so that what is felt is that part of the
    /// stretch. Half of it is left, on the average, when the foreground job finds it in progress.
    pub(super) fn risk(&self, most: f64, kernel: Ns) -> f64 {
        match self.seen >= ENOUGH {
            true => (self.length * PART / RESIDUAL.max(kernel as f64 / 2.0))
                .max(LEAST_RISK)
                .min(most),
            false => most.min(UNKNOWN_RISK),
        }
    }

    /// By how much a kernel may last beyond a gap within a stretch.
    pub(super) fn allows(&self) -> Ns {
        match self.since {
            Some(_) if self.seen >= ENOUGH => (self.length * PART) as Ns,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::{MS, US};
    use super::*;

    fn worked(slack: &mut Slack, times: u64, length: Ns) {
        for turn in 0..times {
            let at = turn * 100 * MS;
            slack.launched(at);
            slack.launched(at + length / 2);
            slack.waited(at + length);
        }
    }

    #[test]
    fn a_part_of_a_stretch_is_allowed_within_one() {
        let mut slack = Slack::default();
        worked(&mut slack, 3, 10 * MS);
        slack.launched(1_000 * MS);
        assert_eq!(slack.allows(), 0, "little is known");
        assert_eq!(slack.risk(0.95, 0), UNKNOWN_RISK);
        slack.waited(1_010 * MS);
        assert_eq!(slack.allows(), 0, "it has waited: what comes next is felt");
        slack.launched(1_100 * MS);
        assert_eq!(slack.allows(), 70 * US);
        slack.interrupted();
        assert_eq!(slack.allows(), 0);
    }

    #[test]
    fn who_waits_after_every_kernel_is_allowed_next_to_nothing() {
        let mut slack = Slack::default();
        worked(&mut slack, 40, 10 * MS);
        worked(&mut slack, 200, 60 * US);
        slack.launched(100_000 * MS);
        assert!(slack.allows() < US, "{}", slack.allows());
        assert_eq!(slack.risk(0.95, 0), LEAST_RISK);
        worked(&mut slack, 100, 10 * MS);
        assert_eq!(slack.risk(0.95, 0), 0.95, "half a kernel is little to it");
    }
}
