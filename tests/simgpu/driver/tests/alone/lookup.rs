// SPDX-License-Identifier: MIT OR Apache-2.0
//! How clients find entry points: by symbol, and by name with version and flavour.

use crate::client::isolated;
use libloading::Library;

fn symbol(library: &Library, name: &str) -> Option<usize> {
    // SAFETY: only the address is looked at.
    let found = unsafe { library.get::<*const ()>(name.as_bytes()) };
    // A symbol read as a pointer is the symbol's own address.
    found.ok().map(|symbol| (*symbol).addr())
}

#[test]
fn every_symbol_of_the_table_is_exported() {
    isolated("every_symbol_of_the_table_is_exported", &[], |cu, _| {
        let table = weft_symbols::table().unwrap();
        let missing: Vec<_> = table
            .iter()
            .filter(|entry| symbol(cu.library(), entry.symbol).is_none())
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert!(table.len() > 650);
    });
}

#[test]
fn lookups_agree_with_the_table_for_every_version_and_flavour() {
    isolated(
        "lookups_agree_with_the_table_for_every_version_and_flavour",
        &[("SIMGPU_CHECKPOINT", "610")],
        |cu, _| {
            let table = weft_symbols::table().unwrap();
            let mut reported = 0;
            ok!(cu.cuDriverGetVersion(&mut reported));
            let reported = u32::try_from(reported).unwrap();
            let known: Vec<_> = table.iter().copied().filter(|entry| entry.since <= reported).collect();
            let mut bases: Vec<_> = table.iter().map(|entry| entry.base).collect();
            bases.dedup();
            let mut found = 0;
            for base in bases {
                for version in [0, 2000, 4000, 7000, 11000, 12000, 12060, 13000, 13020, 13050] {
                    for (flags, per_thread) in [(0, false), (1, false), (2, true)] {
                        let wanted = weft_symbols::resolve(&known, base, version, per_thread);
                        let wanted = wanted.map(|entry| symbol(cu.library(), entry.symbol).unwrap());
                        let name = std::ffi::CString::new(base).unwrap();
                        let (mut address, mut status) = (1, 9);
                        let version = i32::try_from(version).unwrap();
                        ok!(cu.cuGetProcAddress_v2(name.as_ptr().cast(), &mut address, version, flags, &mut status));
                        assert_eq!(address, wanted.unwrap_or(0), "{base} {version} {flags}");
                        assert_eq!(status == 0, wanted.is_some(), "{base} {version} {flags}: {status}");
                        found += usize::from(wanted.is_some());
                    }
                }
            }
            assert!(found > 5000, "{found}");
            // The runtime's first question.
            let (mut address, mut status) = (1, 9);
            ok!(cu.cuGetProcAddress_v2(c"".as_ptr().cast(), &mut address, 0, 0, &mut status));
            assert_eq!((address, status), (0, 1));
            assert_eq!(
                cu.cuGetProcAddress_v2(c"cuNo".as_ptr().cast(), &mut address, 13000, 0, std::ptr::null_mut()),
                500
            );
        },
    );
}

#[test]
fn what_is_not_implemented_says_so() {
    isolated("what_is_not_implemented_says_so", &[], |cu, _| {
        cu.start();
        // SAFETY: an entry point that takes any arguments.
        let absent = *unsafe { cu.library().get::<extern "C" fn() -> u32>(b"cuTexRefCreate\0") }.unwrap();
        assert_eq!(absent(), 801);
        let mut name = std::ptr::null();
        ok!(cu.cuGetErrorName(801, &mut name));
        // SAFETY: the driver's own text, which stays.
        let text = unsafe { std::ffi::CStr::from_ptr(name) };
        assert_eq!(text.to_str(), Ok("CUDA_ERROR_NOT_SUPPORTED"));
    });
}
