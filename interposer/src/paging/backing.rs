//! Takes managed memory where the job asks for device memory, and gives it back.
//!
//! The substitution is one call for one call: `cuMemAllocManaged` for `cuMemAlloc`, with the same
//! rules for contexts and captures. What comes beside it (the look at the device, the advice) is
//! left out while anybody captures.

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

/// CU_MEM_ATTACH_GLOBAL: any stream on any device may use it.
const ATTACH_GLOBAL: u32 = 1;
/// CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS: pages move on demand, and the device may hold
/// less than what was taken.
const CONCURRENT_MANAGED_ACCESS: i32 = 89;
/// CU_MEM_ADVISE_SET_PREFERRED_LOCATION.
pub const PREFER: u32 = 3;
/// CU_POINTER_ATTRIBUTE_IS_MANAGED.
const IS_MANAGED: u32 = 8;

/// What came of asking for managed memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// Here it is.
    At(CuDevicePtr),
    /// The job gets this error.
    Refused(CuResult),
    /// It is not to be managed: the job's own call goes to the driver.
    Plain,
}

/// What is known of each device: 0 = nothing, else one of these.
static SUPPORT: [AtomicU8; 32] = [const { AtomicU8::new(0) }; 32];
const SUPPORTED: u8 = 1;
const UNSUPPORTED: u8 = 2;

/// Allocations that stayed device memory though the job is managed.
static PLAIN: AtomicU64 = AtomicU64::new(0);

/// Allocations that stayed device memory though the job is managed.
pub fn left_plain() -> u64 {
    PLAIN.load(Ordering::Relaxed)
}

/// Says something once, for people; never on stdout.
pub fn say_once(said: &AtomicBool, text: &str) {
    if !said.swap(true, Ordering::Relaxed) {
        report::start();
        log::warn!("{text}");
    }
}

/// Counts an allocation that stays device memory, and says why, once a reason.
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

/// The device and the context that the calling thread uses.
pub fn here() -> Option<(i32, CuContext)> {
    let mut context = 0;
    // SAFETY: the out-parameter is valid.
    let asked = unsafe { calls::cuCtxGetCurrent(&mut context) };
    if !asked.ok() || context == 0 {
        return None;
    }
    Some((device()?, context))
}

/// Whether memory of this device can be managed the way we need it. Asked once a device.
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
        // Said wrongly is said once, by the settings.
        let said = std::env::var("WEFT_MEMORY").ok();
        let said = said.and_then(|text| amount::parse(&text).ok());
        let larger = said.is_some_and(|said| said > capacity::of_total(total as u64));
        let spare = if larger { host::available() } else { 0 };
        capacity::learn(device, total as u64, said, spare);
    }
    known.store(if fine { SUPPORTED } else { UNSUPPORTED }, Ordering::Release);
    fine
}

/// Whether jobs that leave it open may come to managed memory on a device of this name: only where
/// jobs that exceed the device together were tried. On some real drivers they hang for good in the
/// kernel module (NVIDIA/open-gpu-kernel-modules, 1223 and others), and no wait of ours ends that.
/// Who asks for managed memory by name gets it.
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

/// Parts of the names of devices on which managed memory beyond the device was tried.
const TRIED: [&str; 1] = ["(simulated)"];

/// Takes managed memory.
pub fn take(bytes: u64, origin: Origin) -> Taken {
    static NO_DEVICE: AtomicBool = AtomicBool::new(false);
    static NO_DRIVER: AtomicBool = AtomicBool::new(false);
    if bytes == 0 {
        return Taken::Plain;
    }
    // Without a context the driver's own answer is the right one.
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
    // What waits for reuse goes before the job is refused anything.
    let booked = capacity::take(device, bytes) || (pool::trim(device) && capacity::take(device, bytes));
    if !booked {
        return Taken::Refused(CuResult::OUT_OF_MEMORY);
    }
    // What lies kept for reuse takes no more than the rest.
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

/// Has the driver keep the range on the device as long as it can. A hint: its failure means
/// nothing.
fn prefer(at: CuDevicePtr, bytes: u64, device: i32) {
    if !capture::any() {
        let _ = advise(at, bytes, PREFER, device);
    }
}

/// Advises the driver about managed memory.
pub fn advise(at: CuDevicePtr, bytes: u64, advice: u32, device: CuDevice) -> CuResult {
    // SAFETY: a range that the job holds, or an error.
    unsafe { calls::cuMemAdvise(at, bytes as usize, advice, device) }
}

/// Gives back a range that starts here, if it is one of ours, by `free`: the driver's own call with
/// the job's own arguments.
pub fn give_back(at: CuDevicePtr, free: impl FnOnce() -> CuResult) -> CuResult {
    // Before the call: after it another thread may get this address anew.
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

/// Whether the driver still knows the managed memory that began here.
pub fn lives(at: CuDevicePtr) -> bool {
    let mut managed = 0u32;
    // SAFETY: the attribute is an int.
    let asked = unsafe { calls::cuPointerGetAttribute((&raw mut managed).cast(), IS_MANAGED, at) };
    asked.ok() && managed == 1
}

/// The driver's row alignment of pitched memory, learnt from one small allocation of its own. 0 =
/// not known.
static PITCH: AtomicU64 = AtomicU64::new(0);

/// The pitch that the driver gives rows of so many bytes. `None` where it does not say.
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
