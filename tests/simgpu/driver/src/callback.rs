// SPDX-License-Identifier: MIT OR Apache-2.0
//! Client functions that the driver calls during the client's own call.

/// `CUoccupancyB2DSize`: dynamic shared memory for a block size. The size is an `int` that is never
/// negative.
pub(crate) fn block_to_shared(address: usize) -> Option<impl Fn(u32) -> u32> {
    if address == 0 {
        return None;
    }
    // SAFETY: not null, and by the API's contract the address of a function of this type.
    let function = unsafe { std::mem::transmute::<usize, extern "C" fn(i32) -> usize>(address) };
    Some(move |size: u32| u32::try_from(function(size.cast_signed())).unwrap_or(u32::MAX / 2))
}

/// The function that a client of module tools has called for each function: the client's data, the
/// function, its module.
#[cfg(feature = "cuda-runtime")]
pub(crate) fn visit(address: usize) -> Option<extern "C" fn(usize, usize, usize)> {
    if address == 0 {
        return None;
    }
    // SAFETY: not null, and of a function of this type: cuFFT passes no other.
    Some(unsafe { std::mem::transmute::<usize, extern "C" fn(usize, usize, usize)>(address) })
}
