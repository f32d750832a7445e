// SPDX-License-Identifier: MIT OR Apache-2.0
//! Properties of a pointer: `cuPointerGetAttribute` and its siblings.
#![deny(unsafe_code)]

use crate::abi::{DevicePtr, Error, Handle, In, Out, R};
use crate::export::export;
use crate::memory::vmm;
use crate::space::table::{Allocation, AllocationKind, find};
use crate::state;

/// `CU_MEMORYTYPE_HOST` and `CU_MEMORYTYPE_DEVICE`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;

fn is_host(kind: AllocationKind) -> bool {
    matches!(
        kind,
        AllocationKind::Pinned(_) | AllocationKind::Registered(_) | AllocationKind::Mapped { host: true, .. }
    )
}

/// Writes one attribute. Booleans are four bytes, as the runtime reads them.
///
/// The second branch is for a pointer into no allocation: an error to the single query, zeros to
/// the batch. By these clients recognise host pointers.
fn write(data: usize, attribute: u32, pointer: DevicePtr, found: Option<&Allocation>) -> R {
    let word = Out::<u64>::from_address(data);
    let half = Out::<u32>::from_address(data);
    let Some(found) = found else {
        return match attribute {
            9 => half.set(u32::MAX - 1), // CU_DEVICE_INVALID
            1 | 3 | 4 | 5 | 11 | 12 | 17 => word.set(0),
            6 | 8 | 10 | 13 | 15 => half.set(0),
            _ => half.set(0),
        };
    };
    match attribute {
        1 => word.set(
            if matches!(found.kind, AllocationKind::Pool(_) | AllocationKind::Mapped { .. }) {
                0
            } else {
                found.context_handle as u64
            },
        ),
        2 => half.set(if is_host(found.kind) { HOST } else { DEVICE }),
        3 => word.set(pointer),
        4 => {
            // Only memory the host may touch has a host pointer.
            if is_host(found.kind) || found.kind == AllocationKind::Managed {
                return word.set(pointer);
            }
            word.set(0)?;
            Err(Error::INVALID_VALUE)
        }
        6 => half.set(0),
        7 => word.set(found.id),
        8 => half.set(u32::from(found.kind == AllocationKind::Managed)),
        9 => half.set(u32::try_from(found.device).unwrap_or(0)),
        10 => half.set(u32::from(found.kind == AllocationKind::Device)),
        11 => word.set(found.start),
        12 => word.set(found.size),
        13 => half.set(1),
        14 => word.set(match found.kind {
            AllocationKind::Mapped { handle_types, .. } => handle_types.into(),
            _ => 0,
        }),
        15 => half.set(0),
        16 => half.set(3), // read and write
        17 => word.set(match found.kind {
            AllocationKind::Pool(pool) => pool as u64,
            _ => 0,
        }),
        18 => word.set(found.room),
        19 => word.set(found.start),
        20 => word.set(found.id),
        21 => half.set(0),
        _ => Err(Error::INVALID_VALUE),
    }
}

export! {
    fn cuPointerGetAttribute(data: usize, attribute: u32, pointer: DevicePtr) {
        state::driver()?;
        let found = find(pointer);
        match (found, attribute) {
            (Some(found), _) => write(data, attribute, pointer, Some(&found)),
            // A reserved range without memory has a start and a size all the same.
            (None, 11) if vmm::reservation(pointer).is_some() => {
                Out::<u64>::from_address(data).set(vmm::reservation(pointer).map_or(0, |range| range.0))
            }
            (None, 12) if vmm::reservation(pointer).is_some() => {
                Out::<u64>::from_address(data).set(vmm::reservation(pointer).map_or(0, |range| range.1))
            }
            (None, 13) if vmm::reservation(pointer).is_some() => Out::<u32>::from_address(data).set(0),
            (None, _) => Err(Error::INVALID_VALUE),
        }
    }

    fn cuPointerGetAttributes(count: u32, attributes: In<u32>, data: In<usize>, pointer: DevicePtr) {
        state::driver()?;
        let found = find(pointer);
        for at in 0..count as usize {
            let attribute = attributes.at(at).get()?;
            // A batch never fails for an attribute that the pointer lacks; the answer stays zero.
            let _ = write(data.at(at).get()?, attribute, pointer, found.as_ref());
        }
        Ok(())
    }

    fn cuPointerSetAttribute(value: In<i32>, attribute: u32, pointer: DevicePtr) {
        state::driver()?;
        find(pointer).ok_or(Error::INVALID_VALUE)?;
        // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: copies here are synchronous enough as they are.
        if attribute != 6 || value.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        Ok(())
    }

    fn cuMemRetainAllocationHandle(handle: Out<Handle>, pointer: usize) {
        state::driver()?;
        handle.set(vmm::retain(pointer as u64)?)
    }
}
