// SPDX-License-Identifier: MIT OR Apache-2.0
//! Little-endian fields at offsets; `None` beyond the bytes' end.
#![forbid(unsafe_code)]

pub(crate) fn slice(bytes: &[u8], at: usize, len: usize) -> Option<&[u8]> {
    bytes.get(at..at.checked_add(len)?)
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    slice(bytes, at, 2)
        .and_then(|b| b.try_into().ok())
        .map(u16::from_le_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    slice(bytes, at, 4)
        .and_then(|b| b.try_into().ok())
        .map(u32::from_le_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    slice(bytes, at, 8)
        .and_then(|b| b.try_into().ok())
        .map(u64::from_le_bytes)
}
