// SPDX-License-Identifier: MIT OR Apache-2.0
//! Private driver tables (`cuGetExportTable`) of the process, and whether launches may still be
//! deferred.
//!
//! CUDA's libraries request tables of functions that no header names. They pass unchanged, and weft
//! does not see calls through them. If one of these calls has a stream, it would overtake the
//! queue: wrong numbers, no error. So:
//! * On devices below [`NEWER`], all work of the tested clients arrives by API functions.
//! * From there on a table outside [`KNOWN`] empties the queue and ends deferral.
//!   `WEFT_QUEUE=always` skips this rule.
//!
//! A table is in [`KNOWN`] if its callers show that none of its calls has a stream: by the
//! arguments that they pass, or because they have no device. That is evidence, not proof. The GPU
//! suite checks it: background jobs keep their data, and a profiler counts as many kernels as weft
//! counts launches.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::client::deferral::always;
use crate::driver::abi::CuDevice;
use crate::driver::calls;

/// CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR.
const MAJOR: i32 = 75;

/// First compute capability newer than those of the tested clients.
const NEWER: i32 = 9;

/// A table's identity, a `CUuuid`.
pub type Identity = [u8; 16];

/// Tables without a call that has a stream. Names are those of open-source projects.
const KNOWN: [Identity; 13] = [
    // CUDART_INTERFACE: contexts and modules.
    id(0x6bd5_fb6c_5bf4_e74a_8987_d939_12fd_9df9),
    // TOOLS_RUNTIME_CALLBACK_HOOKS.
    id(0xa094_798c_2e74_2e74_93f2_0800_200c_0a66),
    // TOOLS_TLS: a thread's context.
    id(0x42d8_5a81_23f6_cb47_8298_f6e7_8a3a_ecdc),
    // Context-local storage.
    id(0xc693_336e_1121_df11_a8c3_68f3_55d8_9593),
    // CONTEXT_CHECKS.
    id(0x263e_8860_7cd2_6143_92f6_bbd5_006d_fa7e),
    // INTEGRITY_CHECK: the runtime's self-test of its driver.
    id(0xd408_2055_bde6_704b_8d34_ba12_3c66_e1f2),
    // Context tools: a context's number.
    id(0x2131_8c60_9714_3248_8ca6_41ff_7324_c8f2),
    // Requested by CUPTI, which only observes.
    id(0x7cb6_3f9b_9ca4_8e42_a484_beb6_6e6a_ed7f),
    // Compiled code: NVRTC and nvJitLink look up sources in it, also in processes without a device.
    id(0xda91_51d3_3ae6_cc41_a5c0_4f26_d533_e328),
    // The cache behind it, which they request next. cuBLAS on sm_90 makes one object, without a
    // stream.
    id(0x1734_dc26_800d_4745_8726_c0f1_e7dd_8bca),
    // ToolsModule: cuFFT walks the functions of a plan's modules, with a callback.
    id(0x6e16_3fbe_b958_444d_835c_e182_aff1_991e),
    // One function: cuSPARSELt passes it four small numbers when its handle is made.
    id(0xcd3e_a2c6_7076_db4b_882e_52ae_6c2d_86f7),
    // Each runtime requests it before `cuInit`. Drivers 535 to 555 refuse it. When a stand-in
    // handed one out, runtime 13.2 called nothing of it and launched by API functions.
    id(0xf8cf_f951_2146_8b4e_b9e2_fb46_9e7c_0dd9),
];

const fn id(digits: u128) -> Identity {
    digits.to_be_bytes()
}

/// Most distinct requests kept.
const KEPT: usize = 64;

static ASKED: Mutex<Vec<(Identity, bool)>> = Mutex::new(Vec::new());

/// Whether an unknown table was handed out.
static HANDED: AtomicBool = AtomicBool::new(false);

/// Whether the process uses a device from `NEWER` on.
static ON_NEWER: AtomicBool = AtomicBool::new(false);

fn text(identity: &Identity) -> String {
    let digits: String = identity.iter().map(|byte| format!("{byte:02x}")).collect();
    let part = |from: usize, to: usize| digits.get(from..to).unwrap_or_default();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}

/// Notes a request for a table and whether the driver granted it.
pub fn asked(identity: Identity, handed: bool) {
    let known = KNOWN.contains(&identity);
    // No wait: in a forked child it may be locked forever.
    if let Ok(mut asked) = ASKED.try_lock()
        && !asked.contains(&(identity, handed))
        && asked.len() < KEPT
    {
        asked.push((identity, handed));
        log::debug!(
            "private table {}: {}, {}",
            text(&identity),
            if handed { "handed out" } else { "refused" },
            if known { "known" } else { "not known" }
        );
    }
    if handed && !known && !HANDED.swap(true, Ordering::SeqCst) {
        decide();
    }
}

/// Notes a device in use. Calls the driver: never during a capture.
pub fn device_used(device: CuDevice) {
    let mut major = 0;
    // SAFETY: the out-parameter is valid.
    let told = unsafe { calls::cuDeviceGetAttribute(&mut major, MAJOR, device) }.ok();
    // A device of unknown capability counts as untested.
    if (!told || major >= NEWER) && !ON_NEWER.swap(true, Ordering::SeqCst) {
        decide();
    }
}

/// Ends deferral when both facts hold. SeqCst: the later of the two callers sees both.
fn decide() {
    if HANDED.load(Ordering::SeqCst) && ON_NEWER.load(Ordering::SeqCst) && !always() {
        super::give_up(super::GiveUpReason::Table);
    }
}

/// Requests so far, one per line: identity, then `handed out` or `refused`.
pub fn told() -> String {
    let Ok(asked) = ASKED.try_lock() else {
        return String::new();
    };
    let line = |(identity, handed): &(Identity, bool)| {
        let how = if *handed { "handed out" } else { "refused" };
        format!("{} {how}", text(identity))
    };
    asked.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_written_as_people_write_them() {
        assert_eq!(text(&KNOWN[0]), "6bd5fb6c-5bf4-e74a-8987-d93912fd9df9");
        assert_eq!(
            KNOWN[0],
            *b"\x6b\xd5\xfb\x6c\x5b\xf4\xe7\x4a\x89\x87\xd9\x39\x12\xfd\x9d\xf9"
        );
    }

    #[test]
    fn each_table_is_known_once() {
        for (at, table) in KNOWN.iter().enumerate() {
            let again = KNOWN.iter().skip(at + 1).any(|other| other == table);
            assert!(!again, "{}", text(table));
        }
    }
}
