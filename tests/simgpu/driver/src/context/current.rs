// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each thread's stack of contexts; the top one is current.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::sync::Arc;

use simgpu_device::machine::Device;

use crate::abi::{Error, Handle, R};
use crate::context::{CONTEXTS, Context};
use crate::{device, state};

thread_local! {
    static STACK: RefCell<Vec<Arc<Context>>> = const { RefCell::new(Vec::new()) };
}

/// The current context, in which work must be possible.
#[inline]
pub(crate) fn get() -> R<Arc<Context>> {
    let context = any()?;
    context.check()?;
    Ok(context)
}

/// The current context, be it one in which a kernel has failed: questions that are not about work
/// are answered there too.
#[inline]
pub(crate) fn any() -> R<Arc<Context>> {
    state::driver()?;
    let top = STACK
        .try_with(|stack| stack.borrow().last().cloned())
        .map_err(|_| Error::DEINITIALIZED)?;
    match top {
        Some(context) if context.is_alive() => Ok(context),
        Some(_) => Err(Error::CONTEXT_IS_DESTROYED),
        None => Err(Error::INVALID_CONTEXT),
    }
}

/// A context by its handle; null means the current one.
pub(crate) fn by_handle(handle: Handle) -> R<Arc<Context>> {
    if handle == 0 {
        return any();
    }
    CONTEXTS.get(handle).map_err(|_| Error::INVALID_CONTEXT)
}

/// The current context's device, or the first.
pub(crate) fn device() -> R<&'static Device> {
    device::get(any().map_or(0, |context| context.ordinal()))
}

/// The current context's handle, 0 if there is none.
pub(crate) fn handle() -> Handle {
    STACK
        .try_with(|stack| stack.borrow().last().map_or(0, |context| context.handle))
        .unwrap_or(0)
}

/// Replaces the top of the stack; `None` takes it off.
pub(crate) fn set(context: Option<Arc<Context>>) {
    let _ = STACK.try_with(|stack| {
        let mut stack = stack.borrow_mut();
        stack.pop();
        stack.extend(context);
    });
}

pub(crate) fn push(context: Arc<Context>) {
    let _ = STACK.try_with(|stack| stack.borrow_mut().push(context));
}

/// Takes the top off.
pub(crate) fn pop() -> Option<Handle> {
    STACK
        .try_with(|stack| stack.borrow_mut().pop().map(|context| context.handle))
        .ok()
        .flatten()
}

/// Takes a destroyed context off this thread's top; other threads find it destroyed.
pub(crate) fn forget(context: &Arc<Context>) {
    let _ = STACK.try_with(|stack| {
        let mut stack = stack.borrow_mut();
        if stack.last().is_some_and(|top| Arc::ptr_eq(top, context)) {
            stack.pop();
        }
    });
}
