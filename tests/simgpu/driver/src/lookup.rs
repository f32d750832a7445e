// SPDX-License-Identifier: MIT OR Apache-2.0
//! How clients find entry points: `cuGetProcAddress`, and the export tables.

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::abi::{Error, In, Out, R};
use crate::away;
use crate::device::VERSION;
use crate::export::export;
#[cfg(feature = "cuda-runtime")]
use crate::runtime::table as table_of;
use crate::table_log::tell;

/// Code that the build script makes from the symbol table.
mod generated {
    #![allow(non_snake_case, clashing_extern_declarations)]
    use super::{Address, EntryPoint};
    use std::arch::naked_asm;
    use std::sync::atomic::AtomicBool;
    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

/// The address of an entry point.
pub(crate) struct Address(*const ());

// SAFETY: the address of a function; never dereferenced as data.
unsafe impl Sync for Address {}

/// One entry point.
pub(crate) struct EntryPoint {
    base: &'static str,
    since: u32,
    per_thread: bool,
    address: Address,
}

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;
/// Results that `cuGetProcAddress_v2` also reports as well as its own: found, no such name, or the
/// version asked for is too old.
const FOUND: u32 = 0;
const UNKNOWN_NAME: u32 = 1;
const VERSION_TOO_OLD: u32 = 2;

fn by_base() -> &'static HashMap<&'static str, &'static [EntryPoint]> {
    static MAP: OnceLock<HashMap<&'static str, &'static [EntryPoint]>> = OnceLock::new();
    MAP.get_or_init(|| {
        generated::TABLE
            .chunk_by(|a, b| a.base == b.base)
            .map(|group| (group[0].base, group))
            .collect()
    })
}

/// The newest symbol of a name that is not newer than `version`, in the flavour asked for if there
/// is one.
fn find(name: &str, version: u32, flags: u64) -> Result<*const (), u32> {
    let group = by_base().get(name).ok_or(UNKNOWN_NAME)?;
    // As before driver 570.
    if away::branch().is_none() && name.starts_with("cuCheckpoint") {
        return Err(UNKNOWN_NAME);
    }
    // An entry point newer than the version we report does not exist for a client, though it is
    // exported.
    let mut known = group.iter().filter(|symbol| symbol.since <= VERSION).peekable();
    if known.peek().is_none() {
        return Err(UNKNOWN_NAME);
    }
    let offered: Vec<&EntryPoint> = known.filter(|symbol| symbol.since <= version).collect();
    let newest = |per_thread| {
        offered
            .iter()
            .filter(|s| s.per_thread == per_thread)
            .max_by_key(|s| s.since)
    };
    let wanted = if flags & PER_THREAD != 0 { newest(true) } else { None };
    wanted
        .or_else(|| newest(false))
        .map(|symbol| symbol.address.0)
        .ok_or(VERSION_TOO_OLD)
}

/// Without the feature `cuda-runtime` there are no export tables: clients of the driver API need
/// none.
#[cfg(not(feature = "cuda-runtime"))]
fn table_of(_id: &[u8; 16]) -> Option<usize> {
    None
}

fn proc_address(name: In<u8>, out: Out<usize>, version: i32, flags: u64) -> R<u32> {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let name = name.text()?;
    match find(&name, u32::try_from(version).unwrap_or(0), flags) {
        Ok(address) => {
            out.set(address.expose_provenance())?;
            Ok(FOUND)
        }
        Err(status) => {
            out.set(0)?;
            Ok(status)
        }
    }
}

export! {
    fn cuGetProcAddress(name: In<u8>, address: Out<usize>, version: i32, flags: u64) {
        match proc_address(name, address, version, flags)? {
            FOUND => Ok(()),
            _ => Err(Error::NOT_FOUND),
        }
    }

    fn cuGetProcAddress_v2(name: In<u8>, address: Out<usize>, version: i32, flags: u64, status: Out<u32>) {
        let found = proc_address(name, address, version, flags)?;
        if status.is_null() && found != FOUND {
            return Err(Error::NOT_FOUND);
        }
        status.set_if(found);
        Ok(())
    }

    fn cuGetExportTable(table: Out<usize>, id: In<[u8; 16]>) {
        let id = id.get()?;
        let address = table_of(&id);
        tell(&id, if address.is_some() { "served" } else { "refused" });
        table.set(address.unwrap_or(0))?;
        if address.is_none() {
            return Err(Error::INVALID_VALUE);
        }
        Ok(())
    }
}
