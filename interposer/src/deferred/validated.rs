// SPDX-License-Identifier: MIT OR Apache-2.0
//! Validated launches: launches known to succeed. The key is function, block, shared memory and
//! attributes in a context. One direct success to a stream of that context validates it. Unloaded
//! code, an ended context or stream, and a changed function attribute invalidate it.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::driver::abi::{CuContext, CuDevice, CuFunction, CuStream};
use crate::lock::lock;

/// Most launches, streams and attribute values kept. Above this number all is learnt anew.
const MOST: usize = 65_536;

/// Largest handle of the legacy default stream, which every context has.
const LEGACY: CuStream = 1;

/// Identity hasher: the keys are hashes.
#[derive(Debug, Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {}

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

#[derive(Debug, Default)]
struct ValidatedLaunches {
    /// Keys by context and function.
    launches: HashMap<CuContext, HashMap<CuFunction, HashSet<u64, BuildHasherDefault<AsIs>>>>,
    count: usize,
    streams: HashMap<CuStream, Stream>,
    /// Last values of attributes, of functions or of kernels on a device. Never of both, because a
    /// kernel and a function may name the same code.
    attributes: HashMap<(AttributeOwner, u32), i32>,
    of_kernels: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stream {
    context: CuContext,
    /// Whether the legacy default stream waits for it.
    blocking: bool,
}

/// Owner of an attribute, by the job's handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttributeOwner {
    /// A function, of one context.
    Function(CuFunction),
    /// A library's kernel, on a device.
    Kernel(CuFunction, CuDevice),
}

static KNOWN: Mutex<Option<ValidatedLaunches>> = Mutex::new(None);

/// The next access clears everything.
static STALE: AtomicBool = AtomicBool::new(false);

fn known() -> MutexGuard<'static, Option<ValidatedLaunches>> {
    let mut known = lock(&KNOWN);
    if STALE.swap(false, Ordering::AcqRel) {
        *known = None;
    }
    known
}

impl ValidatedLaunches {
    fn add(&mut self, function: CuFunction, key: u64, stream: CuStream, of: Stream) {
        if self.count >= MOST || self.streams.len() >= MOST {
            *self = ValidatedLaunches::default();
        }
        let functions = self.launches.entry(of.context).or_default();
        self.count += usize::from(functions.entry(function).or_default().insert(key));
        self.streams.insert(stream, of);
    }

    fn has(&self, function: CuFunction, key: u64, context: CuContext) -> bool {
        let keys = self
            .launches
            .get(&context)
            .and_then(|functions| functions.get(&function));
        keys.is_some_and(|keys| keys.contains(&key))
    }

    fn context_ended(&mut self, context: CuContext) {
        let ended = self.launches.remove(&context).unwrap_or_default();
        self.count -= ended.values().map(HashSet::len).sum::<usize>();
        self.streams.retain(|_, of| of.context != context);
    }

    fn leads(&self, stream: CuStream, context: CuContext) -> bool {
        stream <= LEGACY || self.streams.get(&stream).is_some_and(|of| of.context == context)
    }

    fn is_set(&self, named: AttributeOwner, attribute: u32, value: i32) -> bool {
        self.attributes.get(&(named, attribute)) == Some(&value)
    }

    fn changed(&mut self, named: AttributeOwner, attribute: u32, value: i32, here: Option<CuFunction>) {
        let (handle, kernel) = match named {
            AttributeOwner::Function(handle) => (handle, false),
            AttributeOwner::Kernel(handle, _) => (handle, true),
        };
        if self.attributes.len() >= MOST {
            *self = ValidatedLaunches::default();
        }
        if self.of_kernels != kernel {
            self.attributes.clear();
            self.of_kernels = kernel;
        }
        if self.attributes.insert((named, attribute), value) == Some(value) {
            return;
        }
        if kernel && (self.launches.len() > 1 || here.is_none()) {
            self.launches.clear();
            self.count = 0;
            return;
        }
        for function in [Some(handle), here].into_iter().flatten() {
            for functions in self.launches.values_mut() {
                self.count -= functions.remove(&function).map_or(0, |keys| keys.len());
            }
        }
    }
}

/// Adds a launch to a stream of `context`; `blocking`: the legacy default stream waits for it.
pub fn add(function: CuFunction, key: u64, stream: CuStream, context: CuContext, blocking: bool) {
    let of = Stream { context, blocking };
    known().get_or_insert_default().add(function, key, stream, of);
}

/// Whether the legacy default stream waits for this one; true if unknown.
pub fn blocks(stream: CuStream) -> bool {
    let known = known();
    let of = known.as_ref().and_then(|known| known.streams.get(&stream));
    of.is_none_or(|of| of.blocking)
}

/// Whether this launch is validated in this context.
pub fn has(function: CuFunction, key: u64, context: CuContext) -> bool {
    known().as_ref().is_some_and(|known| known.has(function, key, context))
}

/// Whether work of this context may go to that stream.
pub fn leads(stream: CuStream, context: CuContext) -> bool {
    known().as_ref().is_some_and(|known| known.leads(stream, context))
}

/// Whether an attribute was last set to this value, by this handle, with success.
pub fn is_set(named: AttributeOwner, attribute: u32, value: i32) -> bool {
    known()
        .as_ref()
        .is_some_and(|known| known.is_set(named, attribute, value))
}

/// Notes an attribute's value. A new value invalidates the function's launches. A kernel has a
/// function per context; `here` is the current context's. With launches of several contexts, all
/// are dropped.
pub fn changed(named: AttributeOwner, attribute: u32, value: i32, here: Option<CuFunction>) {
    known().get_or_insert_default().changed(named, attribute, value, here);
}

/// Forgets a stream that ends.
pub fn stream_ending(stream: CuStream) {
    if let Some(known) = known().as_mut() {
        known.streams.remove(&stream);
    }
}

/// Forgets an ended context's functions and streams; 0: an unknown context.
pub fn context_ended(context: CuContext) {
    match context {
        0 => clear(),
        _ => {
            if let Some(known) = known().as_mut() {
                known.context_ended(context);
            }
        }
    }
}

/// Forgets everything. Lock-free: a forked child may find the lock taken forever.
pub fn clear() {
    STALE.store(true, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::AttributeOwner::{Function, Kernel};
    use super::*;

    const CONTEXT: CuContext = 100;
    const OF: Stream = Stream {
        context: CONTEXT,
        blocking: true,
    };
    const OTHER: Stream = Stream {
        context: CONTEXT + 1,
        blocking: false,
    };

    #[test]
    fn a_function_with_another_attribute_is_unknown_and_the_same_value_again_changes_nothing() {
        let mut known = ValidatedLaunches::default();
        known.changed(Function(1), 8, 4096, None);
        known.add(1, 11, 7, OF);
        known.add(2, 22, 7, OF);
        known.changed(Function(1), 8, 4096, None);
        assert!(known.has(1, 11, CONTEXT) && known.has(2, 22, CONTEXT));
        known.changed(Function(1), 8, 1024, None);
        assert!(!known.has(1, 11, CONTEXT) && known.has(2, 22, CONTEXT));
        assert_eq!(known.count, 1);
    }

    #[test]
    fn a_kernel_s_attribute_is_that_of_its_function_here_or_of_who_knows_which() {
        let mut known = ValidatedLaunches::default();
        for function in 1..4 {
            known.add(function, 11, 7, OF);
        }
        known.changed(Kernel(1, 0), 8, 1024, Some(2));
        assert!(!known.has(1, 11, CONTEXT) && !known.has(2, 11, CONTEXT) && known.has(3, 11, CONTEXT));
        known.changed(Kernel(1, 0), 8, 1024, None);
        assert!(known.has(3, 11, CONTEXT), "the same value again");
        known.add(3, 12, 8, OTHER);
        assert!(!known.has(3, 12, CONTEXT), "in the other context");
        known.changed(Kernel(1, 0), 8, 2048, Some(2));
        assert!(!known.has(3, 11, CONTEXT) && !known.has(3, 12, CONTEXT + 1));
        assert_eq!(known.count, 0);
    }

    #[test]
    fn a_value_is_set_by_the_name_and_on_the_device_that_it_was_set_by_last() {
        let mut known = ValidatedLaunches::default();
        assert!(!known.is_set(Kernel(1, 0), 8, 0), "nobody has set it: nothing is known");
        known.changed(Kernel(1, 0), 8, 1024, Some(2));
        assert!(known.is_set(Kernel(1, 0), 8, 1024));
        for other in [Kernel(1, 1), Kernel(2, 0), Function(1), Function(2)] {
            assert!(!known.is_set(other, 8, 1024), "{other:?}");
        }
        assert!(!known.is_set(Kernel(1, 0), 9, 1024) && !known.is_set(Kernel(1, 0), 8, 2048));
        // Code by another name: the kernel's value is unknown.
        known.changed(Function(2), 8, 2048, None);
        assert!(known.is_set(Function(2), 8, 2048) && !known.is_set(Kernel(1, 0), 8, 1024));
        known.changed(Kernel(1, 0), 8, 1024, Some(2));
        assert!(!known.is_set(Function(2), 8, 2048));
    }

    #[test]
    fn a_stream_leads_to_its_own_context() {
        let mut known = ValidatedLaunches::default();
        known.add(1, 11, 7, OF);
        assert!(known.leads(7, CONTEXT) && !known.leads(7, CONTEXT + 1) && !known.leads(8, CONTEXT));
        assert!(known.leads(0, CONTEXT + 1) && known.leads(LEGACY, CONTEXT));
        known.streams.remove(&7);
        assert!(!known.leads(7, CONTEXT));
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let mut known = ValidatedLaunches::default();
        for number in 0..3 * MOST {
            known.add(number % 5, number as u64, number, OF);
            known.changed(Function(number), 8, 1, None);
            assert!(known.count <= MOST && known.streams.len() <= MOST && known.attributes.len() <= MOST);
        }
        let kept = |known: &ValidatedLaunches| -> usize {
            known
                .launches
                .values()
                .flat_map(HashMap::values)
                .map(HashSet::len)
                .sum()
        };
        assert_eq!(kept(&known), known.count);
        known.add(1, 1, 8, OTHER);
        known.context_ended(CONTEXT);
        assert_eq!((kept(&known), known.count), (1, 1));
    }

    #[test]
    fn a_context_takes_what_is_known_of_it_along_and_no_more() {
        let mut known = ValidatedLaunches::default();
        known.add(1, 11, 7, OF);
        known.add(2, 22, 8, OTHER);
        known.changed(Function(2), 8, 4096, None);
        known.add(2, 22, 8, OTHER);
        known.context_ended(CONTEXT);
        assert!(!known.has(1, 11, CONTEXT) && known.has(2, 22, CONTEXT + 1));
        assert!(!known.leads(7, CONTEXT) && known.leads(8, CONTEXT + 1));
        assert!(known.is_set(Function(2), 8, 4096));
        assert_eq!(known.count, 1);
    }
}
