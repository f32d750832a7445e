// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory handles for other processes: the process that has the memory, and the offset in its file.
//!
//! The opener maps the same pages (through `/proc`, so it must run as the same user) and keeps them
//! as long as it wants. The memory counts against the device once, for the process that allocated
//! it.
#![deny(unsafe_code)]

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use simgpu_device::lock::lock;

use crate::abi::{DevicePtr, Error, Out, R};
use crate::context::current;
use crate::export::export;
use crate::fd;
use crate::space::table::{Allocation, AllocationKind, find, insert, remove};
use crate::space::{GRANULE, Zone, space, zone};
use crate::state;
use crate::stream::synchronize_context;

/// The content of a handle: a mark, process, file, offset, room, offset of the pointer, size.
type Bytes = [u64; 8];

/// `CUipcMemHandle` as an argument: by value, which for this size is on the stack.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MemoryHandleArgument(Bytes);

const MARK: u64 = u64::from_le_bytes(*b"simcuda1");

/// Whether a handle was made or opened.
static SHARED: AtomicBool = AtomicBool::new(false);

/// Whether the process has or had memory in common with another one.
pub(crate) fn is_shared() -> bool {
    SHARED.load(Ordering::Relaxed)
}

/// Opened handles: address, and how often.
static OPENED: Mutex<Option<HashMap<Bytes, (u64, u32)>>> = Mutex::new(None);

/// Takes the mapping of an opened handle away.
pub(crate) fn unmap(allocation: &Allocation) -> R {
    let base = allocation.start - allocation.start % GRANULE;
    space()?.unreserve(base, allocation.room);
    Ok(())
}

fn open(pointer: Out<DevicePtr>, MemoryHandleArgument(handle): MemoryHandleArgument, flags: u32) -> R {
    let context = current::get()?;
    let [mark, pid, file, offset, room, skip, size, _] = handle;
    // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS is the only flag there is.
    if mark != MARK || flags & !1 != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let pid = u32::try_from(pid).map_err(|_| Error::INVALID_VALUE)?;
    if pid == std::process::id() {
        // As the real driver: a process does not open its own handles.
        return Err(Error::INVALID_CONTEXT);
    }
    let mut opened = lock(&OPENED);
    let opened = opened.get_or_insert_default();
    if let Some((at, count)) = opened.get_mut(&handle) {
        *count += 1;
        return pointer.set(*at);
    }
    let file = fd::of_process(pid, i32::try_from(file).map_err(|_| Error::INVALID_VALUE)?)?;
    let base = space()?.reserve(room, GRANULE, 0)?;
    space()?.map(base, room, file.as_fd(), offset).inspect_err(|_| {
        if let Ok(space) = space() {
            space.unreserve(base, room);
        }
    })?;
    SHARED.store(true, Ordering::Relaxed);
    let at = base + skip;
    insert(context.owner(), at, size, room, AllocationKind::Ipc);
    opened.insert(handle, (at, 1));
    pointer.set(at)
}

export! {
    fn cuIpcGetMemHandle(handle: Out<Bytes>, pointer: DevicePtr) {
        state::driver()?;
        let found = find(pointer).ok_or(Error::INVALID_VALUE)?;
        if found.kind != AllocationKind::Device || zone(found.start) != Zone::Device {
            return Err(Error::INVALID_VALUE);
        }
        SHARED.store(true, Ordering::Relaxed);
        let (file, offset) = space()?.device_file(found.start);
        let start = offset - offset % GRANULE;
        let end = (offset + found.room).next_multiple_of(GRANULE);
        let pid = u64::from(std::process::id());
        let number = u64::try_from(file.as_raw_fd()).map_err(|_| Error::UNKNOWN)?;
        handle.set([MARK, pid, number, start, end - start, offset - start, found.size, found.id])
    }

    fn cuIpcOpenMemHandle(pointer: Out<DevicePtr>, handle: MemoryHandleArgument, flags: u32) {
        open(pointer, handle, flags)
    }

    fn cuIpcOpenMemHandle_v2(pointer: Out<DevicePtr>, handle: MemoryHandleArgument, flags: u32) {
        open(pointer, handle, flags)
    }

    fn cuIpcCloseMemHandle(pointer: DevicePtr) {
        let driver = state::driver()?;
        let found = find(pointer).filter(|found| found.kind == AllocationKind::Ipc).ok_or(Error::INVALID_VALUE)?;
        let mut opened = lock(&OPENED);
        let opened = opened.get_or_insert_default();
        let handle = opened.iter().find(|(_, (at, _))| *at == found.start).map(|(handle, _)| *handle);
        let handle = handle.ok_or(Error::INVALID_VALUE)?;
        if let Some((_, count)) = opened.get_mut(&handle) {
            *count -= 1;
            if *count > 0 {
                return Ok(());
            }
        }
        opened.remove(&handle);
        if let Some(context) = crate::context::CONTEXTS.find(found.context_handle) {
            synchronize_context(driver, &context)?;
        }
        remove(found.start);
        unmap(&found)
    }
}
