// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cuGetProcAddress` in both versions: for a function that weft exports, the answer is weft's
//! entry point.
//!
//! The symbol table maps name, CUDA version and per-thread flag to an entry point. It is checked
//! against the driver's address, because a newer driver may mean another function. The empty name
//! (the CUDA runtime's probe) and unknown names keep the driver's answer.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

use crate::deferred;
use crate::driver::abi::{CuResult, PROC_ADDRESS_PER_THREAD};
use crate::driver::counts;
use crate::driver::symbols::{self, ENTRIES, HEADER_VERSION};

/// Replaces the driver's answer by weft's entry point.
///
/// # Safety
/// `name` and `function` are null, or pointers that the driver read and wrote through without
/// complaint.
pub unsafe fn substitute(result: CuResult, name: *const c_char, function: *mut *mut (), version: c_int, flags: u64) {
    if !result.ok() || name.is_null() || function.is_null() {
        return;
    }
    // SAFETY: not null, so by the caller's promise it was written by the driver.
    let answered = unsafe { function.read() };
    if answered.is_null() {
        return;
    }
    // SAFETY: not null, so by the caller's promise it is a C string.
    let name = unsafe { CStr::from_ptr(name) };
    let Ok(name) = name.to_str() else { return };
    let _whole = crate::thread::uncancelled();
    let version = u32::try_from(version).unwrap_or(0);
    match choose(name, version, flags & PROC_ADDRESS_PER_THREAD != 0, answered).and_then(symbols::export) {
        Some(ours) => {
            counts::answered_with_ours();
            // SAFETY: as for the read.
            unsafe { function.write(ours) };
        }
        None => {
            counts::answered_with_unknown(name);
            deferred::passed_by(name);
        }
    }
}

/// The symbol whose entry point replaces the driver's answer.
fn choose(name: &str, version: u32, per_thread: bool, answered: *mut ()) -> Option<usize> {
    let meant = by_table(name, version, per_thread);
    let same = |at: usize| symbols::real(at) == Some(answered);
    if let Some(at) = meant.filter(|at| same(*at)) {
        return Some(at);
    }
    // Another version or variant, as exported by the driver. Learnt addresses do not count, because
    // two variants may share one.
    let exported = |at: &usize| {
        let symbol = ENTRIES.get(*at).map(|entry| entry.symbol);
        symbol
            .zip(crate::driver::loader::opened())
            .is_some_and(|(symbol, driver)| driver.symbol(symbol) == Some(answered))
    };
    if let Some(at) = symbols::of_base(name).find(exported) {
        return Some(at);
    }
    // A driver whose references to its own names bind to weft returns weft's entry points.
    if let Some(at) = symbols::exported_as(answered) {
        return Some(at);
    }
    // A name that became another function: some drivers answer `cuGraphInstantiate` with
    // `cuGraphInstantiateWithFlags`.
    if let Some(at) = exported_at(answered) {
        return Some(at);
    }
    // A private address of the driver. The table is right unless a version newer than it exists.
    let at = meant?;
    if version > HEADER_VERSION && has_newer(name) {
        return None;
    }
    if symbols::real(at).is_none() {
        symbols::learn(at, answered);
    }
    Some(at)
}

/// The symbol under which the driver exports this address.
fn exported_at(address: *mut ()) -> Option<usize> {
    // Read once, and only if an answer differs from the table: 700 lookups take about 0.5 ms.
    static ADDRESSES: OnceLock<HashMap<usize, usize>> = OnceLock::new();
    let driver = crate::driver::loader::opened()?;
    let addresses = ADDRESSES.get_or_init(|| {
        let all = ENTRIES.iter().enumerate();
        all.filter_map(|(at, entry)| Some((driver.symbol(entry.symbol)? as usize, at)))
            .collect()
    });
    addresses.get(&(address as usize)).copied()
}

/// The table's answer: the newest symbol not newer than `version`, per-thread if available.
pub fn by_table(name: &str, version: u32, per_thread: bool) -> Option<usize> {
    let newest = |flavour: bool| {
        let offered = symbols::of_base(name).filter(|at| {
            ENTRIES
                .get(*at)
                .is_some_and(|entry| entry.per_thread == flavour && entry.since <= version)
        });
        offered.last()
    };
    per_thread.then(|| newest(true)).flatten().or_else(|| newest(false))
}

/// Whether the driver exports a version of this function newer than the table's last.
fn has_newer(name: &str) -> bool {
    let Some(driver) = crate::driver::loader::opened() else {
        return false;
    };
    let plain = |at: &usize| ENTRIES.get(*at).is_some_and(|entry| !entry.per_thread);
    let last = symbols::of_base(name)
        .filter(plain)
        .filter_map(|at| ENTRIES.get(at))
        .map(|entry| {
            let symbol = entry.symbol.to_str().unwrap_or_default();
            symbol
                .rsplit_once("_v")
                .and_then(|(_, number)| number.parse().ok())
                .unwrap_or(1u32)
        });
    let next = last.max().unwrap_or(0) + 1;
    std::ffi::CString::new(format!("{name}_v{next}")).is_ok_and(|symbol| driver.symbol(&symbol).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_interposer_agrees_with_the_parser_s() {
        let entries = weft_symbols::table().unwrap();
        for entry in &entries {
            for version in [entry.since - 1, entry.since, HEADER_VERSION, HEADER_VERSION + 1000] {
                for per_thread in [false, true] {
                    let expected = weft_symbols::resolve(&entries, entry.base, version, per_thread);
                    let found =
                        by_table(entry.base, version, per_thread).map(|at| ENTRIES[at].symbol.to_str().unwrap());
                    assert_eq!(
                        found,
                        expected.map(|entry| entry.symbol),
                        "{} {version} {per_thread}",
                        entry.base
                    );
                }
            }
        }
        assert_eq!(by_table("", 0, false), None);
    }
}
