// SPDX-License-Identifier: MIT OR Apache-2.0
//! Managed memory in the device's page ledger: allocations, and the bytes that operations touch.
//!
//! Managed allocations begin at multiples of 2 MiB and count in whole pages of 64 KiB. They take
//! room on the host when they are allocated, and on the device page by page. So they may exceed the
//! device's memory. The driver does not see accesses by the host's own code. Memory counts as
//! filled by the host when it is allocated. Pages on the device stay there even if the host reads
//! them.
//!
//! `kernels/touching.rs` derives the bytes that a kernel touches. A write that is known, by a
//! kernel, a memset or a copy, ends the advice that the memory is read mostly. A guessed write does
//! not.
//!
//! `simgpuTouches` returns the bytes that the calling thread's last launch touched, exact or
//! guessed. Working sets are learnt from this evidence. `simgpuLaunches` counts launches. A client
//! that knows more about a launch (a framework knows its tensors) names the launch by this count.
#![deny(unsafe_code)]

use std::cell::RefCell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use simgpu_device::TouchedAddresses;
use simgpu_device::lock::lock;

use crate::abi::{Error, Out, R};
use crate::context::Context;
use crate::device::support::{Support, support};
use crate::kernels::Call;
use crate::kernels::touching::{self, Access, Operands, Pattern, Touching, Used};
use crate::memory::managed;
use crate::space::table::{Allocation, AllocationKind, find, insert};
use crate::space::{GRANULE, LEDGER_PAGE_BYTES as PAGE, Zone, space, zone};
use crate::state::Driver;

/// Managed allocations of the process: launches look for pointers only while there are any.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Sizes of the operands that operations used, by first address.
static OPERANDS: Mutex<Operands> = Mutex::new(Operands::new());

/// Launches of the process while it had managed memory.
static LAUNCHES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The number of the thread's last launch, from 1 on, and the bytes that it used.
    static LAST: RefCell<(u64, Touching)> = const { RefCell::new((0, Touching { parts: Vec::new(), exact: false })) };
}

/// Managed memory for a context.
pub(super) fn take(driver: &Driver, context: &Context, size: u64) -> R<u64> {
    if support() == Support::None {
        return Err(Error::NOT_SUPPORTED);
    }
    let whole = |size: u64, unit: u64| size.checked_next_multiple_of(unit).ok_or(Error::OUT_OF_MEMORY);
    let (room, addresses) = (whole(size, PAGE)?, whole(size, GRANULE)?);
    let at = space()?.take_device(addresses)?;
    if let Err(error) = driver.timeline.manage(context.device(), at, room) {
        space()?.give_device(at, addresses);
        return Err(error);
    }
    insert(context.owner(), at, size, room, AllocationKind::Managed);
    COUNT.fetch_add(1, Ordering::Relaxed);
    Ok(at)
}

/// Gives managed memory back.
pub(super) fn give(driver: &Driver, allocation: &Allocation) -> R {
    COUNT.fetch_sub(1, Ordering::Relaxed);
    managed::forget(allocation.id);
    lock(&OPERANDS).forget(allocation.start, allocation.room);
    driver
        .timeline
        .unmanage(allocation.device, allocation.start, allocation.room);
    space()?.give_device(allocation.start, allocation.room.next_multiple_of(GRANULE));
    Ok(())
}

/// Whether the process has managed memory.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// How much of the managed allocation that an address lies in is behind it.
fn within(address: u64) -> Option<u64> {
    if zone(address) != Zone::Device {
        return None;
    }
    let found = find(address).filter(|found| found.kind == AllocationKind::Managed)?;
    Some((found.start + found.size).saturating_sub(address))
}

/// The managed memory among these bytes, as a touch by a copy or memset.
pub(crate) fn touch(start: u64, bytes: u64, write: bool) -> Option<TouchedAddresses> {
    if bytes == 0 || !any() {
        return None;
    }
    let bytes = bytes.min(within(start)?);
    lock(&OPERANDS).used(start, bytes);
    Some(TouchedAddresses { start, bytes, write })
}

/// Most touches of one launch that go to the device. Beyond that, near runs of bytes are joined.
const MOST_TOUCHES: usize = 256;

/// A launch's touches as the device gets them. The device counts whole pages, so successive runs of
/// bytes in one page or in neighbouring pages are one touch.
fn in_pages(parts: &[Used]) -> Vec<TouchedAddresses> {
    let join = |near: u64| {
        let mut touches: Vec<TouchedAddresses> = Vec::new();
        for one in parts {
            let (write, end) = (one.access == Access::Write, one.start.saturating_add(one.bytes));
            match touches.last_mut() {
                Some(last)
                    if last.write == write
                        && (last.start..=(last.start + last.bytes).saturating_add(near)).contains(&one.start) =>
                {
                    last.bytes = last.bytes.max(end - last.start);
                }
                _ => touches.push(TouchedAddresses {
                    start: one.start,
                    bytes: one.bytes,
                    write,
                }),
            }
        }
        touches
    };
    let mut touches = join(PAGE);
    let mut near = PAGE;
    while touches.len() > MOST_TOUCHES && near < 1 << 40 {
        near *= 8;
        touches = join(near);
    }
    touches.truncate(MOST_TOUCHES);
    touches
}

/// The touches of a launch of a kernel with this pattern. `shape`: blocks, and threads of each.
pub(crate) fn touches(pattern: &Pattern, call: &Call<'_>, shape: (u64, u64)) -> Vec<TouchedAddresses> {
    if !any() {
        return Vec::new();
    }
    let used = touching::used(pattern, call, shape, &mut lock(&OPERANDS), within);
    let touches = in_pages(&used.parts);
    LAST.set((LAUNCHES.fetch_add(1, Ordering::Relaxed) + 1, used));
    touches
}

/// Bytes that the calling thread's last launch touched, as evidence for working sets. CUDA has no
/// such function.
/// Each entry has three words: address, bytes, and the access. The access is 0 for bytes that were
/// read, 1 for bytes that were overwritten as a whole, and 2 for both. `what` has three words: the
/// number of entries, of which `list` gets the first `room`; 1 if they are exact, 0 if they are
/// guessed; and the launch's number in its process, from 1 on. All are zero before the thread's
/// first launch with managed memory in the process.
#[allow(non_snake_case, unsafe_code, reason = "a C symbol")]
#[unsafe(no_mangle)]
pub extern "C" fn simgpuTouches(list: Out<u64>, room: usize, what: Out<u64>) -> u32 {
    crate::export::answer("simgpuTouches", || {
        LAST.with_borrow(|(number, last)| {
            for (at, one) in last.parts.iter().take(room).enumerate() {
                let access = match one.access {
                    Access::Read => 0,
                    Access::Write => 1,
                    Access::ReadWrite => 2,
                };
                for (word, value) in [one.start, one.bytes, access].into_iter().enumerate() {
                    list.set_at(3 * at + word, value)?;
                }
            }
            for (at, value) in [last.parts.len() as u64, u64::from(last.exact), *number]
                .into_iter()
                .enumerate()
            {
                what.set_at(at, value)?;
            }
            Ok(())
        })
    })
}

/// Not of CUDA's: the number of the process's last launch, as `simgpuTouches` numbers them.
#[allow(non_snake_case, unsafe_code, reason = "a C symbol")]
#[unsafe(no_mangle)]
pub extern "C" fn simgpuLaunches() -> u64 {
    LAUNCHES.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_is_told_a_bounded_number_of_touches() {
        let run = |start: u64| Used {
            start,
            bytes: 128,
            access: Access::Read,
        };
        let near: Vec<Used> = (0..5000).map(|n| run(n * 256)).collect();
        let told = in_pages(&near);
        assert_eq!((told.len(), told[0].bytes), (1, 4999 * 256 + 128));
        let far: Vec<Used> = (0..5000).map(|n| run(n << 20)).collect();
        let told = in_pages(&far);
        assert!(told.len() <= MOST_TOUCHES && told.iter().map(|one| one.bytes).sum::<u64>() >= 5000 * 128);
        assert_eq!(in_pages(&[run(0), run(1 << 30)]).len(), 2, "far apart");
    }
}
