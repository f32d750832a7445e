// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contexts: the primary one, created ones, and each thread's stack of current ones.
#![deny(unsafe_code)]

pub(crate) mod current;
pub(crate) mod order;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use simgpu_device::lock::lock;

use crate::abi::{Error, Handle, R};
use crate::registry::{HandleKind, Registry};
use crate::space::table::Owner;
use crate::state;
use crate::timeline::{LinkContext, Timeline, device_of_context};

/// Every context of the process.
pub(crate) static CONTEXTS: Registry<Context> = Registry::new(HandleKind::Context);
/// The devices' primary contexts; a handle is valid from the start, the context is usable while
/// retained.
static PRIMARIES: OnceLock<Vec<Arc<Context>>> = OnceLock::new();
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// One context.
pub(crate) struct Context {
    pub(crate) handle: Handle,
    /// Never used twice in a process.
    pub(crate) id: u64,
    /// On the device.
    pub(crate) link: LinkContext,
    pub(crate) is_primary: bool,
    /// Retained (primary) or not yet destroyed (others).
    alive: AtomicBool,
    /// How often the primary context is retained.
    retained: Mutex<u32>,
    pub(crate) flags: AtomicU32,
    pub(crate) api_version: u32,
    pub(crate) limits: Mutex<Limits>,
    pub(crate) cache_config: AtomicU32,
    /// Orders blocking streams with the legacy default stream; see `order.rs`.
    pub(crate) order: Mutex<order::Order>,
    /// Work of streams that are gone.
    pub(crate) orphans: order::Orphans,
    /// The error of a kernel that failed in it, which ends it; 0 while none did.
    broken: AtomicU32,
}

/// `cuCtxSetLimit`'s values by number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits(pub(crate) [usize; 7]);

impl Default for Limits {
    fn default() -> Self {
        // Stack of a thread, printf buffer, malloc heap, sync depth, pending launches, L2
        // granularity, persisting L2: the programming guide's defaults.
        Limits([1024, 1 << 20, 8 << 20, 2, 2048, 64, 0])
    }
}

impl Context {
    pub(crate) fn make(
        timeline: &Timeline,
        device: usize,
        is_primary: bool,
        flags: u32,
        api_version: u32,
    ) -> R<Arc<Context>> {
        // A primary context takes its memory when it is retained: `cuInit` takes none.
        let link = match is_primary {
            true => timeline.empty_context(device)?,
            false => timeline.context(device)?,
        };
        let (_, context) = CONTEXTS.add_with(|handle| Context {
            handle,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            link,
            is_primary,
            alive: AtomicBool::new(!is_primary),
            retained: Mutex::new(0),
            flags: AtomicU32::new(flags),
            api_version,
            limits: Mutex::default(),
            cache_config: AtomicU32::new(0),
            order: Mutex::default(),
            orphans: order::Orphans::default(),
            broken: AtomicU32::new(0),
        });
        Ok(context)
    }

    /// A device's primary context, not retained yet.
    fn primary(timeline: &Timeline, device: usize) -> R<Arc<Context>> {
        Context::make(timeline, device, true, 0, PRIMARY_API_VERSION)
    }

    /// The device it is on.
    pub(crate) fn device(&self) -> usize {
        device_of_context(self.link)
    }

    /// The device's number, as the client counts devices.
    pub(crate) fn ordinal(&self) -> i32 {
        i32::try_from(self.device()).unwrap_or(i32::MAX)
    }

    /// The context as the owner of memory on its device.
    pub(crate) fn owner(&self) -> Owner {
        Owner {
            device: self.device(),
            context: self.id,
            context_handle: self.handle,
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Refuses everything once a kernel has failed in the context: such an error stays until the
    /// process ends.
    #[inline]
    pub(crate) fn check(&self) -> R {
        match self.broken.load(Ordering::Acquire) {
            0 => Ok(()),
            error => Err(Error(error)),
        }
    }

    /// A kernel has failed in it. The first error stays.
    pub(crate) fn fail(&self, error: Error) {
        let _ = self
            .broken
            .compare_exchange(0, error.0, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// Makes the primary contexts of `devices` devices.
pub(crate) fn open_primaries(timeline: &Timeline, devices: usize) -> R {
    let all = (0..devices).map(|device| Context::primary(timeline, device));
    let all = all.collect::<R<Vec<_>>>()?;
    PRIMARIES.set(all).map_err(|_| Error::UNKNOWN)
}

/// The primary contexts, by device.
pub(crate) fn primaries() -> R<&'static [Arc<Context>]> {
    state::driver()?;
    PRIMARIES.get().map(Vec::as_slice).ok_or(Error::NOT_INITIALIZED)
}

/// The primary context of a device.
pub(crate) fn primary_of(device: usize) -> R<&'static Arc<Context>> {
    primaries()?.get(device).ok_or(Error::INVALID_DEVICE)
}

/// The answer of `cuCtxGetApiVersion` for contexts that no version asked for.
const PRIMARY_API_VERSION: u32 = 3020;

impl Context {
    /// Retains a primary context.
    pub(crate) fn retain(&self, timeline: &Timeline) -> R {
        let mut retained = lock(&self.retained);
        if !self.is_alive() {
            timeline.fill_context(self.device())?;
        }
        *retained += 1;
        self.alive.store(true, Ordering::Release);
        Ok(())
    }

    /// Takes one retain back. Says whether it was the last.
    pub(crate) fn release(&self) -> R<bool> {
        let mut retained = lock(&self.retained);
        *retained = retained.checked_sub(1).ok_or(Error::INVALID_CONTEXT)?;
        Ok(*retained == 0)
    }

    /// Takes all retains back.
    pub(crate) fn release_all(&self) {
        *lock(&self.retained) = 0;
    }

    /// Ends the context's use; all that belongs to it is gone.
    pub(crate) fn end(&self) {
        self.alive.store(false, Ordering::Release);
    }
}
