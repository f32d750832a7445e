// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device in the likeness of an A100 and of an H100, and the export tables that were asked for.

use crate::client::{Cuda, INVALID_VALUE, NO_DEVICE, NOT_FOUND, SUCCESS, isolated};

const NOT_SUPPORTED: u32 = 801;
const H100: (&str, &str) = ("SIMGPU_MODEL", "h100");

fn attribute(cu: &Cuda, number: i32) -> i32 {
    let mut value = -1;
    ok!(cu.cuDeviceGetAttribute(&mut value, number, 0));
    value
}

/// Capability, multiprocessors, clock, L2, shared memory, clusters, tensor maps.
const DIFFERENT: [i32; 9] = [75, 76, 16, 13, 38, 81, 97, 120, 127];

#[test]
fn an_a100_unless_said() {
    isolated("an_a100_unless_said", &[("SIMGPU_MODEL", "")], |cu, _| {
        cu.start();
        let said = DIFFERENT.map(|number| attribute(cu, number));
        assert_eq!(said, [8, 0, 108, 1_410_000, 41_943_040, 167_936, 166_912, 0, 0]);
    });
}

/// The driver's answer to a tensor map of two dimensions.
fn tensor_map(cu: &Cuda, at: u64) -> u32 {
    let mut map = [0u64; 16];
    let (sizes, strides, boxes, steps) = ([64u64, 64], [128u64], [32u32, 32], [1u32, 1]);
    cu.cuTensorMapEncodeTiled(
        map.as_mut_ptr(),
        6,
        2,
        at,
        sizes.as_ptr(),
        strides.as_ptr(),
        boxes.as_ptr(),
        steps.as_ptr(),
        0,
        0,
        0,
        0,
    )
}

#[test]
fn an_h100_where_said() {
    isolated("an_h100_where_said", &[H100], |cu, _| {
        cu.start();
        let said = DIFFERENT.map(|number| attribute(cu, number));
        assert_eq!(said, [9, 0, 132, 1_980_000, 52_428_800, 233_472, 232_448, 1, 1]);
        assert_eq!(tensor_map(cu, cu.alloc(4096)), SUCCESS);
        assert_eq!(tensor_map(cu, 8), INVALID_VALUE);
        cu.fill(cu.alloc(64), 7, 4, 0);
        ok!(cu.cuCtxSynchronize());
    });
}

#[test]
fn no_device_of_a_model_that_nobody_makes() {
    isolated(
        "no_device_of_a_model_that_nobody_makes",
        &[("SIMGPU_MODEL", "h1000")],
        |cu, _| {
            assert_ne!(cu.cuInit(0), SUCCESS);
        },
    );
}

/// Tables that drivers 535 to 555 hand out, with their sizes in bytes, and two that they refuse.
const COMPILED: [u8; 16] = *b"\xda\x91\x51\xd3\x3a\xe6\xcc\x41\xa5\xc0\x4f\x26\xd5\x33\xe3\x28";
const CODE_CACHE: [u8; 16] = *b"\x17\x34\xdc\x26\x80\x0d\x47\x45\x87\x26\xc0\xf1\xe7\xdd\x8b\xca";
const MODULE_TOOLS: [u8; 16] = *b"\x6e\x16\x3f\xbe\xb9\x58\x44\x4d\x83\x5c\xe1\x82\xaf\xf1\x99\x1e";
const SETTING: [u8; 16] = *b"\xcd\x3e\xa2\xc6\x70\x76\xdb\x4b\x88\x2e\x52\xae\x6c\x2d\x86\xf7";
const HANDED_OUT: [([u8; 16], usize); 4] = [(COMPILED, 48), (CODE_CACHE, 128), (MODULE_TOOLS, 704), (SETTING, 16)];
const BEFORE_INIT: [u8; 16] = *b"\xf8\xcf\xf9\x51\x21\x46\x8b\x4e\xb9\xe2\xfb\x46\x9e\x7c\x0d\xd9";
const NOBODYS: [u8; 16] = [0x5a; 16];

fn table(cu: &Cuda, id: &[u8; 16]) -> Result<*const usize, u32> {
    let mut found = std::ptr::null();
    let answer = cu.cuGetExportTable(&mut found, id);
    if answer == SUCCESS { Ok(found) } else { Err(answer) }
}

/// Calls a slot of a table without arguments.
fn call(cu: &Cuda, id: &[u8; 16], slot: usize) -> u32 {
    let table = table(cu, id).expect("it is handed out");
    // SAFETY: tables stay, and callers name slots that are there.
    let slots = unsafe { std::slice::from_raw_parts(table, slot + 1) };
    // SAFETY: callers name slots that read no argument.
    let function = unsafe { std::mem::transmute::<usize, extern "C" fn() -> u32>(slots[slot]) };
    function()
}

#[test]
fn what_is_asked_of_export_tables_is_told() {
    let place = std::env::temp_dir().join(format!("simgpu-tables-{}", std::process::id()));
    let path = place.to_str().unwrap();
    isolated(
        "what_is_asked_of_export_tables_is_told",
        &[("SIMGPU_TABLES", path)],
        |cu, _| {
            let told = std::env::var("SIMGPU_TABLES").unwrap();
            assert_eq!(table(cu, &NOBODYS), Err(INVALID_VALUE));
            assert_eq!(call(cu, &CODE_CACHE, 15), NOT_SUPPORTED);
            let lines = std::fs::read_to_string(told).unwrap();
            let own = format!("{} ", std::process::id());
            let said: Vec<&str> = lines.lines().filter_map(|line| line.strip_prefix(&own)).collect();
            assert_eq!(
                said,
                [
                    "5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a refused",
                    "1734dc26-800d-4745-8726-c0f1e7dd8bca served",
                    "1734dc26-800d-4745-8726-c0f1e7dd8bca slot 15 called",
                ]
            );
        },
    );
    let _ = std::fs::remove_file(&place);
}

#[test]
fn tables_are_those_of_real_drivers_on_each_model_and_without_a_device() {
    isolated(
        "tables_are_those_of_real_drivers_on_each_model_and_without_a_device",
        &[("CUDA_VISIBLE_DEVICES", "")],
        |cu, _| {
            for started in [false, true] {
                for (id, bytes) in HANDED_OUT {
                    let table = table(cu, &id).expect("it is handed out");
                    // SAFETY: the first word is the table's size.
                    assert_eq!(unsafe { *table }, bytes, "{id:x?}, started: {started}");
                }
                assert_eq!(table(cu, &BEFORE_INIT), Err(INVALID_VALUE));
                assert_eq!(cu.cuInit(0), NO_DEVICE);
            }
            // Nothing was compiled before.
            assert_eq!(call(cu, &COMPILED, 1), NOT_FOUND);
            assert_eq!(call(cu, &SETTING, 1), SUCCESS);
        },
    );
}

#[test]
fn an_a100_has_no_tensor_maps() {
    isolated("an_a100_has_no_tensor_maps", &[("SIMGPU_MODEL", "a100")], |cu, _| {
        cu.start();
        assert_eq!(tensor_map(cu, cu.alloc(64)), NOT_SUPPORTED);
    });
}
