// SPDX-License-Identifier: MIT OR Apache-2.0
//! Texts that a client is handed a pointer to: they live as long as the process, each once.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Mutex;

use simgpu_device::lock::lock;

/// The address of a text with its closing zero.
pub(crate) fn text(name: &str) -> usize {
    static TEXTS: Mutex<Option<HashMap<String, CString>>> = Mutex::new(None);
    let mut texts = lock(&TEXTS);
    let kept = texts
        .get_or_insert_default()
        .entry(name.to_string())
        .or_insert_with(|| CString::new(name).unwrap_or_default());
    kept.as_ptr().expose_provenance()
}
