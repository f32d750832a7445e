//! The device in the likeness of an A100 and of an H100, and which export tables were asked for.

use crate::client::{Cuda, INVALID_VALUE, SUCCESS, isolated};

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

/// A tensor map of two dimensions; what the driver says.
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

const UNPUBLISHED: [u8; 16] = *b"\x17\x34\xdc\x26\x80\x0d\x47\x45\x87\x26\xc0\xf1\xe7\xdd\x8b\xca";
const NOBODYS: [u8; 16] = [0x5a; 16];

fn table(cu: &Cuda, id: &[u8; 16]) -> Result<*const usize, u32> {
    let mut found = std::ptr::null();
    let answer = cu.cuGetExportTable(&mut found, id);
    if answer == SUCCESS { Ok(found) } else { Err(answer) }
}

#[test]
fn what_is_asked_of_export_tables_is_told() {
    let place = std::env::temp_dir().join(format!("simgpu-tables-{}", std::process::id()));
    let path = place.to_str().unwrap();
    isolated(
        "what_is_asked_of_export_tables_is_told",
        &[H100, ("SIMGPU_TABLES", path)],
        |cu, _| {
            let told = std::env::var("SIMGPU_TABLES").unwrap();
            cu.start();
            assert_eq!(table(cu, &NOBODYS), Err(INVALID_VALUE));
            let slots = table(cu, &UNPUBLISHED).expect("served on sm_90");
            // SAFETY: the table has so many words and stays.
            let slots = unsafe { std::slice::from_raw_parts(slots, 65) };
            assert_eq!(slots[0], size_of_val(slots));
            // SAFETY: the words behind the first are functions; this one takes no argument.
            let last = unsafe { std::mem::transmute::<usize, extern "C" fn() -> u32>(slots[64]) };
            assert_eq!(last(), NOT_SUPPORTED);
            let lines = std::fs::read_to_string(told).unwrap();
            let own = format!("{} ", std::process::id());
            let said: Vec<&str> = lines.lines().filter_map(|line| line.strip_prefix(&own)).collect();
            assert_eq!(
                said,
                [
                    "5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a refused",
                    "1734dc26-800d-4745-8726-c0f1e7dd8bca served",
                    "1734dc26-800d-4745-8726-c0f1e7dd8bca slot 64 called",
                ]
            );
        },
    );
    let _ = std::fs::remove_file(&place);
}

#[test]
fn the_table_of_sm_90_is_refused_elsewhere() {
    isolated(
        "the_table_of_sm_90_is_refused_elsewhere",
        &[("SIMGPU_MODEL", "a100")],
        |cu, _| {
            cu.start();
            assert_eq!(table(cu, &UNPUBLISHED), Err(INVALID_VALUE));
            assert_eq!(tensor_map(cu, cu.alloc(64)), NOT_SUPPORTED);
        },
    );
}
