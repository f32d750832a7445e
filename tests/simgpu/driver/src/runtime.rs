// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interfaces that the CUDA runtime library needs from its driver beyond the driver API: export
//! tables and a self-test.
//!
//! Provenance and reason. The runtime (cudart, also inside cuBLAS, cuDNN, PyTorch and cupy) refuses
//! a driver whose export tables and self-test answer it does not know. This driver answers so that
//! real, unmodified PyTorch and cupy can be *tested* on a machine without a GPU, and for nothing
//! else. All of it is this one file, behind a cargo feature that is off by default and that test
//! and demo scripts turn on. Without it, clients that use only the driver API still work.
//!
//! The tables' identities, the slots that matter and their results were learnt by watching which
//! calls the runtime makes. Their names, and the self-test's construction and key, are published by
//! the open-source project ZLUDA (MIT OR Apache-2.0, crate `dark_api`). The self-test is HMAC (RFC
//! 2104) over MD2 (RFC 1319).

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

use hmac::{KeyInit, Mac, SimpleHmac};
use md2::Md2;
use simgpu_device::lock::lock;

use crate::abi::{Error, Handle, Out, R};
use crate::callback;
use crate::context;
use crate::context::current::{self, by_handle};
use crate::device::{self, VERSION};
use crate::module::image::Image;
use crate::module::{MODULES, module_api};
use crate::state;

/// Tables by identity. Tables that are not here are refused, which every runtime accepts: those
/// that only profilers ask for, and f8cff951-..., which drivers 535 to 555 refuse, too.
const INTERFACE: [u8; 16] = *b"\x6b\xd5\xfb\x6c\x5b\xf4\xe7\x4a\x89\x87\xd9\x39\x12\xfd\x9d\xf9";
const HOOKS: [u8; 16] = *b"\xa0\x94\x79\x8c\x2e\x74\x2e\x74\x93\xf2\x08\x00\x20\x0c\x0a\x66";
const THREAD: [u8; 16] = *b"\x42\xd8\x5a\x81\x23\xf6\xcb\x47\x82\x98\xf6\xe7\x8a\x3a\xec\xdc";
const STORAGE: [u8; 16] = *b"\xc6\x93\x33\x6e\x11\x21\xdf\x11\xa8\xc3\x68\xf3\x55\xd8\x95\x93";
const CHECKS: [u8; 16] = *b"\x26\x3e\x88\x60\x7c\xd2\x61\x43\x92\xf6\xbb\xd5\x00\x6d\xfa\x7e";
const INTEGRITY: [u8; 16] = *b"\xd4\x08\x20\x55\xbd\xe6\x70\x4b\x8d\x34\xba\x12\x3c\x66\xe1\xf2";
const CONTEXT_TOOLS: [u8; 16] = *b"\x21\x31\x8c\x60\x97\x14\x32\x48\x8c\xa6\x41\xff\x73\x24\xc8\xf2";

// Those below have published names at most. Their sizes are those of drivers 535 to 555; with their
// answers the libraries that were watched continue by ordinary calls.

/// With [`CODE_CACHE`], the table of the cache of compiled code: NVRTC and nvJitLink look here for
/// code that was compiled before.
const COMPILED: [u8; 16] = *b"\xda\x91\x51\xd3\x3a\xe6\xcc\x41\xa5\xc0\x4f\x26\xd5\x33\xe3\x28";
/// Asked for by compilers that were given [`COMPILED`], and by cuBLAS on sm_90 in its first product
/// of half precision. Refused there, cuBLAS follows the null pointer.
const CODE_CACHE: [u8; 16] = *b"\x17\x34\xdc\x26\x80\x0d\x47\x45\x87\x26\xc0\xf1\xe7\xdd\x8b\xca";
/// Module tools. cuFFT goes through a module's functions when it makes a plan.
const MODULE_TOOLS: [u8; 16] = *b"\x6e\x16\x3f\xbe\xb9\x58\x44\x4d\x83\x5c\xe1\x82\xaf\xf1\x99\x1e";
/// One setting, made with cuSPARSELt's handle.
const SETTING: [u8; 16] = *b"\xcd\x3e\xa2\xc6\x70\x76\xdb\x4b\x88\x2e\x52\xae\x6c\x2d\x86\xf7";

/// The self-test's key, published by ZLUDA as the value of its first pass.
const KEY: [u8; 16] = *b"\x14\x6A\xDD\xAE\x53\xA9\xA7\x52\xAA\x08\x41\x36\x0B\xF5\x5A\x9F";

/// The self-test's fixed answers for versions that end in 0 and 1, published by ZLUDA, too. The
/// runtime of CUDA 11 compares them.
const KNOWN: [[u8; 16]; 2] = [
    *b"\x5c\x67\xcb\x03\x1c\x18\x41\x33\xe8\xd1\x4c\x1f\xaa\x83\xd3\x8e",
    *b"\x5c\x67\xcb\x03\x1c\x18\x41\x18\xe8\xd1\x4c\x1f\xaa\x83\xd3\x8e",
];

type Slot = usize;

/// All tables. They never move for the life of the process, as their addresses are part of the
/// self-test.
struct Tables {
    interface: [Slot; 13],
    hooks: [Slot; 7],
    thread: [Slot; 4],
    storage: [Slot; 4],
    checks: [Slot; 4],
    integrity: [Slot; 3],
    context_tools: [Slot; 95],
    compiled: [Slot; 6],
    code_cache: [Slot; 16],
    module_tools: [Slot; 88],
    setting: [Slot; 2],
}

/// A table whose first word is its size in bytes. Slots that are not given are null, since no
/// client calls them.
fn sized<const N: usize>(slots: &[(usize, Slot)]) -> [Slot; N] {
    let mut table = [0; N];
    table[0] = N * size_of::<Slot>();
    for (at, slot) in slots {
        table[*at] = *slot;
    }
    table
}

/// A table whose slots all answer with one error, and write down that they were called.
macro_rules! refusing {
    ($table:ident, $error:expr; $($at:literal)*) => {
        sized(&[$(($at, {
            extern "C" fn slot() -> u32 {
                crate::table_log::tell(&$table, concat!("slot ", $at, " called"));
                $error.0
            }
            slot as *const () as Slot
        })),*])
    };
}

fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES.get_or_init(|| Tables {
        interface: sized(&[
            (2, primary_context as *const () as Slot),
            (6, module_of as *const () as Slot),
            (7, nothing as *const () as Slot),
            (12, nothing as *const () as Slot),
        ]),
        hooks: sized(&[
            (2, hooks_large as *const () as Slot),
            (6, hooks_small as *const () as Slot),
        ]),
        thread: sized(&[(2, thread_context as *const () as Slot)]),
        // No size word: put, delete, get.
        storage: [
            storage_put as *const () as Slot,
            storage_delete as *const () as Slot,
            storage_get as *const () as Slot,
            0,
        ],
        checks: sized(&[
            (2, check_context as *const () as Slot),
            (3, nothing as *const () as Slot),
        ]),
        integrity: sized(&[(1, self_test as *const () as Slot)]),
        context_tools: sized(&[
            (4, context_number as *const () as Slot),
            (39, nothing as *const () as Slot),
            (51, nothing as *const () as Slot),
        ]),
        // Nothing was compiled before.
        compiled: refusing!(COMPILED, Error::NOT_FOUND; 1 2 3 4 5),
        code_cache: refusing!(CODE_CACHE, Error::NOT_SUPPORTED; 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15),
        module_tools: sized(&[(7, each_function as *const () as Slot)]),
        setting: sized(&[(1, nothing as *const () as Slot)]),
    })
}

/// The address of the table with this identity.
pub(crate) fn table(id: &[u8; 16]) -> Option<usize> {
    let tables = tables();
    let table: &[Slot] = match *id {
        INTERFACE => &tables.interface,
        HOOKS => &tables.hooks,
        THREAD => &tables.thread,
        STORAGE => &tables.storage,
        CHECKS => &tables.checks,
        INTEGRITY => &tables.integrity,
        CONTEXT_TOOLS => &tables.context_tools,
        COMPILED => &tables.compiled,
        CODE_CACHE => &tables.code_cache,
        MODULE_TOOLS => &tables.module_tools,
        SETTING => &tables.setting,
        _ => return None,
    };
    Some(table.as_ptr().expose_provenance())
}

fn code(result: R) -> u32 {
    result.map_or_else(|Error(code)| code, |()| 0)
}

/// For slots that have nothing to do here.
extern "C" fn nothing() -> u32 {
    0
}

/// Hands each function of a module to the client's function, with the client's own data. Answers 1:
/// cuFFT takes 0 for a failure.
extern "C" fn each_function(context: Handle, module: Handle, visit: usize, data: usize) -> u32 {
    let all = || {
        by_handle(context)?;
        let module = MODULES.get(module)?;
        let visit = callback::visit(visit).ok_or(Error::INVALID_VALUE)?;
        for name in module.names() {
            visit(data, module.function(&name)?.handle, module.handle);
        }
        Ok(())
    };
    let done: R = all();
    u32::from(done.is_ok())
}

/// Loads a fat binary as a module, as the runtime of CUDA 11 does for a program's kernels.
extern "C" fn module_of(module: Out<Handle>, image: usize) -> u32 {
    code(Image::at(image, false).and_then(|image| module_api::load(module, image)))
}

/// The primary context's handle, without retaining it.
extern "C" fn primary_context(context: Out<Handle>, device: i32) -> u32 {
    let answer = || {
        let device = device::check(device)?;
        context.set(context::primary_of(device)?.handle)
    };
    code(answer())
}

extern "C" fn thread_context(context: Out<Handle>) -> u32 {
    code(context.set(current::handle()))
}

/// Buffers that the runtime keeps hooks in; only the runtime reads and writes them.
struct Buffer<const N: usize>(UnsafeCell<[Slot; N]>);

// SAFETY: this library never touches the contents, it only hands out the address.
unsafe impl<const N: usize> Sync for Buffer<N> {}

static LARGE: Buffer<1024> = Buffer(UnsafeCell::new([0; 1024]));
static SMALL: Buffer<14> = Buffer(UnsafeCell::new([0; 14]));

fn hand_out<const N: usize>(buffer: &'static Buffer<N>, address: Out<usize>, count: Out<usize>) -> u32 {
    let answer = || {
        address.set(buffer.0.get().expose_provenance())?;
        count.set(N)
    };
    code(answer())
}

extern "C" fn hooks_large(address: Out<usize>, count: Out<usize>) -> u32 {
    hand_out(&LARGE, address, count)
}

extern "C" fn hooks_small(address: Out<usize>, count: Out<usize>) -> u32 {
    hand_out(&SMALL, address, count)
}

/// Values that libraries keep with a context: by context and key, with the function that ends it.
type Stored = HashMap<(Handle, usize), (usize, usize)>;
static STORAGE_MAP: Mutex<Option<Stored>> = Mutex::new(None);

fn stored_in(context: Handle) -> Handle {
    if context == 0 { current::handle() } else { context }
}

extern "C" fn storage_put(context: Handle, key: usize, value: usize, end: usize) -> u32 {
    lock(&STORAGE_MAP)
        .get_or_insert_default()
        .insert((stored_in(context), key), (value, end));
    0
}

extern "C" fn storage_delete(context: Handle, key: usize) -> u32 {
    lock(&STORAGE_MAP)
        .get_or_insert_default()
        .remove(&(stored_in(context), key));
    0
}

extern "C" fn storage_get(value: Out<usize>, context: Handle, key: usize) -> u32 {
    let found = lock(&STORAGE_MAP)
        .get_or_insert_default()
        .get(&(stored_in(context), key))
        .map(|(value, _)| *value);
    code(found.ok_or(Error::INVALID_HANDLE).and_then(|found| value.set(found)))
}

extern "C" fn check_context(context: Handle, state: Out<u32>, other: usize) -> u32 {
    let _ = (context, other);
    code(state.set(0))
}

extern "C" fn context_number(context: Handle, number: Out<u64>) -> u32 {
    code(by_handle(context).and_then(|context| number.set(context.id)))
}

/// Answers the runtime's self-test: a code over the identity of the process, the thread, the tables
/// and the devices.
extern "C" fn self_test(version: u32, seconds: u64, answer: Out<[u8; 16]>) -> u32 {
    if let Some(known) = KNOWN.get(version as usize % 10) {
        return code(answer.set(*known));
    }
    let tables = tables();
    // SAFETY: takes no argument and cannot fail.
    let thread = unsafe { libc::pthread_self() };
    let mut message = Vec::with_capacity(96);
    message.extend(VERSION.to_le_bytes());
    message.extend(version.to_le_bytes());
    message.extend(std::process::id().to_le_bytes());
    message.extend((thread as u32).to_le_bytes());
    for address in [
        tables.interface.as_ptr().addr(),
        tables.integrity.as_ptr().addr(),
        tables.integrity[1],
    ] {
        message.extend((address as u64).to_le_bytes());
    }
    message.extend(seconds.to_le_bytes());
    if let Ok(driver) = state::driver() {
        for device in &driver.devices {
            // For a MIG instance, the UUID of its GPU.
            message.extend(driver.whole(device).uuid);
            for part in [device.pci.0, device.pci.1, device.pci.2] {
                message.extend(part.to_le_bytes());
            }
        }
    }
    let Ok(mut code_of) = SimpleHmac::<Md2>::new_from_slice(&KEY) else {
        return Error::UNKNOWN.0;
    };
    code_of.update(&message);
    code(answer.set(code_of.finalize().into_bytes().into()))
}
