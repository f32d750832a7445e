// SPDX-License-Identifier: MIT OR Apache-2.0
//! The log of export tables: which ones clients ask for (`SIMGPU_TABLES`).
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::Write as _;
use std::sync::{Mutex, OnceLock};

use simgpu_device::lock::lock;

/// One line for each question about an export table, and for each made-up slot that is called, into
/// the file that `SIMGPU_TABLES` names.
#[cold]
pub(crate) fn tell(id: &[u8; 16], what: &str) {
    static FILE: OnceLock<Option<Mutex<File>>> = OnceLock::new();
    let open = || {
        let path = std::env::var_os("SIMGPU_TABLES").filter(|path| !path.is_empty())?;
        let file = File::options().append(true).create(true).open(path);
        file.map(Mutex::new).ok()
    };
    let Some(file) = FILE.get_or_init(open) else { return };
    let hex: Vec<String> = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&hex[..4], &hex[4..6], &hex[6..8], &hex[8..10], &hex[10..]].map(|part| part.concat());
    // In one write, so that lines of several processes do not mix. That it cannot be written is no
    // client's business.
    let line = format!("{} {} {what}\n", std::process::id(), parts.join("-"));
    let _ = lock(file).write_all(line.as_bytes());
}
