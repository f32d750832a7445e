//! How far a kind of context (its length, how often it was seen) can be trusted: what its forecasts
//! were off by, over what those of the next shorter contexts were off by at the same values.
//!
//! A context that was seen once may be as good as exact (a training step) or worthless (a server
//! that mixes requests). Which of it holds for this job is seen within some dozen launches.

use super::cell::NOTHING;

/// The part of what was learnt that stays with each new value: the last 100 or so count.
const STAYS: f32 = 0.99;

/// Before anything was seen a longer context counts as a little better, with this weight in ns.
const FIRST: f32 = 2_000.0;
const BETTER: f32 = 0.8;

#[derive(Debug, Clone, Copy)]
pub(super) struct Trust {
    own: f32,
    shorter: f32,
    /// The one over the other: asked for more often than it changes.
    usual: f32,
}

impl Default for Trust {
    fn default() -> Trust {
        Trust {
            own: FIRST * BETTER,
            shorter: FIRST,
            usual: BETTER,
        }
    }
}

impl Trust {
    /// A forecast of this kind was off by `own`, that of the next shorter context by `shorter`.
    pub(super) fn learn(&mut self, own: f32, shorter: f32) {
        self.own = (self.own * STAYS + own).max(NOTHING);
        self.shorter = (self.shorter * STAYS + shorter).max(NOTHING);
        self.usual = (self.own + 1.0) / (self.shorter + 1.0);
    }

    /// How contexts of this kind err, as a part of what shorter ones do.
    pub(super) fn usual(&self) -> f32 {
        self.usual
    }
}
