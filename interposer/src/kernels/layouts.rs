// SPDX-License-Identifier: MIT OR Apache-2.0
//! Layouts of kernel parameters, and the parameter block of a launch.
//!
//! Since CUDA 12.4 the driver reports layouts (`cuFuncGetParamInfo`); before that the image has
//! them ([`super::images`]). Without a layout a launch counts as touching no known memory. There is
//! one query per kernel. A launch passes parameters one by one (`kernelParams`) or in one buffer
//! (`extra`).

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use super::images::Parameter;
use super::registry;
use crate::driver::abi::CuFunction;
use crate::driver::calls;
use crate::driver::capture;

/// Largest parameter block since CUDA 12.1; PyTorch's tensor lists use all of it.
const BLOCK: usize = 32_764;

const MOST: usize = 4096;

/// CU_LAUNCH_PARAM_BUFFER_POINTER.
const POINTER: usize = 1;
/// CU_LAUNCH_PARAM_BUFFER_SIZE.
const SIZE: usize = 2;
/// CU_LAUNCH_PARAM_END.
const END: usize = 0;

/// Marks a kernel without a layout.
const UNKNOWN: u64 = 1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub parameters: Vec<Parameter>,
}

#[inline]
pub fn of(function: CuFunction) -> Option<&'static Layout> {
    match registry::layout_slot(function).map(|slot| slot.value.load(Ordering::Acquire)) {
        Some(UNKNOWN) => None,
        // SAFETY: the address of a leaked layout, which nothing frees.
        Some(known) if known != 0 => unsafe { (known as *const Layout).as_ref() },
        _ => ask(function),
    }
}

#[cold]
fn ask(function: CuFunction) -> Option<&'static Layout> {
    if function == 0 || capture::any() {
        return None;
    }
    // Each kind of handle has its own query. The other query's answer is undocumented.
    let kernel = registry::named(function).is_some_and(|named| named.kernel);
    let mut parameters = Vec::new();
    for at in 0..MOST {
        let (mut offset, mut size) = (0, 0);
        let asked = match kernel {
            // SAFETY: a library kernel about to be launched; valid out-parameters.
            true => unsafe { calls::cuKernelGetParamInfo(function, at, &mut offset, &mut size) },
            // SAFETY: a function about to be launched; valid out-parameters.
            false => unsafe { calls::cuFuncGetParamInfo(function, at, &mut offset, &mut size) },
        };
        if !asked.ok() {
            break;
        }
        let (Ok(offset), Ok(size)) = (u32::try_from(offset), u32::try_from(size)) else {
            break;
        };
        parameters.push(Parameter { offset, size });
    }
    let mut teller = "the driver";
    if parameters.is_empty() {
        parameters = registry::parameters(function).unwrap_or_default();
        teller = "its image";
    }
    if log::log_enabled!(log::Level::Debug)
        && let Some(named) = registry::named(function)
    {
        let told: Vec<String> = parameters
            .iter()
            .map(|one| format!("{}+{}", one.offset, one.size))
            .collect();
        log::debug!("parameters of {} by {teller}: {}", named.symbol, told.join(" "));
    }
    if parameters.is_empty() {
        registry::set_layout(function, UNKNOWN);
        return None;
    }
    let layout: &'static Layout = Box::leak(Box::new(Layout { parameters }));
    registry::set_layout(function, std::ptr::from_ref(layout) as u64);
    Some(layout)
}

/// Copies a launch's parameter block into the reused `block`. Gaps between parameters are zero.
///
/// # Safety
/// `arguments` and `extra` are those of the launch, for a kernel of this layout.
#[inline]
pub unsafe fn pack(layout: &Layout, arguments: *const c_void, extra: *const c_void, block: &mut Vec<u8>) {
    block.clear();
    if arguments.is_null() {
        // SAFETY: the caller's promise.
        if let Some((buffer, bytes)) = unsafe { packed(extra) } {
            // SAFETY: the list states this many bytes.
            block.extend_from_slice(unsafe { std::slice::from_raw_parts(buffer, bytes.min(BLOCK)) });
        }
        return;
    }
    for (at, parameter) in layout.parameters.iter().enumerate() {
        // SAFETY: one address per parameter.
        let value = unsafe { arguments.cast::<*const u8>().wrapping_add(at).read() };
        let (offset, size) = (parameter.offset as usize, parameter.size as usize);
        if value.is_null() || offset < block.len() || offset + size > BLOCK {
            break;
        }
        block.resize(offset, 0);
        // SAFETY: the parameter has `size` bytes.
        block.extend_from_slice(unsafe { std::slice::from_raw_parts(value, size) });
    }
}

/// The buffer with all parameters.
///
/// # Safety
/// `extra` is null or a list in `cuLaunchKernel`'s form.
unsafe fn packed(extra: *const c_void) -> Option<(*const u8, usize)> {
    if extra.is_null() {
        return None;
    }
    let list = extra.cast::<usize>();
    let (mut buffer, mut bytes) = (0usize, 0usize);
    // Two entries and an end.
    for at in 0..3 {
        // SAFETY: the list continues until its end was read.
        let key = unsafe { list.wrapping_add(2 * at).read() };
        if key == END {
            break;
        }
        // SAFETY: each key except the end has a value.
        let value = unsafe { list.wrapping_add(2 * at + 1).read() };
        match key {
            POINTER => buffer = value,
            // SAFETY: this value is the address of a size.
            SIZE if value != 0 => bytes = unsafe { (value as *const usize).read_unaligned() },
            _ => return None,
        }
    }
    (buffer != 0).then_some((buffer as *const u8, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(parameters: &[(u32, u32)]) -> Layout {
        let parameters = parameters.iter().map(|(offset, size)| Parameter {
            offset: *offset,
            size: *size,
        });
        Layout {
            parameters: parameters.collect(),
        }
    }

    fn packed(layout: &Layout, arguments: *const c_void, extra: *const c_void) -> Vec<u8> {
        let mut block = vec![7];
        // SAFETY: the tests pass arguments of this layout.
        unsafe { pack(layout, arguments, extra, &mut block) };
        block
    }

    fn words(block: &[u8]) -> Vec<u64> {
        let words = block.as_chunks::<8>().0;
        words.iter().map(|word| u64::from_ne_bytes(*word)).collect()
    }

    #[test]
    fn parameters_stand_at_their_offsets() {
        // An int, a pointer, and a structure that begins in the middle of a word.
        let layout = layout(&[(0, 4), (8, 8), (20, 28)]);
        let (number, pointer) = (7u32, 0x1111u64);
        let mut structure = [0u8; 28];
        structure[4..12].copy_from_slice(&0x2222u64.to_ne_bytes());
        structure[12..20].copy_from_slice(&0x3333u64.to_ne_bytes());
        structure[20..28].copy_from_slice(&0x4444u64.to_ne_bytes());
        let list = [
            (&raw const number).cast::<c_void>(),
            (&raw const pointer).cast(),
            structure.as_ptr().cast(),
        ];
        let block = packed(&layout, list.as_ptr().cast(), std::ptr::null());
        assert_eq!(words(&block), [7, 0x1111, 0, 0x2222, 0x3333, 0x4444]);
    }

    #[test]
    fn a_buffer_is_read_as_far_as_it_goes() {
        let layout = layout(&[(0, 8), (8, 4)]);
        let buffer = [0xaaaau64, 0xbbbb];
        let bytes = 12usize;
        let list = [
            POINTER,
            buffer.as_ptr() as usize,
            SIZE,
            (&raw const bytes) as usize,
            END,
        ];
        let block = packed(&layout, std::ptr::null(), list.as_ptr().cast());
        assert_eq!((words(&block), block.len()), (vec![0xaaaa], 12));
        assert_eq!(packed(&layout, std::ptr::null(), std::ptr::null()), [0u8; 0]);
        let strange = [9usize, 0, END];
        assert_eq!(packed(&layout, std::ptr::null(), strange.as_ptr().cast()), [0u8; 0]);
    }

    #[test]
    fn no_more_than_the_largest_block() {
        let layout = layout(&[(0, 8), (8, 65_536)]);
        let large = vec![0u8; 65_536];
        let list = [large.as_ptr().cast::<c_void>(); 2];
        assert_eq!(packed(&layout, list.as_ptr().cast(), std::ptr::null()).len(), 8);
    }
}
