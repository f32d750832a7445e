// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sums of the engine's work.

use crate::Ns;

/// Sums over the whole device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Time in which the compute engine ran kernels and memsets, one or several at once.
    pub compute: Ns,
    /// Time in which each copy engine copied.
    pub copies: [Ns; 2],
    /// Time in which the compute engine changed hands.
    pub switching: Ns,
    /// Number of changes that cost time.
    pub switches: u64,
    /// Kernels frozen at a slice's end.
    pub preemptions: u64,
    /// Operations submitted.
    pub submitted: u64,
    /// Operations that ended.
    pub ended: u64,
    /// Operations lost with their context.
    pub aborted: u64,
    /// Submissions with a time before the engine's, taken as of now.
    pub late: u64,
    /// Internal events: the measure of the engine's own work.
    pub events: u64,
}

/// Sums over one context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContextUsage {
    /// Time of its kernels and memsets. In [`crate::Mode::MpsShared`], of those that ended: the
    /// time that they take without others.
    pub compute: Ns,
    /// Time of its copies on each copy engine.
    pub copies: [Ns; 2],
    /// Operations not ended yet.
    pub outstanding: u64,
    /// Operations ended.
    pub ended: u64,
}
