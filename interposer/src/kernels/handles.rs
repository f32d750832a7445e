//! The tables that launches look into, by handle.

use super::index::Index;

/// Slots for handles; three quarters are usable. PyTorch with all its libraries makes some
/// thousands.
const HANDLES: usize = 1 << 16;

/// Marks a handle without a name.
pub(super) const UNNAMED: u64 = 1;

/// Word of each handle's module and symbol; [`UNNAMED`]; 0 = unknown.
pub(super) static NAMES: Index<HANDLES> = Index::new();

/// Address of each handle's layout, or the mark of `layouts`; 0 = unknown.
pub(super) static LAYOUTS: Index<HANDLES> = Index::new();

/// Forgets a handle's layout.
pub(super) fn forget_layout(handle: usize) {
    // The layout leaks: a launch may be reading it. A model's kernels are unloaded once, so the
    // leak does not grow.
    if LAYOUTS.find(handle).is_some() {
        LAYOUTS.set(handle, 0);
    }
}
