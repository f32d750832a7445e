// SPDX-License-Identifier: MIT OR Apache-2.0
//! The policies. Each is a file, or a folder with its models.

mod copies;
mod fikit;
mod interface;
mod minimum_share;
mod round_robin;
mod weft;

pub(crate) use interface::{Observed, Policy, PolicyTraits};

use crate::PolicyName;

/// The policy of this name.
pub(crate) fn by_name(name: PolicyName) -> Box<dyn Policy> {
    match name {
        PolicyName::Fikit => Box::new(fikit::Fikit::default()),
        PolicyName::Weft => Box::new(weft::Weft::default()),
    }
}
