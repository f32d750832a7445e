//! The tables that launches look into: what is known of each handle.

use super::index::Index;

/// Handles that the fast table has room for: three quarters of this. PyTorch with all its libraries
/// makes some thousands.
const HANDLES: usize = 1 << 16;

/// The value of a handle that no name can be had for.
pub(super) const UNNAMED: u64 = 1;

/// The number of each handle's module and symbol; [`UNNAMED`]; 0 = not known.
pub(super) static NAMES: Index<HANDLES> = Index::new();

/// The address of each handle's layout, or what `layouts` keeps in its place; 0 = not known.
pub(super) static LAYOUTS: Index<HANDLES> = Index::new();

/// A handle's parameters stand elsewhere from now on, or nowhere.
pub(super) fn forget_layout(handle: usize) {
    // What it meant stays: a launch may be reading it. A model's kernels are unloaded once, so that
    // is no leak that grows.
    if LAYOUTS.find(handle).is_some() {
        LAYOUTS.set(handle, 0);
    }
}
