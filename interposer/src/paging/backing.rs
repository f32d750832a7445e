//! Takes managed memory where the job asks for device memory, and gives it back.
//!
//! `cuMemAllocManaged` stands for `cuMemAlloc`, call for call, with equal rules for contexts and
//! captures. Further calls (device queries, advice) are left out during captures.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use weft_protocol::amount;
use weft_protocol::host;

use weft_protocol::control::ToBroker;

use super::ranges::{Origin, Range};
use super::{capacity, mem_advise, pool, ranges};
use crate::client::link;
use crate::driver::abi::{CuContext, CuDevice, CuDevicePtr, CuResult};
use crate::driver::calls;
use crate::driver::capture;
use crate::report;

/// CU_MEM_ATTACH_GLOBAL: any stream on any device may use the memory.
const ATTACH_GLOBAL: u32 = 1;
/// CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS: pages move on demand, and may exceed the device.
const CONCURRENT_MANAGED_ACCESS: i32 = 89;
/// CU_MEM_ADVISE_SET_PREFERRED_LOCATION.
pub const PREFER: u32 = 3;
/// CU_POINTER_ATTRIBUTE_IS_MANAGED.
const IS_MANAGED: u32 = 8;

/// Outcome of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// Address of the memory.
    At(CuDevicePtr),
    /// Error for the job.
    Refused(CuResult),
    /// Not managed: the job's own call goes to the driver.
    Plain,
}

/// State of each device: 0 unknown, else one of these.
static SUPPORT: [AtomicU8; 32] = [const { AtomicU8::new(0) }; 32];
const SUPPORTED: u8 = 1;
const UNSUPPORTED: u8 = 2;

/// Allocations that stayed device memory in a managed job.
static PLAIN: AtomicU64 = AtomicU64::new(0);

/// Number of allocations that stayed device memory in a managed job.
pub fn left_plain() -> u64 {
    PLAIN.load(Ordering::Relaxed)
}

/// Logs a line once, never on stdout.
pub fn say_once(said: &AtomicBool, text: &str) {
    if !said.swap(true, Ordering::Relaxed) {
        report::start();
        log::warn!("{text}");
    }
}

/// Counts an allocation that stays device memory; logs each reason once.
pub fn stays_plain(said: &AtomicBool, why: &str) {
    PLAIN.fetch_add(1, Ordering::Relaxed);
    link::only().into_iter().for_each(super::report);
    say_once(said, why);
}

fn device() -> Option<i32> {
    let mut device = 0;
    // SAFETY: the out-parameter is valid.
    unsafe { calls::cuCtxGetDevice(&mut device) }.ok().then_some(device)
}

/// Device and context of the calling thread.
pub fn here() -> Option<(i32, CuContext)> {
    let mut context = 0;
    // SAFETY: the out-parameter is valid.
    let asked = unsafe { calls::cuCtxGetCurrent(&mut context) };
    if !asked.ok() || context == 0 {
        return None;
    }
    Some((device()?, context))
}

/// Whether a device supports managed memory as weft needs it; asked once a device.
pub fn supported(device: i32) -> bool {
    let Some(known) = usize::try_from(device).ok().and_then(|at| SUPPORT.get(at)) else {
        return false;
    };
    match known.load(Ordering::Acquire) {
        SUPPORTED => return true,
        UNSUPPORTED => return false,
        _ => {}
    }
    if capture::any() {
        return false;
    }
    let (mut concurrent, mut total) = (0, 0usize);
    // SAFETY: the out-parameter is valid.
    let asked = unsafe { calls::cuDeviceGetAttribute(&mut concurrent, CONCURRENT_MANAGED_ACCESS, device) };
    // SAFETY: the out-parameter is valid.
    let sized = unsafe { calls::cuDeviceTotalMem_v2(&mut total, device) };
    let fine = asked.ok() && concurrent == 1 && sized.ok() && total > 0;
    if fine {
        // An invalid value was reported by the settings.
        let said = std::env::var("WEFT_MEMORY").ok();
        let said = said.and_then(|text| amount::parse(&text).ok());
        let larger = said.is_some_and(|said| said > capacity::of_total(total as u64));
        let spare = if larger { host::available() } else { 0 };
        capacity::learn(device, total as u64, said, spare);
    }
    known.store(if fine { SUPPORTED } else { UNSUPPORTED }, Ordering::Release);
    fine
}

/// Whether auto backing may choose managed memory on a device of this name: only where
/// oversubscription was tested. On some real drivers jobs hang for good in the kernel module
/// (NVIDIA/open-gpu-kernel-modules, 1223 and others), beyond any bound of weft's. An explicit
/// request is granted anyway.
pub fn tried(name: &str) -> bool {
    static SAID: AtomicBool = AtomicBool::new(false);
    let tried = TRIED.iter().any(|part| name.contains(part));
    if !tried {
        say_once(
            &SAID,
            "WEFT_BACKING=auto means device memory on this device: managed memory beyond a device was tried on the simulated one alone (managed asks for it)",
        );
    }
    tried
}

/// Parts of the names of devices on which oversubscription was tested.
const TRIED: [&str; 1] = ["(simulated)"];

/// Takes managed memory.
pub fn take(bytes: u64, origin: Origin) -> Taken {
    static NO_DEVICE: AtomicBool = AtomicBool::new(false);
    static NO_DRIVER: AtomicBool = AtomicBool::new(false);
    if bytes == 0 {
        return Taken::Plain;
    }
    // Without a context the driver's own error is right.
    let Some((device, context)) = here() else {
        return Taken::Plain;
    };
    if !supported(device) {
        stays_plain(
            &NO_DEVICE,
            "this device has no concurrent managed access: the job's memory stays device memory",
        );
        return Taken::Plain;
    }
    // Blocks kept for reuse go before the job is refused.
    let booked = capacity::take(device, bytes) || (pool::trim(device) && capacity::take(device, bytes));
    if !booked {
        return Taken::Refused(CuResult::OUT_OF_MEMORY);
    }
    // Blocks kept for reuse only fill what is left of the capacity.
    if capacity::taken(device).saturating_add(pool::kept(device)) > capacity::most(device) {
        pool::trim(device);
    }
    let result = match managed(bytes) {
        Err(CuResult::OUT_OF_MEMORY) if pool::trim(device) => managed(bytes),
        result => result,
    };
    match result {
        Ok(at) => {
            let range = Range {
                bytes,
                room: bytes,
                origin,
                context,
                device,
            };
            mem_advise::forget(at, bytes);
            ranges::add(at, range);
            super::tell(ToBroker::Backed { start: at, bytes });
            prefer(at, bytes, device);
            Taken::At(at)
        }
        Err(CuResult::OUT_OF_MEMORY) => {
            capacity::given_back(device, bytes);
            Taken::Refused(CuResult::OUT_OF_MEMORY)
        }
        Err(error) => {
            capacity::given_back(device, bytes);
            stays_plain(
                &NO_DRIVER,
                &format!(
                    "the driver gives no managed memory (error {}): this allocation stays device memory",
                    error.0
                ),
            );
            Taken::Plain
        }
    }
}

fn managed(bytes: u64) -> Result<CuDevicePtr, CuResult> {
    let Ok(bytes) = usize::try_from(bytes) else {
        return Err(CuResult::OUT_OF_MEMORY);
    };
    let mut at = 0;
    // SAFETY: the out-parameter is valid.
    let result = unsafe { calls::cuMemAllocManaged(&mut at, bytes, ATTACH_GLOBAL) };
    if result.ok() { Ok(at) } else { Err(result) }
}

/// Prefers the device as the range's location. A hint; failure is ignored.
fn prefer(at: CuDevicePtr, bytes: u64, device: i32) {
    if !capture::any() {
        let _ = advise(at, bytes, PREFER, device);
    }
}

/// Advises the driver about managed memory.
pub fn advise(at: CuDevicePtr, bytes: u64, advice: u32, device: CuDevice) -> CuResult {
    // SAFETY: a range that the job holds; else the driver returns an error.
    unsafe { calls::cuMemAdvise(at, bytes as usize, advice, device) }
}

/// Gives a range back by `free`, the job's own driver call, and unregisters it if it is weft's.
pub fn give_back(at: CuDevicePtr, free: impl FnOnce() -> CuResult) -> CuResult {
    // Before the call: after it another thread may get this address.
    let Some(range) = ranges::remove(at) else {
        return free();
    };
    pool::freed(&range);
    let result = free();
    if result.ok() {
        capacity::given_back(range.device, range.room);
        super::tell(ToBroker::Unbacked { start: at });
    } else {
        ranges::add(at, range);
        pool::taken(&range);
    }
    result
}

/// Whether the driver still knows the managed memory at this address.
pub fn lives(at: CuDevicePtr) -> bool {
    let mut managed = 0u32;
    // SAFETY: the attribute is an int.
    let asked = unsafe { calls::cuPointerGetAttribute((&raw mut managed).cast(), IS_MANAGED, at) };
    asked.ok() && managed == 1
}

/// Row alignment of pitched memory, bytes, learnt from one small allocation; 0 = unknown.
static PITCH: AtomicU64 = AtomicU64::new(0);

/// The driver's pitch for rows of `width` bytes. `None` if the driver does not tell it.
pub fn pitch(width: u64, element: u32) -> Option<u64> {
    let mut unit = PITCH.load(Ordering::Relaxed);
    if unit == 0 {
        let (mut at, mut pitch) = (0, 0usize);
        // SAFETY: the out-parameters are valid.
        if !unsafe { calls::cuMemAllocPitch_v2(&mut at, &mut pitch, 1, 1, element) }.ok() {
            return None;
        }
        // SAFETY: just taken, never used.
        let _ = unsafe { calls::cuMemFree_v2(at) };
        unit = pitch as u64;
        if !unit.is_power_of_two() {
            return None;
        }
        PITCH.store(unit, Ordering::Relaxed);
    }
    width.checked_next_multiple_of(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_open_stays_device_memory_on_drivers_that_were_not_tried() {
        assert!(tried("NVIDIA A100-SXM4-40GB (simulated)"));
        assert!(!tried("NVIDIA H200") && !tried(""));
    }
}
