// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stream attributes but the priority. The simulated device acts on none of them; they are kept and
//! answered.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use crate::abi::{Error, R};

/// A `CUstreamAttrValue`, whose meaning depends on the attribute's number.
pub(crate) type Value = [u64; 8];

/// `CU_LAUNCH_ATTRIBUTE_PRIORITY`.
pub(crate) const PRIORITY: u32 = 8;
/// Access policy window, synchronisation policy, priority, memory domain map and memory domain.
const KNOWN: [u32; 5] = [1, 3, PRIORITY, 9, 10];

/// Values that were set on a stream.
#[derive(Default, Clone)]
pub(crate) struct Attributes(BTreeMap<u32, Value>);

impl Attributes {
    pub(crate) fn get(&self, attribute: u32) -> R<Value> {
        if !KNOWN.contains(&attribute) {
            return Err(Error::INVALID_VALUE);
        }
        let default = if attribute == 3 {
            [1, 0, 0, 0, 0, 0, 0, 0]
        } else {
            [0; 8]
        };
        Ok(self.0.get(&attribute).copied().unwrap_or(default))
    }

    pub(crate) fn set(&mut self, attribute: u32, value: Value) -> R {
        if !KNOWN.contains(&attribute) {
            return Err(Error::INVALID_VALUE);
        }
        self.0.insert(attribute, value);
        Ok(())
    }
}
