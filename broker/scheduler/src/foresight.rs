//! What a foreground job's past says about the gap that it leaves now. Under policy `weft` only:
//! `fikit` follows the paper and goes by the kernel alone.
//!
//! The foreground job's kernels are entered in the order of their launches; so are two marks, for
//! free and worth more than any kernel: that a synchronising call saw its work end, and that it
//! stirs (a driver call that is no launch). After each of them begins a time that ends with the
//! next launch; how long it lasted is learnt for the context in which it began. So a gap is
//! foreseen when its last kernel is launched, better when its end is seen, and better again when
//! the foreground job stirs.

use weft_profiles::{
    Profile,
    predictor::{Context, Gaps, History, Outlook, Quality},
};

use weft_protocol::{Ns, lane::is_transfer};

/// In the place of a kernel: a synchronising call returned, nothing is left on the device. (The
/// fractional digits of the square roots of 2 and 3: no hash by design.)
const SEEN_TO_END: u64 = 0x6a09_e667_f3bc_c908;

/// In the place of a kernel: the foreground job stirs.
const STIRS: u64 = 0xbb67_ae85_84ca_a73b;

/// A time that began and ends with the next launch.
#[derive(Debug, Clone, Copy)]
struct Open {
    context: Context,
    /// `None`: with the end of the work that is submitted, as it is known when the next launch
    /// comes.
    since: Option<Ns>,
}

/// What is learnt of a foreground job.
#[derive(Debug, Clone, Default)]
pub(super) struct Foresight {
    history: History,
    gaps: Gaps,
    after_kernel: Option<Open>,
    after_end: Option<Open>,
    after_stir: Option<Open>,
    /// What is expected of the time that began last.
    outlook: Outlook,
}

impl Foresight {
    /// With what a profile says of each kernel.
    pub(super) fn of(profile: &Profile) -> Foresight {
        let mut foresight = Foresight::default();
        for kernel in profile.kernels.iter().filter(|kernel| kernel.gap.count() > 0) {
            foresight.gaps.prime(kernel.hash, &kernel.gap);
        }
        foresight
    }

    /// It launches at `at`; `end` is when its earlier work ended or is predicted to.
    pub(super) fn launched(&mut self, kernel: u64, at: Ns, end: Ns) {
        if is_transfer(kernel) {
            // A copy behind a kernel changes nothing about what follows. One that finds the device
            // idle is a stir.
            if self.after_end.is_some() || at >= end {
                self.stirs(at, end);
            }
            return;
        }
        for open in [self.after_kernel, self.after_end, self.after_stir]
            .into_iter()
            .flatten()
        {
            let lasted = at.saturating_sub(open.since.unwrap_or(end));
            self.gaps.learn(&open.context, lasted);
        }
        let context = self.history.push(kernel);
        self.after_kernel = Some(Open { context, since: None });
        (self.after_end, self.after_stir) = (None, None);
        self.outlook = self.gaps.outlook(&context);
    }

    /// Its work was seen to end.
    pub(super) fn ended(&mut self, at: Ns) {
        if self.after_kernel.is_none() || self.after_end.is_some() {
            return;
        }
        self.ends(at);
        let context = self.history.push(SEEN_TO_END);
        self.after_end = Some(Open {
            context,
            since: Some(at),
        });
        self.look(&context);
    }

    /// The gap after the last kernel began with this end, whatever is launched before the next
    /// kernel.
    fn ends(&mut self, end: Ns) {
        if let Some(open) = &mut self.after_kernel {
            open.since.get_or_insert(end);
        }
    }

    /// It stirs at `at`; `end` is when its earlier work ended or is predicted to.
    pub(super) fn stirs(&mut self, at: Ns, end: Ns) {
        if self.after_kernel.is_none() || self.after_stir.is_some() {
            return;
        }
        self.ends(end);
        let context = self.history.push(STIRS);
        self.after_stir = Some(Open {
            context,
            since: Some(at),
        });
        // Whatever it is: what was expected before counts from the end of its work, and would be
        // taken to begin anew.
        self.outlook = self.gaps.outlook(&context);
    }

    /// It was not watched for a while: what comes next says nothing about what came last.
    pub(super) fn interrupted(&mut self) {
        (self.after_kernel, self.after_end, self.after_stir) = (None, None, None);
        self.history = History::default();
        self.outlook = Outlook::default();
    }

    /// That its work ended is worth its outlook only if that was seen after this kernel before.
    /// Else what the kernel says stands.
    fn look(&mut self, context: &Context) {
        let outlook = self.gaps.outlook(context);
        if outlook.forecast.is_some_and(|forecast| forecast.kernels >= 2) {
            self.outlook = outlook;
        }
    }

    /// Whether something is known about the time that began last: it was seen in this context
    /// before, or the profile has its kernel, or it stirred before.
    pub(super) fn knows(&self) -> bool {
        self.outlook.forecast.is_some_and(|forecast| forecast.kernels >= 1)
    }

    /// When it stirred, if it did since its last launch.
    pub(super) fn stirred_at(&self) -> Option<Ns> {
        self.after_stir.and_then(|open| open.since)
    }

    /// The least that the time that began last is to last (but for one time in ten), and about as
    /// long as it should.
    pub(super) fn expects(&self) -> Option<(Ns, Ns)> {
        self.outlook.forecast.map(|forecast| (forecast.low, forecast.middle))
    }

    /// How long others may use the device from now on, `elapsed` after that time began, so that the
    /// foreground job is kept waiting with no more than this chance.
    pub(super) fn room(&self, elapsed: Ns, chance: f64) -> Ns {
        self.gaps.room(&self.outlook, elapsed, chance)
    }

    /// Whether the time that began last is one whose length is known: nine in ten of its like last
    /// at least half as long as about half of them.
    pub(super) fn is_steady(&self) -> bool {
        self.knows() && self.expects().is_some_and(|(low, middle)| low >= middle / 2)
    }

    /// The same where nothing is known: what has lasted will last.
    pub(super) fn room_unknown(&self, elapsed: Ns, chance: f64) -> Ns {
        self.gaps.room(&Outlook::default(), elapsed, chance)
    }

    /// How good the forecasts were, and on how many contexts they rest.
    pub(super) fn quality(&self) -> (Quality, usize) {
        (self.gaps.quality(), self.gaps.contexts())
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::{MS, US};
    use super::*;

    /// A request of three kernels that ends with a synchronising call; 5 ms later it stirs, and
    /// after 100 us launches.
    fn request(foresight: &mut Foresight, start: Ns) -> Ns {
        for kernel in [1, 2, 3] {
            foresight.launched(kernel, start, start);
        }
        let end = start + 300 * US;
        foresight.ended(end);
        foresight.stirs(end + 5 * MS, end);
        end + 5 * MS + 100 * US
    }

    #[test]
    fn each_epoch_tells_the_next_launch_more_exactly() {
        let mut foresight = Foresight::default();
        let mut now = MS;
        for _ in 0..20 {
            now = request(&mut foresight, now);
        }
        for kernel in [1, 2, 3] {
            foresight.launched(kernel, now, now);
        }
        let near = |found: Option<(Ns, Ns)>, told: Ns| {
            let (low, middle) = found.expect("known");
            assert!(
                low <= middle && middle.abs_diff(told) < told / 10,
                "{middle} for {told}"
            );
        };
        foresight.ended(now + 300 * US);
        assert!(foresight.knows());
        near(foresight.expects(), 5_100 * US);
        assert!(foresight.room(0, 0.3) > 4_500 * US);
        foresight.stirs(now + 5_300 * US, now + 300 * US);
        assert_eq!(foresight.stirred_at(), Some(now + 5_300 * US));
        near(foresight.expects(), 100 * US);
        assert!(foresight.room(50 * US, 0.3) < 60 * US);
    }

    #[test]
    fn a_mark_that_was_never_seen_here_leaves_what_the_kernel_says() {
        let mut run = weft_profiles::Aggregator::new();
        (0..20).for_each(|_| run.sampled(7, 100 * US, Some(3 * MS)));
        let mut foresight = Foresight::of(&run.finish("job", 0));
        assert!(!foresight.knows());
        foresight.launched(7, MS, MS);
        foresight.ended(2 * MS);
        assert!(foresight.knows());
        let (_, middle) = foresight.expects().expect("of the profile");
        assert!(middle.abs_diff(3 * MS) < 100 * US, "{middle}");
    }

    #[test]
    fn a_stir_is_never_taken_for_the_beginning_of_another_gap() {
        let mut foresight = Foresight::default();
        let mut now = MS;
        // Requests that do not stir: nothing is known of what follows a stir.
        for _ in 0..20 {
            for kernel in [1, 2, 3] {
                foresight.launched(kernel, now, now);
            }
            foresight.ended(now + 300 * US);
            now += 5 * MS;
        }
        for kernel in [1, 2, 3] {
            foresight.launched(kernel, now, now);
        }
        let end = now + 300 * US;
        foresight.ended(end);
        assert!(foresight.knows() && foresight.room(0, 0.1) > 4 * MS);
        foresight.stirs(end + 4 * MS, end);
        assert!(!foresight.knows(), "{:?}", foresight.expects());
    }

    #[test]
    fn what_lies_between_two_times_of_being_watched_is_no_gap() {
        let mut foresight = Foresight::default();
        foresight.launched(1, MS, MS);
        foresight.interrupted();
        foresight.launched(1, 1_000 * MS, 2 * MS);
        assert!(!foresight.knows());
        assert_eq!(foresight.room_unknown(MS, 0.5), MS);
    }
}
