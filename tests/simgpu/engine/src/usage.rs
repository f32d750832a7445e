//! What the engine did, in sums.

use crate::Ns;

/// Sums over the whole device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Time the compute engine ran kernels and memsets.
    pub compute: Ns,
    /// Time each copy engine copied.
    pub copies: [Ns; 2],
    /// Time the compute engine changed hands.
    pub switching: Ns,
    /// How often it changed hands at a cost.
    pub switches: u64,
    /// Kernels frozen at a slice's end.
    pub preemptions: u64,
    /// Operations submitted.
    pub submitted: u64,
    /// Operations that ended.
    pub ended: u64,
    /// Operations lost with their context.
    pub aborted: u64,
    /// Submissions that carried a time before the engine's and were taken as of now.
    pub late: u64,
    /// Internal events handled: the measure of the engine's own work.
    pub events: u64,
}

/// Sums over one context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContextUsage {
    /// Time its kernels and memsets ran.
    pub compute: Ns,
    /// Time its copies took on each copy engine.
    pub copies: [Ns; 2],
    /// Its operations not ended yet.
    pub outstanding: u64,
    /// Its operations that ended.
    pub ended: u64,
}
