// SPDX-License-Identifier: MIT OR Apache-2.0
//! User objects: the client's own counted objects that live as long as the graphs that hold them.
//!
//! The destructor runs on the thread that gave up the last reference, at once: graphs give theirs
//! up when they are destroyed. (CUDA runs it on a thread of its own and forbids it to call the
//! driver; the client sees the same.)
#![deny(unsafe_code)]

use std::collections::HashMap;
use std::sync::Mutex;

use simgpu_device::lock::lock;

use crate::abi::{Error, Handle, Out, R};
use crate::export::export;
use crate::registry::{HandleKind, Registry};
use crate::state;
use crate::work::HostCall;

/// Every user object of the process.
pub(crate) static OBJECTS: Registry<UserObject> = Registry::new(HandleKind::UserObject);

pub(crate) struct UserObject {
    destructor: HostCall,
    references: Mutex<u32>,
}

fn retain(object: Handle, count: u32) -> R {
    if count == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let object = OBJECTS.get(object)?;
    let mut references = lock(&object.references);
    *references = references.checked_add(count).ok_or(Error::INVALID_VALUE)?;
    Ok(())
}

/// Gives `count` references up; the last runs the destructor.
pub(crate) fn release(handle: Handle, count: u32) -> R {
    let object = OBJECTS.get(handle)?;
    let left = {
        let mut references = lock(&object.references);
        if count == 0 || count > *references {
            return Err(Error::INVALID_VALUE);
        }
        *references -= count;
        *references
    };
    if left == 0 {
        OBJECTS.take(handle).ok_or(Error::INVALID_HANDLE)?;
        object.destructor.run();
    }
    Ok(())
}

/// The references that a graph or an instantiated graph holds, by object.
#[derive(Default)]
pub(crate) struct References(HashMap<Handle, u32>);

impl References {
    /// Takes `count` references in: the caller's if `moved` is set, else new ones.
    pub(crate) fn add(&mut self, object: Handle, count: u32, moved: bool) -> R {
        if !moved {
            retain(object, count)?;
        }
        *self.0.entry(object).or_default() += count;
        Ok(())
    }

    /// Gives `count` references up.
    pub(crate) fn remove(&mut self, object: Handle, count: u32) -> R {
        let held = self.0.get_mut(&object).filter(|held| **held >= count && count > 0);
        let held = held.ok_or(Error::INVALID_VALUE)?;
        *held -= count;
        if *held == 0 {
            self.0.remove(&object);
        }
        Ok(())
    }
}

impl Clone for References {
    fn clone(&self) -> Self {
        for (object, count) in &self.0 {
            if OBJECTS.find(*object).is_some() {
                let _ = retain(*object, *count);
            }
        }
        References(self.0.clone())
    }
}

impl Drop for References {
    fn drop(&mut self) {
        for (object, count) in self.0.drain() {
            if OBJECTS.find(object).is_some() {
                let _ = release(object, count);
            }
        }
    }
}

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, which a client has to give.
const NO_DESTRUCTOR_SYNC: u32 = 1;

export! {
    fn cuUserObjectCreate(object: Out<Handle>, data: usize, destructor: usize, references: u32, flags: u32) {
        state::driver()?;
        if flags != NO_DESTRUCTOR_SYNC || references == 0 || object.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let destructor = HostCall::function(destructor, data)?;
        object.set(OBJECTS.add(UserObject { destructor, references: Mutex::new(references) }))
    }

    fn cuUserObjectRetain(object: Handle, count: u32) {
        retain(object, count)
    }

    fn cuUserObjectRelease(object: Handle, count: u32) {
        release(object, count)
    }
}
