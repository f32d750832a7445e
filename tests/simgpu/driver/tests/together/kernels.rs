// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels that compute: the test kernels on a stream, one that spins on a host word, one that the
//! test gives.

use std::ptr::{null, null_mut};

use crate::cuda::*;

#[test]
fn test_kernels_compute_in_stream_order() {
    let c = cuda();
    let (x, y, sum, s) = (c.words(100), c.words(100), c.words(2), c.stream());
    assert_eq!(c.fill(x, 3f32.to_bits(), 100, s), SUCCESS);
    assert_eq!(c.fill(y, 1f32.to_bits(), 100, s), SUCCESS);
    for _ in 0..5 {
        assert_eq!(c.launch(c.axpy, &[y, x, 2f32.to_bits().into(), 100], s), SUCCESS);
    }
    assert_eq!(c.cuStreamSynchronize(s), SUCCESS);
    let values: Vec<f32> = c.read(y, 100).into_iter().map(f32::from_bits).collect();
    assert_eq!(values, [31.0; 100]);
    // All parameters in one buffer, as `extra` hands them over.
    let (at, value, count) = (sum, 9u32, 1u64);
    let mut buffer = [0u8; 24];
    buffer[..8].copy_from_slice(&at.to_le_bytes());
    buffer[8..12].copy_from_slice(&value.to_le_bytes());
    buffer[16..].copy_from_slice(&count.to_le_bytes());
    let size = buffer.len();
    let extra = [1, buffer.as_ptr().addr(), 2, (&raw const size).addr(), 0];
    assert_eq!(
        c.cuLaunchKernel(c.fill, 1, 1, 1, 1, 1, 1, 0, s, null(), extra.as_ptr()),
        SUCCESS
    );
    // The launch has its own copy by now.
    buffer.fill(0);
    assert_eq!(c.cuStreamSynchronize(s), SUCCESS);
    assert_eq!(c.read(sum, 2), [9, 0]);
}

#[test]
fn a_spinning_kernel_holds_its_stream_until_the_word_is_set() {
    // XLA's pattern: a kernel spins, later work is queued behind it, then the host sets the word by
    // a plain store.
    let c = cuda();
    let (a, s) = (c.words(4), c.stream());
    let mut word: *mut u32 = null_mut();
    assert_eq!(c.cuMemHostAlloc(&mut word, 4, 0), SUCCESS);
    // SAFETY: four bytes of pinned memory.
    unsafe { word.write_volatile(0) };
    let limit = 20_000_000_000; // the test's end, were the word never seen
    assert_eq!(c.launch(c.spin, &[word.addr() as u64, limit], s), SUCCESS);
    let (from, to) = (c.event(), c.event());
    assert_eq!(c.cuEventRecord(from, s), SUCCESS);
    assert_eq!(c.fill(a, 1, 4, s), SUCCESS);
    assert_eq!(c.cuEventRecord(to, s), SUCCESS);
    const NOT_READY: u32 = 600;
    assert_eq!(c.cuStreamQuery(s), NOT_READY);
    assert_eq!(c.cuEventQuery(from), NOT_READY);
    // SAFETY: as above.
    unsafe { word.write_volatile(1) };
    assert_eq!(c.cuEventSynchronize(to), SUCCESS);
    let mut milliseconds = -1.0;
    assert_eq!(c.cuEventElapsedTime_v2(&mut milliseconds, from, to), SUCCESS);
    assert!(
        (0.0..1000.0).contains(&milliseconds),
        "the pair spans the fill alone: {milliseconds}"
    );
    assert_eq!(c.read(a, 4), [1; 4]);
    assert_eq!(c.cuMemFreeHost(word), SUCCESS);
}

extern "C" fn double(data: usize, params: *const usize, count: usize) {
    assert_eq!(count, 2);
    // SAFETY: `count` addresses, by the contract of `simgpuKernelFunction`.
    let params = unsafe { std::slice::from_raw_parts(params, count) };
    // SAFETY: the addresses of eight-byte parameters.
    let value = |address: usize| unsafe { *(address as *const u64) };
    let (address, words) = (value(params[0]) as *mut u32, value(params[1]) as usize);
    // SAFETY: device memory of `words` words, which nothing else uses now.
    let words = unsafe { std::slice::from_raw_parts_mut(address, words) };
    words.iter_mut().for_each(|word| *word = *word * 2 + data as u32);
}

#[test]
fn a_test_gives_a_kernel_its_effect() {
    let c = cuda();
    const PTX: &str = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry sample(.param .u64 a, .param .u64 n) { ret; }\0";
    let load = || {
        let (mut module, mut function) = (0, 0);
        assert_eq!(c.cuModuleLoadData(&mut module, PTX.as_ptr()), SUCCESS);
        assert_eq!(
            c.cuModuleGetFunction(&mut function, module, c"sample".as_ptr().cast()),
            SUCCESS
        );
        function
    };
    let (a, s) = (c.words(4), c.stream());
    assert_eq!(c.fill(a, 5, 4, s), SUCCESS);
    let before = load();
    assert_eq!(c.launch(before, &[a, 4], s), SUCCESS);
    assert_eq!(c.cuStreamSynchronize(s), SUCCESS);
    assert_eq!(c.read(a, 4), [5; 4], "only timed");
    assert_eq!(
        c.simgpuKernelFunction(c"sample".as_ptr().cast(), Some(double), 100),
        SUCCESS
    );
    let after = load();
    assert_eq!(c.launch(after, &[a, 2], s), SUCCESS);
    assert_eq!(c.cuStreamSynchronize(s), SUCCESS);
    assert_eq!(c.read(a, 4), [110, 110, 5, 5]);
    assert_eq!(c.simgpuKernelFunction(c"sample".as_ptr().cast(), None, 0), SUCCESS);
}
