// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles: opaque numbers for the objects a client may hold.
//!
//! A handle carries the kind of its object and a generation, so a stale or a wrong handle is
//! refused, not followed. A client's mistake shows as the driver's error code. With
//! `SIMGPU_DEAD_HANDLES=abort` (`dead`) it ends the process with a line that names the mistake.
//! Handles look like aligned user-space pointers, since clients compare and hash them as such. They
//! are never 0, 1 or 2, which mean streams.
//!
//! [`Registry::get`] and [`Registry::remove`] are for handles that a call brought,
//! [`Registry::find`] and [`Registry::take`] for those that this library kept.
#![forbid(unsafe_code)]

use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::abi::{Handle, R};
use crate::dead;

/// The kinds of object; the number is part of the handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum HandleKind {
    Context = 0x11,
    Module,
    Library,
    Function,
    Kernel,
    Stream,
    Event,
    Pool,
    Allocation,
    Array,
    Link,
    Graph,
    Node,
    Exec,
    UserObject,
    Conditional,
}

const KIND_SHIFT: u32 = 38;
const GENERATION_SHIFT: u32 = 28;
const GENERATIONS: usize = 1 << (KIND_SHIFT - GENERATION_SHIFT);
/// Handles are multiples of 16, as an allocated object's address would be.
const INDEX_SHIFT: u32 = 4;
const INDICES: usize = 1 << (GENERATION_SHIFT - INDEX_SHIFT);

/// The kind that a handle claims to be.
pub(crate) fn kind_of(handle: Handle) -> usize {
    handle >> KIND_SHIFT
}

struct Slot<T> {
    generation: usize,
    object: Option<Arc<T>>,
}

/// All objects of one kind.
pub(crate) struct Registry<T> {
    kind: HandleKind,
    slots: RwLock<Slots<T>>,
}

struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
}

impl<T> Registry<T> {
    pub(crate) const fn new(kind: HandleKind) -> Self {
        Registry {
            kind,
            slots: RwLock::new(Slots {
                slots: Vec::new(),
                free: Vec::new(),
            }),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Slots<T>> {
        self.slots.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn write(&self) -> RwLockWriteGuard<'_, Slots<T>> {
        self.slots.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn handle(&self, index: usize, generation: usize) -> Handle {
        ((self.kind as usize) << KIND_SHIFT) | (generation << GENERATION_SHIFT) | ((index + 1) << INDEX_SHIFT)
    }

    fn index(&self, handle: Handle) -> Option<(usize, usize)> {
        if kind_of(handle) != self.kind as usize || handle & ((1 << INDEX_SHIFT) - 1) != 0 {
            return None;
        }
        let index = ((handle >> INDEX_SHIFT) & (INDICES - 1)).checked_sub(1)?;
        Some((index, (handle >> GENERATION_SHIFT) & (GENERATIONS - 1)))
    }

    /// Is this a handle of this kind, alive or not?
    pub(crate) fn is_kind(&self, handle: Handle) -> bool {
        kind_of(handle) == self.kind as usize
    }

    /// Makes the object that `make` returns for its own handle.
    pub(crate) fn add_with(&self, make: impl FnOnce(Handle) -> T) -> (Handle, Arc<T>) {
        let mut slots = self.write();
        let index = slots.free.pop().unwrap_or_else(|| {
            slots.slots.push(Slot {
                generation: 0,
                object: None,
            });
            slots.slots.len() - 1
        });
        let handle = self.handle(index, slots.slots[index].generation);
        let object = Arc::new(make(handle));
        slots.slots[index].object = Some(object.clone());
        (handle, object)
    }

    /// Takes an object in.
    pub(crate) fn add(&self, object: T) -> Handle {
        self.add_with(|_| object).0
    }

    /// The object of a handle that a call brought.
    #[inline]
    pub(crate) fn get(&self, handle: Handle) -> R<Arc<T>> {
        self.find(handle).ok_or_else(|| dead::used(self.kind, handle))
    }

    /// The object of a handle, if it is alive.
    #[inline]
    pub(crate) fn find(&self, handle: Handle) -> Option<Arc<T>> {
        let (index, generation) = self.index(handle)?;
        let slots = self.read();
        let slot = slots.slots.get(index).filter(|slot| slot.generation == generation);
        slot.and_then(|slot| slot.object.clone())
    }

    /// Takes out the object of a handle that a call brought: the handle is invalid from now on.
    pub(crate) fn remove(&self, handle: Handle) -> R<Arc<T>> {
        self.take(handle).ok_or_else(|| dead::used(self.kind, handle))
    }

    /// Takes an object out, if it is alive.
    pub(crate) fn take(&self, handle: Handle) -> Option<Arc<T>> {
        let (index, generation) = self.index(handle)?;
        let mut slots = self.write();
        let slot = slots
            .slots
            .get_mut(index)
            .filter(|slot| slot.generation == generation)?;
        let object = slot.object.take()?;
        // This place is given out next; its generation makes the new handle another.
        if !dead::is_reused(self.kind) {
            slot.generation = (slot.generation + 1) % GENERATIONS;
        }
        slots.free.push(index);
        Some(object)
    }

    /// All objects alive.
    pub(crate) fn all(&self) -> Vec<(Handle, Arc<T>)> {
        let slots = self.read();
        let alive = slots.slots.iter().enumerate();
        alive
            .filter_map(|(at, slot)| Some((self.handle(at, slot.generation), slot.object.clone()?)))
            .collect()
    }
}
