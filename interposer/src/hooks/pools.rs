// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device memory that stream-ordered pools and graphs keep.
//!
//! A pool keeps the memory that the job frees, for its next allocations. So a pool counts with the
//! bytes that the driver has reserved for it. weft reads this number when the pool takes device
//! memory, at trims, and at sync points after the pool's use. There it may have returned some
//! memory. Other allocations and frees change only the count of bytes in use.
//!
//! The memory of a device's graphs is one such pool. A real driver reserves it at a launch.
//!
//! Memory of pools elsewhere (host memory, managed memory) is not counted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::allocation;
use super::declare::{hooks, written};
use crate::driver::abi::{
    AllocationNode, CuDevice, CuDevicePtr, CuGraph, CuGraphNode, CuResult, LOCATION_DEVICE, PoolProperties,
};
use crate::driver::{calls, capture, queries};
use crate::internal_error::guarded;
use crate::lock::lock;
use crate::movable::kept::{self, PoolKey};
use crate::throttle::{self, DeviceNumber};

/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
pub(super) const THRESHOLD: u32 = 4;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT` (CUDA 11.3).
pub(super) const RESERVED: u32 = 5;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH`.
pub(super) const RESERVED_HIGH: u32 = 6;
/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`.
pub(super) const USED: u32 = 7;
/// `CU_MEMPOOL_ATTR_USED_MEM_HIGH`.
pub(super) const USED_HIGH: u32 = 8;

/// `CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT`.
const GRAPHS_USED: u32 = 0;
/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`.
const GRAPHS_RESERVED: u32 = 2;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, the type of device memory.
const PINNED: u32 = 1;

/// A pool of this process. The number is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolNumber(u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeper {
    Pool(usize),
    Graphs(CuDevice),
    /// A destroyed pool, of which the job still has memory.
    Destroyed,
}

#[derive(Debug)]
struct PoolAccount {
    keeper: Keeper,
    at: DeviceNumber,
    /// Bytes that the job has allocated there.
    used: u64,
    /// Bytes counted as held by the process.
    counted: u64,
    /// Whether the pool was used since the driver's last answer.
    moved: bool,
    /// Whether its memory may be movable: the driver's only promise is device memory of this
    /// process.
    movable: bool,
}

#[derive(Debug)]
struct PoolAccounts {
    all: BTreeMap<PoolNumber, PoolAccount>,
    pools: BTreeMap<usize, PoolNumber>,
    graphs: BTreeMap<CuDevice, PoolNumber>,
    /// Each device's current pool.
    current: BTreeMap<DeviceNumber, PoolNumber>,
    /// Addresses of graph nodes that allocate, with their bytes, since the driver's last answer.
    nodes: BTreeMap<CuDevicePtr, (PoolNumber, u64)>,
    made: u32,
}

static ACCOUNTS: Mutex<PoolAccounts> = Mutex::new(PoolAccounts {
    all: BTreeMap::new(),
    pools: BTreeMap::new(),
    graphs: BTreeMap::new(),
    current: BTreeMap::new(),
    nodes: BTreeMap::new(),
    made: 0,
});

/// Lock held during queries to the driver: answers are booked in order, and no query is about a
/// destroyed pool.
static TURN: Mutex<()> = Mutex::new(());

/// Whether to query the driver at the next sync point.
static MOVED: AtomicBool = AtomicBool::new(false);

/// Devices whose graphs allocate.
static GRAPHS: AtomicUsize = AtomicUsize::new(0);

impl PoolAccounts {
    fn add(&mut self, keeper: Keeper, at: DeviceNumber) -> PoolNumber {
        self.made = self.made.wrapping_add(1);
        let source = PoolNumber(self.made);
        let account = PoolAccount {
            keeper,
            at,
            used: 0,
            counted: 0,
            moved: false,
            movable: false,
        };
        self.all.insert(source, account);
        source
    }

    fn add_pool(&mut self, handle: usize, at: DeviceNumber, movable: bool) -> PoolNumber {
        let source = self.add(Keeper::Pool(handle), at);
        self.pools.insert(handle, source);
        if let Some(account) = self.all.get_mut(&source) {
            account.movable = movable;
        }
        source
    }
}

impl PoolNumber {
    /// The pool by this name among the movable blocks.
    pub fn key(self) -> PoolKey {
        self.0
    }
}

/// A pool by its handle, which may not be a pool's. `None`: not known now, or made without a call
/// that weft saw.
pub fn of_handle(handle: usize) -> Option<PoolNumber> {
    let known = lock(&ACCOUNTS).pools.get(&handle).copied();
    if known.is_some() || capture::any() {
        return known;
    }
    let (device, movable) = device_of(handle)?;
    let mut accounts = lock(&ACCOUNTS);
    if let Some(known) = accounts.pools.get(&handle) {
        return Some(*known);
    }
    Some(accounts.add_pool(handle, throttle::of_device(device), movable))
}

/// The device whose default or current pool this is, and whether it is the default one.
fn device_of(handle: usize) -> Option<(CuDevice, bool)> {
    let mut count = 0;
    // SAFETY: valid out-parameter.
    let _ = unsafe { calls::cuDeviceGetCount(&mut count) };
    (0..count).find_map(|device| {
        let (mut default, mut current) = (0, 0);
        // SAFETY: valid out-parameter.
        let _ = unsafe { calls::cuDeviceGetDefaultMemPool(&mut default, device) };
        // SAFETY: as above.
        let _ = unsafe { calls::cuDeviceGetMemPool(&mut current, device) };
        (handle != 0 && (default == handle || current == handle)).then_some((device, default == handle))
    })
}

/// The current pool of a device.
pub fn current(at: DeviceNumber) -> Option<PoolNumber> {
    let known = lock(&ACCOUNTS).current.get(&at).copied();
    if known.is_some() || capture::any() {
        return known;
    }
    let device = throttle::ordinal(at).or_else(|| Some(queries::here()?.0))?;
    let mut handle = 0;
    // SAFETY: valid out-parameter.
    if !unsafe { calls::cuDeviceGetMemPool(&mut handle, device) }.ok() {
        return None;
    }
    let source = of_handle(handle)?;
    lock(&ACCOUNTS).current.insert(at, source);
    Some(source)
}

/// Handle of a pool whose memory may be movable.
pub fn movable(source: PoolNumber) -> Option<usize> {
    match lock(&ACCOUNTS).all.get(&source)? {
        PoolAccount {
            keeper: Keeper::Pool(handle),
            movable: true,
            ..
        } => Some(*handle),
        _ => None,
    }
}

/// The key of a pool that weft knows.
pub fn key_of(handle: usize) -> Option<PoolKey> {
    lock(&ACCOUNTS).pools.get(&handle).map(|source| source.key())
}

/// Handle of a pool by its key, while it lives.
pub fn handle_of(key: PoolKey) -> Option<usize> {
    movable(PoolNumber(key))
}

/// A figure of a pool whose memory may be movable, from the driver.
pub(super) fn asked(handle: usize, which: u32) -> Option<u64> {
    // SAFETY: the attributes are numbers of 64 bits; the job has just used the pool.
    attribute(|value| unsafe { calls::cuMemPoolGetAttribute(handle, which, value) })
}

/// Notes the peaks of a pool with movable blocks after an allocation.
pub fn note_peaks(key: PoolKey) {
    let known = kept::figures(key).and_then(|_| handle_of(key));
    let Some(handle) = known.filter(|_| !capture::any()) else {
        return;
    };
    let (used, reserved) = (asked(handle, USED).unwrap_or(0), asked(handle, RESERVED).unwrap_or(0));
    kept::change(key, |blocks| {
        blocks.used_high = blocks.used_high.max(blocks.used.saturating_add(used));
        blocks.reserved_high = blocks.reserved_high.max(blocks.reserved.saturating_add(reserved));
    });
}

/// Notes a new movable block of a pool.
pub fn block_taken(source: PoolNumber, bytes: u64, room: u64) {
    let threshold = || movable(source).and_then(|handle| asked(handle, THRESHOLD)).unwrap_or(0);
    kept::taken(source.key(), bytes, room, threshold);
}

/// Place of a pool's device.
pub fn place(source: PoolNumber) -> Option<DeviceNumber> {
    lock(&ACCOUNTS).all.get(&source).map(|account| account.at)
}

/// Counts an allocation before the driver makes it. Returns the bytes of device memory that it
/// needs in addition to the pool's kept memory.
pub fn take(source: PoolNumber, bytes: u64) -> u64 {
    let mut accounts = lock(&ACCOUNTS);
    let Some(account) = accounts.all.get_mut(&source) else {
        return 0;
    };
    account.used = account.used.saturating_add(bytes);
    account.moved = true;
    MOVED.store(true, Ordering::Release);
    let lacks = account.used.saturating_sub(account.counted);
    match account.keeper {
        // No bytes are booked before a launch, so the missing bytes are those of all nodes.
        Keeper::Graphs(_) => lacks,
        Keeper::Pool(_) | Keeper::Destroyed => lacks.min(bytes),
    }
}

/// Counts a free, or an allocation that failed.
pub fn give(source: PoolNumber, bytes: u64) {
    let mut accounts = lock(&ACCOUNTS);
    let Some(account) = accounts.all.get_mut(&source) else {
        return;
    };
    account.used = account.used.saturating_sub(bytes);
    account.moved = true;
    MOVED.store(true, Ordering::Release);
}

/// Books the pool's reserved bytes, and ends a claim. Returns false if nothing was booked.
pub fn ask(source: PoolNumber, claimed: u64) -> bool {
    let turn = lock(&TURN);
    ask_in_turn(&turn, source, claimed)
}

fn keeper(source: PoolNumber) -> Option<Keeper> {
    lock(&ACCOUNTS).all.get(&source).map(|account| account.keeper)
}

fn ask_in_turn(_: &MutexGuard<'_, ()>, source: PoolNumber, claimed: u64) -> bool {
    let Some(keeper) = keeper(source) else { return false };
    let answer = match keeper {
        _ if capture::any() => None,
        Keeper::Pool(handle) => attribute(|value| {
            // SAFETY: the attribute is a number of 64 bits; the pool is known and not destroyed.
            unsafe { calls::cuMemPoolGetAttribute(handle, RESERVED, value) }
        })
        .map(|reserved| (reserved, None)),
        Keeper::Graphs(device) => {
            let asked = |attribute_number| {
                attribute(|value| {
                    // SAFETY: the attributes are numbers of 64 bits.
                    unsafe { calls::cuDeviceGetGraphMemAttribute(device, attribute_number, value) }
                })
            };
            asked(GRAPHS_RESERVED).map(|reserved| (reserved, asked(GRAPHS_USED)))
        }
        Keeper::Destroyed => None,
    };
    let mut accounts = lock(&ACCOUNTS);
    let Some(account) = accounts.all.get_mut(&source) else {
        return false;
    };
    let before = account.counted;
    match (answer, account.keeper) {
        (Some((reserved, used)), _) => {
            account.counted = reserved;
            account.used = used.unwrap_or(account.used);
        }
        (None, Keeper::Graphs(_)) => {}
        // Not before the capture's end.
        (None, _) if capture::any() => account.counted = account.counted.max(account.used),
        (None, _) => account.counted = account.used,
    }
    let (at, after) = (account.at, account.counted);
    match account.keeper {
        Keeper::Destroyed if account.used == 0 => drop(accounts.all.remove(&source)),
        // `used` is now the driver's number.
        Keeper::Graphs(_) if answer.is_some() => accounts.nodes.retain(|_, (of, _)| *of != source),
        _ => {}
    }
    drop(accounts);
    allocation::kept_changed(at, before, after, claimed);
    true
}

fn attribute(ask: impl FnOnce(*mut u64) -> CuResult) -> Option<u64> {
    let mut value = 0;
    ask(&raw mut value).ok().then_some(value)
}

/// At a sync point: books the memory that pools have returned since their last use.
#[inline(always)]
pub fn synced() {
    if MOVED.load(Ordering::Relaxed) {
        settle();
    }
}

#[cold]
#[inline(never)]
fn settle() {
    if capture::any() {
        return;
    }
    guarded(|| {
        MOVED.store(GRAPHS.load(Ordering::Relaxed) > 0, Ordering::Release);
        let moved: Vec<PoolNumber> = {
            let mut accounts = lock(&ACCOUNTS);
            let moved = accounts.all.iter_mut().filter_map(|(source, account)| {
                let is = std::mem::take(&mut account.moved) || matches!(account.keeper, Keeper::Graphs(_));
                is.then_some(*source)
            });
            moved.collect()
        };
        for source in moved {
            ask(source, 0);
        }
    });
}

/// Returns unused memory of pools to the device: as much as `bytes` more would lack.
pub fn make_room(at: DeviceNumber, bytes: u64) {
    // Before the job asks for more.
    guarded(|| kept::make_room(|| throttle::lacks(at, bytes) == 0, false));
    let lacks = throttle::beyond(at, bytes);
    if lacks == 0 || capture::any() {
        return;
    }
    guarded(|| {
        kept::make_room(|| throttle::beyond(at, bytes) == 0, true);
        let keeping: Vec<(PoolNumber, u64)> = {
            let accounts = lock(&ACCOUNTS);
            let there = accounts.all.iter().filter(|(_, account)| account.at == at);
            let keeping = there.filter(|(_, account)| account.counted > account.used);
            keeping.map(|(source, account)| (*source, account.counted)).collect()
        };
        // First no more than needed. A block larger than that is returned only as a whole.
        for leave in [true, false] {
            for (source, counted) in &keeping {
                let lacks = throttle::beyond(at, bytes);
                if lacks == 0 {
                    return;
                }
                let _change = throttle::changing(at);
                let turn = lock(&TURN);
                let keep = if leave { counted.saturating_sub(lacks) } else { 0 };
                let _ = match keeper(*source) {
                    // SAFETY: the pool is known and not destroyed. Memory in use stays.
                    Some(Keeper::Pool(handle)) => unsafe { calls::cuMemPoolTrimTo(handle, keep as usize) },
                    // SAFETY: the device has graphs.
                    Some(Keeper::Graphs(device)) => unsafe { calls::cuDeviceGraphMemTrim(device) },
                    Some(Keeper::Destroyed) | None => continue,
                };
                ask_in_turn(&turn, *source, 0);
            }
        }
    });
}

/// Makes a call that trims a pool, or sets how much the pool keeps.
pub(super) fn trim(handle: usize, real: impl FnOnce() -> CuResult) -> CuResult {
    let known = lock(&ACCOUNTS).pools.get(&handle).copied();
    let _change = guarded(|| throttle::changing(place(known?)?));
    let result = real();
    if let Some(source) = known {
        guarded(|| ask(source, 0));
    }
    result
}

/// # Safety
/// The arguments are those of `real`, which is `cuMemPoolCreate`.
pub(super) unsafe fn create(
    handle: *const usize,
    properties: *const PoolProperties,
    real: impl FnOnce() -> CuResult,
) -> CuResult {
    let result = real();
    if result.ok() {
        // SAFETY: the driver read the properties and wrote the handle.
        if let (Some(rest), Some(handle)) = (unsafe { written(properties) }, unsafe { written(handle) }) {
            let properties = rest.head;
            guarded(|| {
                let [kind, handle_types] = properties.types;
                let on_device = kind == PINNED && properties.location_kind == LOCATION_DEVICE;
                let at = match on_device {
                    true => throttle::of_device(properties.location_id),
                    false => DeviceNumber::NOWHERE,
                };
                let movable = on_device && handle_types == 0 && rest.limit == 0 && rest.usage == 0;
                lock(&ACCOUNTS).add_pool(handle, at, movable);
            });
        }
    }
    result
}

/// Makes the call that destroys a pool. Memory that the job still has there stays until it is
/// freed.
pub(super) fn destroy(handle: usize, real: impl FnOnce() -> CuResult) -> CuResult {
    let keep = |source: PoolNumber, keeper: Keeper| {
        if let Some(account) = lock(&ACCOUNTS).all.get_mut(&source) {
            account.keeper = keeper;
        }
    };
    // Before the call: after it, another thread may get this handle anew.
    let known = guarded(|| {
        let mut accounts = lock(&ACCOUNTS);
        accounts.current.clear();
        let known = accounts.pools.remove(&handle)?;
        drop(accounts);
        keep(known, Keeper::Destroyed);
        // After this no thread queries it any more.
        drop(lock(&TURN));
        Some(known)
    });
    let Some(source) = known.flatten() else { return real() };
    let _change = guarded(|| throttle::changing(place(source)?));
    let result = real();
    guarded(|| {
        if !result.ok() {
            lock(&ACCOUNTS).pools.insert(handle, source);
            keep(source, Keeper::Pool(handle));
        } else {
            kept::pool_ended(source.key());
        }
        ask(source, 0);
    });
    result
}

/// Makes a call that sets a device's current pool.
fn set_current(real: impl FnOnce() -> CuResult) -> CuResult {
    let result = real();
    lock(&ACCOUNTS).current.clear();
    result
}

/// The account of a device's graphs.
fn of_graphs(device: CuDevice) -> PoolNumber {
    let at = throttle::of_device(device);
    let mut accounts = lock(&ACCOUNTS);
    if let Some(known) = accounts.graphs.get(&device) {
        return *known;
    }
    let source = accounts.add(Keeper::Graphs(device), at);
    accounts.graphs.insert(device, source);
    GRAPHS.store(accounts.graphs.len(), Ordering::Release);
    source
}

/// Makes a call that adds an allocation node, if the job may have that memory. `address` reads the
/// node's address after the call.
pub(super) fn add_node(
    device: CuDevice,
    bytes: u64,
    real: impl Fn() -> CuResult,
    address: impl FnOnce() -> Option<CuDevicePtr>,
) -> CuResult {
    let Some(source) = guarded(|| of_graphs(device)) else {
        return real();
    };
    let lacks = take(source, bytes);
    let result = allocation::within_quota(throttle::of_device(device), lacks, real, |_| {
        if let Some(address) = address() {
            lock(&ACCOUNTS).nodes.insert(address, (source, bytes));
        }
        ask(source, 0);
        // The claim ends with the call: a launch reserves the memory.
        false
    });
    if !result.ok() {
        give(source, bytes);
    }
    result
}

/// Makes a call that adds a node that frees another node's memory.
pub(super) fn free_node(address: CuDevicePtr, real: impl FnOnce() -> CuResult) -> CuResult {
    let result = real();
    if result.ok() {
        guarded(|| {
            let known = lock(&ACCOUNTS).nodes.remove(&address);
            if let Some((source, bytes)) = known {
                give(source, bytes);
            }
        });
    }
    result
}

/// # Safety
/// `parameters` is null or the pointer that the client gives the driver, which writes the address
/// there.
pub(super) unsafe fn allocation_node(parameters: *const AllocationNode, real: impl Fn() -> CuResult) -> CuResult {
    // SAFETY: the caller's promise.
    let Some(asked) = (unsafe { written(parameters) }).filter(|asked| asked.pool.location_kind == LOCATION_DEVICE)
    else {
        return real();
    };
    add_node(asked.pool.location_id, asked.bytes as u64, real, || {
        // SAFETY: as above.
        unsafe { written(parameters) }.map(|made| made.address)
    })
}

/// Makes a call that may return memory of graphs.
pub(super) fn after(real: impl FnOnce() -> CuResult) -> CuResult {
    let result = real();
    synced();
    result
}

hooks! {
    fn cuMemPoolCreate(pool: *mut usize, properties: *const PoolProperties) |real| {
        // SAFETY: the call's own arguments.
        unsafe { create(pool, properties, real) }
    }
    fn cuMemPoolDestroy(pool: usize) |real| { destroy(pool, real) }
    fn cuMemPoolTrimTo(pool: usize, keep: usize) |real| { trim(pool, real) }
    fn cuMemPoolSetAttribute(pool: usize, asked: u32, value: *const u64) |real| { trim(pool, real) }
    fn cuDeviceSetMemPool(device: CuDevice, pool: usize) |real| { set_current(real) }
    fn cuMemSetMemPool(location: usize, kind: u32, pool: usize) |real| { set_current(real) }
    fn cuDeviceGraphMemTrim(device: CuDevice) |real| { after(real) }
    fn cuGraphDestroy(graph: CuGraph) |real| { after(real) }
    fn cuGraphAddMemAllocNode(
        node: *mut CuGraphNode, graph: CuGraph, dependencies: usize, count: usize, parameters: *const AllocationNode,
    ) |real| {
        // SAFETY: the client's own parameters.
        unsafe { allocation_node(parameters, real) }
    }
    fn cuGraphAddMemFreeNode(
        node: *mut CuGraphNode, graph: CuGraph, dependencies: usize, count: usize, address: CuDevicePtr,
    ) |real| {
        free_node(address, real)
    }
}
