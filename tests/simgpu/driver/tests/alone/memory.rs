// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocation: capacity, pools, the virtual memory API, properties of a pointer, objects that end
//! with a context.

use crate::client::{self, isolated};

const MIB: usize = 1 << 20;
/// A device of 1 GiB: enough for a context, small enough to fill.
const SMALL: &[(&str, &str)] = &[("SIMGPU_MEMORY", "1073741824")];

#[test]
fn the_device_has_an_end() {
    isolated("the_device_has_an_end", SMALL, |cu, _| {
        cu.start();
        let before = cu.free_memory();
        let mut taken = Vec::new();
        let mut at = 0;
        while cu.cuMemAlloc_v2(&mut at, 100 * MIB) == client::SUCCESS {
            taken.push(at);
        }
        assert_eq!(taken.len(), before / (100 * MIB));
        assert_eq!(cu.cuMemAlloc_v2(&mut at, 100 * MIB), client::OUT_OF_MEMORY);
        assert!(cu.free_memory() < 100 * MIB);
        for at in taken {
            ok!(cu.cuMemFree_v2(at));
        }
        assert_eq!(cu.free_memory(), before);
        assert_eq!(cu.cuMemFree_v2(at + 64), client::INVALID_VALUE);
    });
}

#[test]
fn small_blocks_share_a_granule() {
    isolated("small_blocks_share_a_granule", SMALL, |cu, _| {
        cu.start();
        let before = cu.free_memory();
        let blocks: Vec<u64> = (0..100).map(|_| cu.alloc(1000)).collect();
        assert_eq!(before - cu.free_memory(), 2 * MIB);
        let mut sorted = blocks.clone();
        sorted.sort_unstable();
        assert!(
            sorted.windows(2).all(|pair| pair[1] - pair[0] >= 1024),
            "no two overlap"
        );
        assert!(blocks.iter().all(|at| at.is_multiple_of(512)));
        cu.put(blocks[0], &[7; 1000]);
        ok!(cu.cuMemFree_v2(blocks[0]));
        let again = cu.alloc(1000);
        assert_eq!(cu.bytes(again, 1000), [0; 1000], "used memory comes back as zero");
        let (mut base, mut size) = (0, 0);
        ok!(cu.cuMemGetAddressRange_v2(&mut base, &mut size, blocks[5] + 999));
        assert_eq!((base, size), (blocks[5], 1000));
        for at in blocks[1..].iter().chain([&again]) {
            ok!(cu.cuMemFree_v2(*at));
        }
        assert_eq!(cu.free_memory(), before);
    });
}

#[test]
fn a_free_waits_for_the_work_that_uses_it() {
    isolated("a_free_waits_for_the_work_that_uses_it", &[], |cu, _| {
        let context = cu.start();
        let (a, b, s) = (cu.alloc(16), cu.alloc(16), cu.stream(1));
        let gate = cu.gate(s);
        cu.fill(a, 6, 4, s);
        ok!(cu.cuMemcpyDtoDAsync_v2(b, a, 16, s));
        std::thread::scope(|scope| {
            let freed = scope.spawn(|| {
                ok!(cu.cuCtxSetCurrent(context));
                ok!(cu.cuMemFree_v2(a));
            });
            std::thread::sleep(std::time::Duration::from_millis(30));
            assert!(!freed.is_finished());
            gate.open();
        });
        assert_eq!(cu.words(b, 4), [6; 4]);
    });
}

#[test]
fn pools_keep_what_the_threshold_says() {
    isolated("pools_keep_what_the_threshold_says", SMALL, |cu, _| {
        cu.start();
        let (mut pool, s) = (0, cu.stream(1));
        ok!(cu.cuDeviceGetDefaultMemPool(&mut pool, 0));
        let attribute = |number| {
            let mut value = u64::MAX;
            ok!(cu.cuMemPoolGetAttribute(pool, number, &mut value));
            value as usize
        };
        let before = cu.free_memory();
        let mut at = 0;
        ok!(cu.cuMemAllocAsync(&mut at, 64 * MIB, s));
        assert_eq!((attribute(5), attribute(7)), (64 * MIB, 64 * MIB));
        cu.fill(at, 3, 8, s);
        ok!(cu.cuMemFreeAsync(at, s));
        // The same stream may have it again at once; its work is ordered anyway.
        let mut again = 0;
        ok!(cu.cuMemAllocAsync(&mut again, 64 * MIB, s));
        assert_eq!(again, at);
        ok!(cu.cuMemFreeAsync(again, s));
        ok!(cu.cuStreamSynchronize(s));
        assert_eq!((attribute(5), attribute(7), attribute(8)), (0, 0, 64 * MIB));
        assert_eq!(cu.free_memory(), before);
        // With a threshold the pool keeps it, until it is trimmed.
        ok!(cu.cuMemPoolSetAttribute(pool, 4, &u64::MAX));
        ok!(cu.cuMemAllocAsync(&mut at, 64 * MIB, s));
        ok!(cu.cuMemFreeAsync(at, s));
        ok!(cu.cuStreamSynchronize(s));
        assert_eq!((attribute(5), attribute(7)), (64 * MIB, 0));
        assert_eq!(before - cu.free_memory(), 64 * MIB);
        ok!(cu.cuMemPoolTrimTo(pool, 0));
        assert_eq!(cu.free_memory(), before);
        assert_eq!(cu.cuMemAllocAsync(&mut at, 2048 * MIB, s), client::OUT_OF_MEMORY);
    });
}

#[test]
fn another_streams_block_waits_until_it_is_free() {
    isolated("another_streams_block_waits_until_it_is_free", SMALL, |cu, _| {
        cu.start();
        let (first, second) = (cu.stream(1), cu.stream(1));
        let gate = cu.gate(first);
        let (mut a, mut b) = (0, 0);
        ok!(cu.cuMemAllocAsync(&mut a, 4096, first));
        ok!(cu.cuMemFreeAsync(a, first));
        ok!(cu.cuMemAllocAsync(&mut b, 4096, second));
        assert_ne!(a, b, "the first stream has not got to its free");
        gate.open();
        ok!(cu.cuCtxSynchronize());
        ok!(cu.cuMemFreeAsync(b, second));
    });
}

/// `CUmemAllocationProp` of pinned device memory, with these handle types.
fn properties(handle_types: u32) -> [u32; 8] {
    [1, handle_types, 1, 0, 0, 0, 0, 0]
}

#[test]
fn reserved_addresses_take_memory_where_it_is_mapped() {
    isolated("reserved_addresses_take_memory_where_it_is_mapped", SMALL, |cu, _| {
        cu.start();
        let before = cu.free_memory();
        let (mut at, mut handle) = (0, 0);
        ok!(cu.cuMemAddressReserve(&mut at, 32 << 30, 0, 0, 0));
        assert_eq!(cu.free_memory(), before, "addresses are free");
        ok!(cu.cuMemCreate(&mut handle, 4 * MIB, &properties(0), 0));
        assert_eq!(before - cu.free_memory(), 4 * MIB);
        let byte = 1u8;
        assert_eq!(
            cu.cuMemcpyHtoD_v2(at, &byte, 1),
            client::INVALID_VALUE,
            "no memory there yet"
        );
        ok!(cu.cuMemMap(at + (2 * MIB) as u64, 4 * MIB, 0, handle, 0));
        ok!(cu.cuMemSetAccess(at + (2 * MIB) as u64, 4 * MIB, &[1, 0, 3], 1));
        let here = at + (3 * MIB) as u64;
        cu.put(here, &[5; 100]);
        assert_eq!(cu.bytes(here, 101), [vec![5; 100], vec![0]].concat());
        assert_eq!(cu.cuMemcpyHtoD_v2(at, &byte, 1), client::INVALID_VALUE);
        // The handle may go first; the memory stays while it is mapped.
        ok!(cu.cuMemRelease(handle));
        assert_eq!(before - cu.free_memory(), 4 * MIB);
        assert_eq!(cu.bytes(here, 1), [5]);
        assert_eq!(cu.cuMemAddressFree(at, 32 << 30), client::INVALID_VALUE, "still mapped");
        ok!(cu.cuMemUnmap(at + (2 * MIB) as u64, 4 * MIB));
        assert_eq!(cu.free_memory(), before);
        assert_eq!(cu.cuMemcpyHtoD_v2(here, &byte, 1), client::INVALID_VALUE);
        ok!(cu.cuMemAddressFree(at, 32 << 30));
        assert_eq!(
            cu.cuMemCreate(&mut handle, 2048 * MIB, &properties(0), 0),
            client::OUT_OF_MEMORY
        );
    });
}

#[test]
fn one_allocation_at_two_addresses_is_one_memory() {
    isolated("one_allocation_at_two_addresses_is_one_memory", SMALL, |cu, _| {
        cu.start();
        let (mut at, mut handle, mut imported, mut file) = (0, 0, 0, -1);
        ok!(cu.cuMemAddressReserve(&mut at, 4 * MIB, 0, 0, 0));
        ok!(cu.cuMemCreate(&mut handle, 2 * MIB, &properties(1), 0));
        ok!(cu.cuMemExportToShareableHandle(&mut file, handle, 1, 0));
        ok!(cu.cuMemImportFromShareableHandle(&mut imported, file as usize, 1));
        ok!(cu.cuMemMap(at, 2 * MIB, 0, handle, 0));
        ok!(cu.cuMemMap(at + (2 * MIB) as u64, 2 * MIB, 0, imported, 0));
        cu.put(at + 10, &[1, 2, 3]);
        assert_eq!(cu.bytes(at + (2 * MIB) as u64 + 10, 3), [1, 2, 3]);
    });
}

#[test]
fn pointers_say_what_they_are() {
    isolated("pointers_say_what_they_are", &[], |cu, _| {
        let context = cu.start();
        let attribute = |number, at| {
            let mut value = 0;
            (cu.cuPointerGetAttribute(&mut value, number, at), value)
        };
        let (device, pinned) = (cu.alloc(100), cu.pinned(100));
        let mut managed = 0;
        ok!(cu.cuMemAllocManaged(&mut managed, 100, 1));
        let mut own = vec![0u8; 100];
        let own_at = own.as_mut_ptr() as u64;
        ok!(cu.cuMemHostRegister_v2(own_at, 100, 0));
        for (at, kind, is_managed) in [(device, 2, 0), (pinned, 1, 0), (managed, 2, 1), (own_at, 1, 0)] {
            assert_eq!(attribute(1, at + 50), (0, context as u64));
            assert_eq!(attribute(2, at + 50), (0, kind));
            assert_eq!(attribute(3, at + 50), (0, at + 50));
            assert_eq!(attribute(8, at + 50), (0, is_managed));
            assert_eq!(attribute(11, at + 50), (0, at));
            assert_eq!(attribute(12, at + 50), (0, 100));
        }
        assert_eq!(attribute(4, device).0, client::INVALID_VALUE);
        assert_eq!(attribute(4, own_at), (0, own_at));
        ok!(cu.cuMemHostUnregister(own_at));
        assert_eq!(attribute(2, own_at).0, client::INVALID_VALUE);
        assert_eq!(cu.cuMemHostUnregister(own_at), 713);
    });
}

#[test]
fn what_a_context_has_ends_with_it() {
    isolated("what_a_context_has_ends_with_it", SMALL, |cu, _| {
        let primary = cu.start();
        let before = cu.free_memory();
        let mut context = 0;
        ok!(cu.cuCtxCreate_v2(&mut context, 0, 0));
        let at = cu.alloc(64 * MIB);
        let (s, event) = (cu.stream(1), cu.event());
        cu.put(at, &[1; 16]);
        ok!(cu.cuCtxDestroy_v2(context));
        let mut current = 1;
        ok!(cu.cuCtxGetCurrent(&mut current));
        assert_eq!(current, primary, "the one before it is current again");
        assert_eq!(cu.free_memory(), before);
        assert_eq!(cu.cuStreamQuery(s), client::INVALID_HANDLE);
        assert_eq!(cu.cuEventQuery(event), client::INVALID_HANDLE);
        assert_eq!(cu.cuMemFree_v2(at), client::INVALID_VALUE);
        // The primary context comes and goes with its retains.
        let (mut flags, mut active) = (0, 9);
        ok!(cu.cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
        assert_eq!(active, 1);
        let at = cu.alloc(16);
        ok!(cu.cuDevicePrimaryCtxRelease_v2(0));
        ok!(cu.cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
        assert_eq!(active, 0);
        let mut none = 0;
        assert_eq!(cu.cuMemAlloc_v2(&mut none, 16), 709, "the current context is gone");
        assert_eq!(cu.cuDevicePrimaryCtxRelease_v2(0), client::INVALID_CONTEXT);
        assert_eq!(cu.start(), primary, "it has the same handle again");
        assert_eq!(cu.cuMemFree_v2(at), client::INVALID_VALUE);
    });
}
