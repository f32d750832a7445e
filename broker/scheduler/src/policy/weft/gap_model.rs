// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gap model: forecast of a foreground job's present gap from its past.
//!
//! The model enters kernels in launch order, and two marks that are worth more than any kernel:
//!
//! * a synchronising call saw the work end;
//! * a wake-up hint: a driver call of an idle job other than a launch.
//!
//! Each begins a time that ends with the next launch. Its length is learnt for its context. So the
//! forecast is better when the end is seen, and better again at the wake-up hint.

use weft_profiles::{
    Profile,
    predictor::{Context, Gaps, History, Outlook, Quality},
};

use weft_protocol::{Ns, lane::is_transfer};

/// Mark: the work was seen to end. (Fractional digits of the square roots of 2 and 3; no hash by
/// design.)
const SEEN_TO_END: u64 = 0x6a09_e667_f3bc_c908;

/// Mark: a wake-up hint.
const WAKE_UP_HINT: u64 = 0xbb67_ae85_84ca_a73b;

/// Time that ends with the next launch.
#[derive(Debug, Clone, Copy)]
struct OpenGap {
    context: Context,
    /// `None`: begins with the end of the submitted work, as known at the next launch.
    since: Option<Ns>,
}

/// Gap model of one foreground job.
#[derive(Debug, Clone, Default)]
pub(super) struct GapModel {
    history: History,
    gaps: Gaps,
    after_kernel: Option<OpenGap>,
    after_end: Option<OpenGap>,
    after_hint: Option<OpenGap>,
    /// Forecast of the time that began last.
    outlook: Outlook,
}

impl GapModel {
    pub(super) fn of(profile: &Profile) -> GapModel {
        let mut model = GapModel::default();
        for kernel in profile.kernels.iter().filter(|kernel| kernel.gap.count() > 0) {
            model.gaps.prime(kernel.hash, &kernel.gap);
        }
        model
    }

    /// `end`: when earlier work ended, seen or predicted.
    pub(super) fn launched(&mut self, kernel: u64, at: Ns, end: Ns) {
        if is_transfer(kernel) {
            // A copy behind a kernel changes nothing. On an idle device it is a wake-up hint.
            if self.after_end.is_some() || at >= end {
                self.wake_up_hint(at, end);
            }
            return;
        }
        for open in [self.after_kernel, self.after_end, self.after_hint]
            .into_iter()
            .flatten()
        {
            let lasted = at.saturating_sub(open.since.unwrap_or(end));
            self.gaps.learn(&open.context, lasted);
        }
        let context = self.history.push(kernel);
        self.after_kernel = Some(OpenGap { context, since: None });
        (self.after_end, self.after_hint) = (None, None);
        self.outlook = self.gaps.outlook(&context);
    }

    pub(super) fn ended(&mut self, at: Ns) {
        if self.after_kernel.is_none() || self.after_end.is_some() {
            return;
        }
        self.ends(at);
        let context = self.history.push(SEEN_TO_END);
        self.after_end = Some(OpenGap {
            context,
            since: Some(at),
        });
        self.prefer_known(&context);
    }

    /// Begins the gap after the last kernel at this end.
    fn ends(&mut self, end: Ns) {
        if let Some(open) = &mut self.after_kernel {
            open.since.get_or_insert(end);
        }
    }

    /// `end`: when earlier work ended, seen or predicted.
    pub(super) fn wake_up_hint(&mut self, at: Ns, end: Ns) {
        if self.after_kernel.is_none() || self.after_hint.is_some() {
            return;
        }
        self.ends(end);
        let context = self.history.push(WAKE_UP_HINT);
        self.after_hint = Some(OpenGap {
            context,
            since: Some(at),
        });
        // The previous outlook counts from the end of work, so it would seem to begin anew.
        self.outlook = self.gaps.outlook(&context);
    }

    /// Forgets the context after an unwatched time.
    pub(super) fn interrupted(&mut self) {
        (self.after_kernel, self.after_end, self.after_hint) = (None, None, None);
        self.history = History::default();
        self.outlook = Outlook::default();
    }

    /// Takes the outlook after a seen end if this kernel had one before. Else keeps the kernel's
    /// outlook.
    fn prefer_known(&mut self, context: &Context) {
        let outlook = self.gaps.outlook(context);
        if outlook.forecast.is_some_and(|forecast| forecast.kernels >= 2) {
            self.outlook = outlook;
        }
    }

    /// Whether the time that began last is known: from its context, its kernel's profile or an
    /// earlier wake-up hint.
    pub(super) fn knows(&self) -> bool {
        self.outlook.forecast.is_some_and(|forecast| forecast.kernels >= 1)
    }

    pub(super) fn hinted_at(&self) -> Option<Ns> {
        self.after_hint.and_then(|open| open.since)
    }

    /// Low (nine in ten are longer) and middle length of that time, ns.
    pub(super) fn expects(&self) -> Option<(Ns, Ns)> {
        self.outlook.forecast.map(|forecast| (forecast.low, forecast.middle))
    }

    /// Room of others, ns, `elapsed` ns after that time began, at this chance of keeping the
    /// foreground job waiting.
    pub(super) fn room(&self, elapsed: Ns, chance: f64) -> Ns {
        self.gaps.room(&self.outlook, elapsed, chance)
    }

    /// Whether that length is known: nine in ten last half the middle length at least.
    pub(super) fn is_steady(&self) -> bool {
        self.knows() && self.expects().is_some_and(|(low, middle)| low >= middle / 2)
    }

    /// Room if no forecast exists: a gap that has lasted will last.
    pub(super) fn room_unknown(&self, elapsed: Ns, chance: f64) -> Ns {
        self.gaps.room(&Outlook::default(), elapsed, chance)
    }

    pub(super) fn quality(&self) -> (Quality, usize) {
        (self.gaps.quality(), self.gaps.contexts())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{MS, US};

    /// A request of three kernels that ends with a synchronising call. The wake-up hint comes 5 ms
    /// later, the next launch after 100 us.
    fn request(model: &mut GapModel, start: Ns) -> Ns {
        for kernel in [1, 2, 3] {
            model.launched(kernel, start, start);
        }
        let end = start + 300 * US;
        model.ended(end);
        model.wake_up_hint(end + 5 * MS, end);
        end + 5 * MS + 100 * US
    }

    #[test]
    fn each_epoch_tells_the_next_launch_more_exactly() {
        let mut model = GapModel::default();
        let mut now = MS;
        for _ in 0..20 {
            now = request(&mut model, now);
        }
        for kernel in [1, 2, 3] {
            model.launched(kernel, now, now);
        }
        let near = |found: Option<(Ns, Ns)>, told: Ns| {
            let (low, middle) = found.expect("known");
            assert!(
                low <= middle && middle.abs_diff(told) < told / 10,
                "{middle} for {told}"
            );
        };
        model.ended(now + 300 * US);
        assert!(model.knows());
        near(model.expects(), 5_100 * US);
        assert!(model.room(0, 0.3) > 4_500 * US);
        model.wake_up_hint(now + 5_300 * US, now + 300 * US);
        assert_eq!(model.hinted_at(), Some(now + 5_300 * US));
        near(model.expects(), 100 * US);
        assert!(model.room(50 * US, 0.3) < 60 * US);
    }

    #[test]
    fn a_mark_that_was_never_seen_here_leaves_what_the_kernel_says() {
        let mut run = weft_profiles::Aggregator::new();
        (0..20).for_each(|_| run.sampled(7, 100 * US, Some(3 * MS)));
        let mut model = GapModel::of(&run.finish("job", 0));
        assert!(!model.knows());
        model.launched(7, MS, MS);
        model.ended(2 * MS);
        assert!(model.knows());
        let (_, middle) = model.expects().expect("of the profile");
        assert!(middle.abs_diff(3 * MS) < 100 * US, "{middle}");
    }

    #[test]
    fn a_wake_up_hint_is_never_taken_for_the_beginning_of_another_gap() {
        let mut model = GapModel::default();
        let mut now = MS;
        // Without a wake-up hint.
        for _ in 0..20 {
            for kernel in [1, 2, 3] {
                model.launched(kernel, now, now);
            }
            model.ended(now + 300 * US);
            now += 5 * MS;
        }
        for kernel in [1, 2, 3] {
            model.launched(kernel, now, now);
        }
        let end = now + 300 * US;
        model.ended(end);
        assert!(model.knows() && model.room(0, 0.1) > 4 * MS);
        model.wake_up_hint(end + 4 * MS, end);
        assert!(!model.knows(), "{:?}", model.expects());
    }

    #[test]
    fn what_lies_between_two_times_of_being_watched_is_no_gap() {
        let mut model = GapModel::default();
        model.launched(1, MS, MS);
        model.interrupted();
        model.launched(1, 1_000 * MS, 2 * MS);
        assert!(!model.knows());
        assert_eq!(model.room_unknown(MS, 0.5), MS);
    }
}
