//! Which launches are known to succeed: a function, its block and shared memory, its attributes, in a context, once launched directly with success; to a stream
//! of that context. Whatever may change that makes them unknown again: code unloaded, a context or stream that ends, another value of a function's attribute.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::{CuContext, CuFunction, CuStream};

/// Launches that are remembered, streams, and values of attributes. A job with more (one that changes its launches all the time) begins anew.
const MOST: usize = 1 << 16;

/// The default streams: every context has them.
const LEGACY: CuStream = 1;

/// The keys are hashes already.
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
struct Known {
    launches: HashMap<CuFunction, HashSet<u64, BuildHasherDefault<AsIs>>>,
    /// Launches of all functions.
    count: usize,
    streams: HashMap<CuStream, CuContext>,
    /// The context of all of them, and whether there were others.
    context: Option<CuContext>,
    several: bool,
    /// What attributes of functions were set to.
    attributes: HashMap<(CuFunction, u32), i32>,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

fn known() -> MutexGuard<'static, Option<Known>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Known {
    fn add(&mut self, function: CuFunction, key: u64, stream: CuStream, context: CuContext) {
        if self.count >= MOST || self.streams.len() >= MOST {
            *self = Known::default();
        }
        self.count += usize::from(self.launches.entry(function).or_default().insert(key));
        self.streams.insert(stream, context);
        self.several |= *self.context.get_or_insert(context) != context;
    }

    fn has(&self, function: CuFunction, key: u64) -> bool {
        self.launches.get(&function).is_some_and(|keys| keys.contains(&key))
    }

    fn leads(&self, stream: CuStream, context: CuContext) -> bool {
        stream <= LEGACY || self.streams.get(&stream) == Some(&context)
    }

    fn changed(&mut self, handle: CuFunction, attribute: u32, value: i32, kernel: bool, here: Option<CuFunction>) {
        if self.attributes.len() >= MOST {
            *self = Known::default();
        }
        if self.attributes.insert((handle, attribute), value) == Some(value) {
            return;
        }
        if kernel && (self.several || here.is_none()) {
            self.launches.clear();
            self.count = 0;
            return;
        }
        for function in [Some(handle), here].into_iter().flatten() {
            self.count -= self.launches.remove(&function).map_or(0, |keys| keys.len());
        }
    }
}

/// From now on this launch of a function is known, and that its stream is one of the context.
pub fn add(function: CuFunction, key: u64, stream: CuStream, context: CuContext) {
    known().get_or_insert_default().add(function, key, stream, context);
}

/// Whether a launch of this function is.
pub fn has(function: CuFunction, key: u64) -> bool {
    known().as_ref().is_some_and(|known| known.has(function, key))
}

/// Whether work of this context may go to that stream.
pub fn leads(stream: CuStream, context: CuContext) -> bool {
    known().as_ref().is_some_and(|known| known.leads(stream, context))
}

/// An attribute of a function has this value now. If it is another than before, the function's launches are not known any more. A kernel that is in no context yet has a function with
/// a handle of its own in each: `here` is that of the context that is current. Where launches of several contexts are known, no function's are any more.
pub fn changed(handle: CuFunction, attribute: u32, value: i32, kernel: bool, here: Option<CuFunction>) {
    known()
        .get_or_insert_default()
        .changed(handle, attribute, value, kernel, here);
}

/// A stream ends.
pub fn stream_ending(stream: CuStream) {
    if let Some(known) = known().as_mut() {
        known.streams.remove(&stream);
    }
}

/// None is.
pub fn clear() {
    // A forked child may find the lock taken for ever; it has no session and leaves nothing behind, so it need not forget.
    if let Ok(mut known) = KNOWN.try_lock() {
        *known = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: CuContext = 100;

    #[test]
    fn a_function_with_another_attribute_is_unknown_and_the_same_value_again_changes_nothing() {
        let mut known = Known::default();
        known.changed(1, 8, 4096, false, None);
        known.add(1, 11, 7, CONTEXT);
        known.add(2, 22, 7, CONTEXT);
        known.changed(1, 8, 4096, false, None);
        assert!(known.has(1, 11) && known.has(2, 22));
        known.changed(1, 8, 1024, false, None);
        assert!(!known.has(1, 11) && known.has(2, 22));
        assert_eq!(known.count, 1);
    }

    #[test]
    fn a_kernel_s_attribute_is_that_of_its_function_here_or_of_who_knows_which() {
        let mut known = Known::default();
        for function in 1..4 {
            known.add(function, 11, 7, CONTEXT);
        }
        known.changed(1, 8, 1024, true, Some(2));
        assert!(!known.has(1, 11) && !known.has(2, 11) && known.has(3, 11));
        known.changed(1, 8, 1024, true, None);
        assert!(known.has(3, 11), "the same value again");
        known.add(3, 12, 8, CONTEXT + 1);
        known.changed(1, 8, 2048, true, Some(2));
        assert!(!known.has(3, 11) && !known.has(3, 12));
        assert_eq!(known.count, 0);
    }

    #[test]
    fn a_stream_leads_to_its_own_context() {
        let mut known = Known::default();
        known.add(1, 11, 7, CONTEXT);
        assert!(known.leads(7, CONTEXT) && !known.leads(7, CONTEXT + 1) && !known.leads(8, CONTEXT));
        assert!(known.leads(0, CONTEXT + 1) && known.leads(LEGACY, CONTEXT));
        known.streams.remove(&7);
        assert!(!known.leads(7, CONTEXT));
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let mut known = Known::default();
        for number in 0..3 * MOST {
            known.add(number % 5, number as u64, number, CONTEXT);
            known.changed(number, 8, 1, false, None);
            assert!(known.count <= MOST && known.streams.len() <= MOST && known.attributes.len() <= MOST);
        }
        let kept: usize = known.launches.values().map(HashSet::len).sum();
        assert_eq!(kept, known.count);
    }
}
