// SPDX-License-Identifier: MIT OR Apache-2.0
//! Effects of copies, fills and executed kernels on memory.

use crate::client::{self, isolated};

fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|n| (n * 7 + n / 256) as u8).collect()
}

#[test]
fn linear_copies_move_their_bytes_and_no_others() {
    isolated("linear_copies_move_their_bytes_and_no_others", &[], |cu, _| {
        cu.start();
        let bytes = pattern(100_000);
        let (a, b) = (cu.alloc(100_000), cu.alloc(100_000));
        assert_eq!(cu.bytes(a, 100_000), vec![0; 100_000], "fresh memory is zero");
        cu.put(a, &bytes);
        ok!(cu.cuMemcpyDtoD_v2(b + 10, a + 5, 1000));
        assert_eq!(cu.bytes(a, 100_000), bytes);
        let b_now = cu.bytes(b, 1020);
        assert_eq!(b_now[..10], [0; 10]);
        assert_eq!(b_now[10..1010], bytes[5..1005]);
        assert_eq!(b_now[1010..], [0; 10]);
        // Any to any.
        let host = pattern(64);
        ok!(cu.cuMemcpy(b, host.as_ptr() as u64, 64));
        assert_eq!(cu.bytes(b, 64), host);
        // Within one allocation, overlapping.
        ok!(cu.cuMemcpyDtoD_v2(a + 1, a, 999));
        assert_eq!(cu.bytes(a + 1, 999), bytes[..999]);
    });
}

#[test]
fn a_pageable_source_may_change_when_the_call_is_back() {
    isolated("a_pageable_source_may_change_when_the_call_is_back", &[], |cu, _| {
        cu.start();
        let (a, s) = (cu.alloc(1 << 20), cu.stream(1));
        let gate = cu.gate(s);
        let mut small = pattern(4096);
        ok!(cu.cuMemcpyHtoDAsync_v2(a, small.as_ptr(), small.len(), s));
        let wanted = small.clone();
        small.fill(0);
        assert_eq!(
            cu.cuStreamQuery(s),
            client::NOT_READY,
            "the copy still stands behind the gate"
        );
        gate.open();
        // A large one is waited for.
        let mut large = pattern(1 << 19);
        ok!(cu.cuMemcpyHtoDAsync_v2(a + (1 << 19), large.as_ptr(), large.len(), s));
        let kept = large.clone();
        large.fill(0);
        ok!(cu.cuStreamSynchronize(s));
        assert_eq!(cu.bytes(a, 4096), wanted);
        assert_eq!(cu.bytes(a + (1 << 19), 1 << 19), kept);
    });
}

#[test]
fn a_pinned_source_is_read_when_the_copy_runs() {
    isolated("a_pinned_source_is_read_when_the_copy_runs", &[], |cu, _| {
        cu.start();
        let (a, s, pinned) = (cu.alloc(4), cu.stream(1), cu.pinned(4));
        let gate = cu.gate(s);
        ok!(cu.cuMemcpyHtoDAsync_v2(a, pinned as *const u8, 4, s));
        let other = cu.stream(1);
        ok!(cu.cuStreamWriteValue32_v2(other, pinned, 77, 0));
        ok!(cu.cuStreamSynchronize(other));
        gate.open();
        ok!(cu.cuStreamSynchronize(s));
        assert_eq!(cu.words(a, 1), [77]);
    });
}

#[test]
fn shaped_copies() {
    isolated("shaped_copies", &[], |cu, _| {
        cu.start();
        let (mut a, mut pitch) = (0, 0);
        ok!(cu.cuMemAllocPitch_v2(&mut a, &mut pitch, 100, 30, 4));
        assert!(pitch >= 100 && pitch.is_multiple_of(512));
        let host = pattern(100 * 30);
        // x, y, kind, host, device, array, pitch; twice; width, height.
        let up = [
            0,
            0,
            1,
            host.as_ptr() as u64,
            0,
            0,
            100,
            0,
            0,
            2,
            0,
            a,
            0,
            pitch as u64,
            100,
            30,
        ];
        ok!(cu.cuMemcpy2D_v2(&up));
        for row in [0, 1, 29] {
            assert_eq!(cu.bytes(a + (row * pitch) as u64, 100), host[row * 100..][..100]);
        }
        // A box out of the middle, into a box of another pitch.
        let mut back = vec![0; 40 * 5];
        let down = [
            10,
            3,
            2,
            0,
            a,
            0,
            pitch as u64,
            0,
            0,
            1,
            back.as_mut_ptr() as u64,
            0,
            0,
            40,
            20,
            5,
        ];
        ok!(cu.cuMemcpy2D_v2(&down));
        for row in 0..5 {
            assert_eq!(back[row * 40..][..20], host[(row + 3) * 100 + 10..][..20]);
            assert_eq!(back[row * 40 + 20..][..20], [0; 20]);
        }
        // Three dimensions: the second layer of two, seen with 10 rows a layer. x, y, z, level,
        // kind, host, device, array, context, pitch, height; twice; width, height, depth.
        let mut layer = vec![0; 100 * 10];
        let to = layer.as_mut_ptr() as u64;
        let box_ = [
            0,
            0,
            1,
            0,
            2,
            0,
            a,
            0,
            0,
            pitch as u64,
            10,
            0,
            0,
            0,
            0,
            1,
            to,
            0,
            0,
            0,
            100,
            10,
            100,
            10,
            1,
        ];
        ok!(cu.cuMemcpy3D_v2(&box_));
        assert_eq!(layer, host[1000..2000]);
        // A pitch below the width is refused.
        let mut bad = up;
        bad[13] = 50;
        assert_eq!(cu.cuMemcpy2D_v2(&bad), client::INVALID_VALUE);
    });
}

#[test]
fn fills() {
    isolated("fills", &[], |cu, _| {
        cu.start();
        let a = cu.alloc(4096);
        ok!(cu.cuMemsetD8_v2(a, 0x11, 16));
        ok!(cu.cuMemsetD16_v2(a + 16, 0x2233, 8));
        ok!(cu.cuMemsetD32_v2(a + 32, 0x4455_6677, 4));
        let bytes = cu.bytes(a, 52);
        assert_eq!(bytes[..16], [0x11; 16]);
        assert_eq!(bytes[16..32], [0x33, 0x22].repeat(8)[..]);
        assert_eq!(bytes[32..48], [0x77, 0x66, 0x55, 0x44].repeat(4)[..]);
        assert_eq!(bytes[48..], [0; 4]);
        ok!(cu.cuMemsetD2D32_v2(a + 1024, 64, 9, 3, 4));
        for row in 0..4 {
            assert_eq!(cu.words(a + 1024 + 64 * row, 4), [9, 9, 9, 0]);
        }
        assert_eq!(cu.cuMemsetD32_v2(a + 2, 0, 1), client::INVALID_VALUE, "not aligned");
        assert_eq!(cu.cuMemsetD32_v2(0, 0, 1), client::INVALID_VALUE);
    });
}

#[test]
fn executed_kernels_compute_by_every_launch_path() {
    isolated("executed_kernels_compute_by_every_launch_path", &[], |cu, _| {
        cu.start();
        let a = cu.alloc(1024);
        let fill = cu.function("simgpu_fill\0");
        // One buffer instead of an address for each.
        let mut buffer = [0u8; 24];
        buffer[..8].copy_from_slice(&a.to_le_bytes());
        buffer[8..12].copy_from_slice(&1u32.to_le_bytes());
        buffer[16..].copy_from_slice(&4u64.to_le_bytes());
        let size = buffer.len();
        let extra = [1, buffer.as_ptr() as usize, 2, std::ptr::from_ref(&size) as usize, 0];
        ok!(cu.cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, 0, std::ptr::null(), extra.as_ptr()));
        // The extended launch.
        let values = [a + 16, 2, 4];
        let params = values.each_ref().map(|value| std::ptr::from_ref(value).cast::<u8>());
        let config = client::Config {
            grid: [1; 3],
            block: [32, 1, 1],
            shared: 0,
            stream: 0,
            attributes: std::ptr::null(),
            count: 0,
        };
        ok!(cu.cuLaunchKernelEx(&config, fill, params.as_ptr(), std::ptr::null()));
        // The cooperative one.
        let values = [a + 32, 3, 4];
        let params = values.each_ref().map(|value| std::ptr::from_ref(value).cast::<u8>());
        ok!(cu.cuLaunchCooperativeKernel(fill, 1, 1, 1, 32, 1, 1, 0, 0, params.as_ptr()));
        // The one of old.
        buffer[..8].copy_from_slice(&(a + 48).to_le_bytes());
        buffer[8..12].copy_from_slice(&4u32.to_le_bytes());
        ok!(cu.cuFuncSetBlockShape(fill, 32, 1, 1));
        ok!(cu.cuParamSetv(fill, 0, buffer.as_ptr(), 24));
        ok!(cu.cuParamSetSize(fill, 24));
        ok!(cu.cuLaunchGridAsync(fill, 1, 1, 0));
        // A CUkernel in place of a CUfunction, as the runtime of CUDA 13 passes it.
        let ptx = concat!(include_str!("../../src/kernels/simgpu.ptx"), "\0");
        let (mut library, mut kernel) = (0, 0);
        let none = std::ptr::null;
        ok!(cu.cuLibraryLoadData(
            &mut library,
            ptx.as_ptr(),
            std::ptr::null(),
            none(),
            0,
            std::ptr::null(),
            none(),
            0
        ));
        ok!(cu.cuLibraryGetKernel(&mut kernel, library, c"simgpu_fill".as_ptr().cast()));
        ok!(cu.launch(kernel, &[a + 64, 5, 4], 0));
        let wanted: Vec<u32> = (1..=5).flat_map(|value| [value; 4]).collect();
        assert_eq!(cu.words(a, 20), wanted);
    });
}

#[test]
fn launches_that_no_device_takes_are_refused() {
    isolated("launches_that_no_device_takes_are_refused", &[], |cu, _| {
        cu.start();
        let (fill, a) = (cu.function("simgpu_fill\0"), cu.alloc(16));
        let values = [a, 1, 1];
        let params = values.each_ref().map(|value| std::ptr::from_ref(value).cast::<u8>());
        let launch = |function, grid: u32, block: u32, shared| {
            cu.cuLaunchKernel(
                function,
                grid,
                1,
                1,
                block,
                1,
                1,
                shared,
                0,
                params.as_ptr(),
                std::ptr::null(),
            )
        };
        assert_eq!(launch(fill, 0, 32, 0), client::INVALID_VALUE);
        assert_eq!(launch(fill, 1, 1025, 0), client::INVALID_VALUE);
        assert_eq!(
            launch(fill, 1, 32, 100_000),
            client::INVALID_VALUE,
            "more than a block has without asking"
        );
        let mut most = 0;
        ok!(cu.cuOccupancyAvailableDynamicSMemPerBlock(&mut most, fill, 1, 32));
        assert_eq!(most, 48 << 10, "no more than a launch takes");
        ok!(cu.cuFuncSetAttribute(fill, 8, 100_000));
        ok!(cu.cuOccupancyAvailableDynamicSMemPerBlock(&mut most, fill, 1, 32));
        assert_eq!(most, 100_000);
        assert_eq!(launch(fill, 1, 32, 100_000), client::SUCCESS);
        assert_eq!(launch(fill + 16 * 1000, 1, 32, 0), client::INVALID_HANDLE);
        assert_eq!(
            cu.cuLaunchCooperativeKernel(fill, 100_000, 1, 1, 32, 1, 1, 0, 0, params.as_ptr()),
            720
        );
        let mut none = 0;
        let name = c"no_such_kernel".as_ptr().cast();
        assert_eq!(cu.cuModuleGetFunction(&mut none, cu.module(), name), client::NOT_FOUND);
        ok!(cu.cuCtxSynchronize());
    });
}
