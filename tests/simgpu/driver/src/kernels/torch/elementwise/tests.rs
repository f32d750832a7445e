// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real symbols of PyTorch 2.15 with the parameter layouts of their cubins, run on a memory of a
//! few bytes.

use weft_image::Param;

use super::super::super::testing::Bytes;
use super::super::super::{Call, KernelEffect, KernelFault, Memory, find};

const FILL: &str =
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIiEESt5arrayIPcLm1EELb0EEEviT0_T1_";
const EQUAL: &str = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_13BinaryFunctorIllbNS0_51_GLOBAL__N__68c48bfe_18_CompareEQKernel_cu_d8008c9616CompareEqFunctorIlEEEESt5arrayIPcLm3EELb0EEEviT0_T1_";
const EQUAL_SCALAR: &str = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_13AUnaryFunctorIllbNS0_51_GLOBAL__N__68c48bfe_18_CompareEQKernel_cu_d8008c9616CompareEqFunctorIlEEEESt5arrayIPcLm2EELb0EEEviT0_T1_";
const LESS_SCALAR: &str = "_ZN2at6native29vectorized_elementwise_kernelILi4EZNS0_21compare_scalar_kernelIlEEvRNS_18TensorIteratorBaseENS0_50_GLOBAL__N__30bf7ff7_17_CompareKernels_cu_8f1b29aa6OpTypeET_EUllE_St5arrayIPcLm2EELb0EEEviT0_T1_";
const NOT: &str = "_ZN2at6native29vectorized_elementwise_kernelILi4EZNS0_23bitwise_not_kernel_cudaERNS_18TensorIteratorBaseEEUlbE_St5arrayIPcLm2EELb0EEEviT0_T1_";
const COPY_CAST: &str = "_ZN2at6native27unrolled_elementwise_kernelIZZZNS0_23direct_copy_kernel_cudaERNS_18TensorIteratorBaseEENKUlvE1_clEvENKUlvE2_clEvEUllE_St5arrayIPcLm2EELi4E23TrivialOffsetCalculatorILi1EjESB_NS0_6memory12LoadWithCastILi1EEENSC_13StoreWithCastILi1EEEEEviT_T0_T2_T3_T4_T5_";
const AND_CAST: &str = "_ZN2at6native27unrolled_elementwise_kernelINS0_13BinaryFunctorIlllNS0_17BitwiseAndFunctorIlEEEESt5arrayIPcLm3EELi4E23TrivialOffsetCalculatorILi2EjES9_ILi1EjENS0_6memory12LoadWithCastILi2EEENSC_13StoreWithCastILi1EEEEEviT_T0_T2_T3_T4_T5_";
const COPY_STRIDED: &str = "_ZN2at6native18elementwise_kernelILi128ELi2EZNS0_22gpu_kernel_impl_nocastIZZZNS0_23direct_copy_kernel_cudaERNS_18TensorIteratorBaseEENKUlvE1_clEvENKUlvE5_clEvEUlfE_EEvS4_RKT_EUliE_EEviT1_";
const ADD_STRIDED_CAST: &str = "_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_15gpu_kernel_implINS0_15CUDAFunctor_addIlEEEEvRNS_18TensorIteratorBaseERKT_EUliE_EEviT1_";
const ADD_HALF: &str = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIN3c104HalfEEESt5arrayIPcLm3EELb0EEEviT0_T1_";
const ADD_HALF_SCALAR: &str = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_21CUDAFunctorOnSelf_addIN3c104HalfEEESt5arrayIPcLm2EELb0EEEviT0_T1_";
const WHERE: &str = "_ZN2at6native29vectorized_elementwise_kernelILi4EZZZNS0_49_GLOBAL__N__037c6ad9_16_TensorCompare_cu_71e06f4e17where_kernel_implERNS_14TensorIteratorEENKUlvE_clEvENKUlvE2_clEvEUlbmmE_St5arrayIPcLm4EELb0EEEviT0_T1_";
const MAXIMUM: &str = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_13BinaryFunctorIlllZZZNS0_19maximum_kernel_cudaERNS_18TensorIteratorBaseEENKUlvE_clEvENKUlvE2_clEvEUlllE_EESt5arrayIPcLm3EELb0EEEviT0_T1_";
const ARANGE: &str = "_ZN50_GLOBAL__N__2fa45684_17_RangeFactories_cu_38772b0829elementwise_kernel_with_indexIiZZZN2at6native15arange_cuda_outERKN3c106ScalarES6_S6_RNS1_6TensorEENKUlvE_clEvENKUlvE2_clEvEUllE_EEvT_T0_PN15function_traitsISD_E11result_typeE";

/// Lays parameters out one after another at these offsets, and runs the kernel.
fn run(symbol: &str, params: &[(u32, &[u8])], memory: &Bytes) -> Result<(), KernelFault> {
    let places: Vec<_> = params
        .iter()
        .map(|(at, p)| Param {
            offset: *at,
            size: p.len() as u32,
        })
        .collect();
    let mut buffer = vec![0; 1024];
    for (at, bytes) in params {
        buffer[*at as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    let Some(KernelEffect::Compute(compute)) = find(symbol) else {
        panic!("{symbol} is computed")
    };
    compute(
        &Call {
            buffer: &buffer,
            params: &places,
        },
        memory,
    )
}

fn pointers(memory: &Bytes, offsets: &[u64]) -> Vec<u8> {
    offsets
        .iter()
        .flat_map(|offset| (memory.base + offset).to_le_bytes())
        .collect()
}

fn put(memory: &Bytes, at: u64, values: &[i64]) {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    memory.write(memory.base + at, &bytes).unwrap();
}

fn longs(memory: &Bytes, at: usize, count: usize) -> Vec<i64> {
    memory.bytes.borrow()[at..].as_chunks::<8>().0[..count]
        .iter()
        .map(|b| i64::from_le_bytes(*b))
        .collect()
}

fn bytes(memory: &Bytes, at: usize, count: usize) -> Vec<u8> {
    memory.bytes.borrow()[at..at + count].to_vec()
}

#[test]
fn fill() {
    let memory = Bytes::new(64);
    let n = 3i32.to_le_bytes();
    run(
        FILL,
        &[(0, &n), (4, &7i32.to_le_bytes()), (8, &pointers(&memory, &[4]))],
        &memory,
    )
    .unwrap();
    assert_eq!(
        bytes(&memory, 0, 20),
        [
            0xcd, 0xcd, 0xcd, 0xcd, 7, 0, 0, 0, 7, 0, 0, 0, 7, 0, 0, 0, 0xcd, 0xcd, 0xcd, 0xcd
        ]
    );
}

#[test]
fn comparisons() {
    let memory = Bytes::new(128);
    let n = 4i32.to_le_bytes();
    put(&memory, 0, &[1, 2, 3, -4]);
    put(&memory, 32, &[1, 5, 3, 4]);
    let not_equal = 1i32.to_le_bytes();
    run(
        EQUAL,
        &[(0, &n), (4, &not_equal), (8, &pointers(&memory, &[64, 0, 32]))],
        &memory,
    )
    .unwrap();
    assert_eq!(bytes(&memory, 64, 5), [0, 1, 0, 1, 0xcd]);
    let equal_three = [0i64.to_le_bytes(), 3i64.to_le_bytes()].concat();
    run(
        EQUAL_SCALAR,
        &[(0, &n), (8, &equal_three), (24, &pointers(&memory, &[64, 0]))],
        &memory,
    )
    .unwrap();
    assert_eq!(bytes(&memory, 64, 4), [0, 0, 1, 0]);
    let below_two = [3i64.to_le_bytes(), 2i64.to_le_bytes(), [0xee; 8]].concat();
    run(
        LESS_SCALAR,
        &[(0, &n), (8, &below_two), (32, &pointers(&memory, &[64, 0]))],
        &memory,
    )
    .unwrap();
    assert_eq!(bytes(&memory, 64, 4), [1, 0, 0, 1]);
    run(NOT, &[(0, &n), (4, &[0]), (8, &pointers(&memory, &[68, 64]))], &memory).unwrap();
    assert_eq!(bytes(&memory, 68, 4), [0, 1, 1, 0]);
}

#[test]
fn types_change_on_the_way() {
    let memory = Bytes::new(128);
    let n = 3i32.to_le_bytes();
    put(&memory, 0, &[1, 0, 300]);
    // From int64 to bool, through an int64 functor: ScalarType 4 and 11.
    let from = [4, 0, 0, 0, 8, 0, 0, 0];
    let to = [11, 0, 0, 0, 1, 0, 0, 0];
    let params: [(u32, &[u8]); 7] = [
        (0, &n),
        (4, &[0]),
        (8, &pointers(&memory, &[64, 0])),
        (24, &[0]),
        (25, &[0]),
        (28, &from),
        (36, &to),
    ];
    run(COPY_CAST, &params, &memory).unwrap();
    assert_eq!(bytes(&memory, 64, 4), [1, 0, 1, 0xcd]);
    // int64 & bool, as a text generator's "unfinished and not stopped".
    let from = [4, 11, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0];
    let to = [4, 0, 0, 0, 8, 0, 0, 0];
    let params: [(u32, &[u8]); 7] = [
        (0, &n),
        (4, &[0]),
        (8, &pointers(&memory, &[96, 0, 64])),
        (32, &[0]),
        (33, &[0]),
        (36, &from),
        (48, &to),
    ];
    run(AND_CAST, &params, &memory).unwrap();
    assert_eq!(longs(&memory, 96, 3), [1, 0, 0]);
}

/// The lambda of the strided family: dimensions as (size, byte strides), pointers, functor, types.
fn lambda(dims: &[(u32, &[u32])], pointers: &[u8], functor: (usize, &[u8]), types: &[u8]) -> Vec<u8> {
    let tensors = pointers.len() / 8;
    let mut bytes = (dims.len() as u32).to_le_bytes().to_vec();
    bytes.resize(4 + 25 * (12 + 4 * tensors), 0);
    for (n, (size, strides)) in dims.iter().enumerate() {
        bytes[4 + 12 * n..][..4].copy_from_slice(&size.to_le_bytes());
        for (tensor, stride) in strides.iter().enumerate() {
            bytes[304 + 4 * (tensors * n + tensor)..][..4].copy_from_slice(&stride.to_le_bytes());
        }
    }
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes.extend(pointers);
    bytes.resize(bytes.len().next_multiple_of(functor.0), 0);
    bytes.extend(functor.1);
    bytes.extend(types);
    bytes.resize(bytes.len().next_multiple_of(8) + 8, 0xee);
    bytes
}

#[test]
fn strided_tensors() {
    let memory = Bytes::new(256);
    for n in 0..6u16 {
        memory
            .write(memory.base + u64::from(n) * 4, &f32::from(n).to_le_bytes())
            .unwrap();
    }
    // A transposed copy: 3 x 2 from 2 x 3.
    let own = lambda(
        &[(2, &[4, 12]), (3, &[8, 4])],
        &pointers(&memory, &[64, 0]),
        (1, &[0]),
        &[],
    );
    assert_eq!(own.len(), 536, "the size in the cubin");
    run(COPY_STRIDED, &[(0, &6i32.to_le_bytes()), (8, &own)], &memory).unwrap();
    let out = bytes(&memory, 64, 24);
    let out: Vec<f32> = out.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    assert_eq!(out, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    // int64 + 2 * int32, the second spread over all.
    put(&memory, 128, &[10, 20]);
    memory.write(memory.base + 144, &5i32.to_le_bytes()).unwrap();
    let own = lambda(
        &[(2, &[8, 8, 0])],
        &pointers(&memory, &[160, 128, 144]),
        (8, &2i64.to_le_bytes()),
        &[4, 4, 3],
    );
    assert_eq!(own.len(), 656, "the size in the cubin");
    run(ADD_STRIDED_CAST, &[(0, &2i32.to_le_bytes()), (8, &own)], &memory).unwrap();
    assert_eq!(longs(&memory, 160, 2), [20, 30]);
}

#[test]
fn small_arithmetic_and_ranges() {
    let memory = Bytes::new(128);
    memory
        .write(memory.base, &[0x00, 0x3c, 0x00, 0x40, 0x00, 0xc0])
        .unwrap(); // 1, 2, -2 in half precision
    let n = 3i32.to_le_bytes();
    let alpha = 0.5f32.to_le_bytes();
    run(
        ADD_HALF,
        &[(0, &n), (4, &alpha), (8, &pointers(&memory, &[16, 0, 0]))],
        &memory,
    )
    .unwrap();
    assert_eq!(bytes(&memory, 16, 6), [0x00, 0x3e, 0x00, 0x42, 0x00, 0xc2]);
    let (scalar, alpha) = (3f32.to_le_bytes(), 1f32.to_le_bytes());
    let params: [(u32, &[u8]); 3] = [
        (0, &n),
        (4, &[scalar, alpha].concat()),
        (16, &pointers(&memory, &[32, 0])),
    ];
    run(ADD_HALF_SCALAR, &params, &memory).unwrap();
    assert_eq!(bytes(&memory, 32, 6), [0x00, 0x44, 0x00, 0x45, 0x00, 0x3c]);
    let own = [5i64.to_le_bytes(), (-2i64).to_le_bytes(), [0xee; 8]].concat();
    run(
        ARANGE,
        &[(0, &4i32.to_le_bytes()), (8, &own), (32, &pointers(&memory, &[64]))],
        &memory,
    )
    .unwrap();
    assert_eq!(longs(&memory, 64, 4), [5, 3, 1, -1]);
}

#[test]
fn choices() {
    let memory = Bytes::new(128);
    let n = 3i32.to_le_bytes();
    put(&memory, 0, &[1, -2, 3]);
    put(&memory, 32, &[0, 5, 3]);
    memory.write(memory.base + 64, &[1, 0, 1]).unwrap();
    run(
        WHERE,
        &[(0, &n), (8, &[0xee; 8]), (16, &pointers(&memory, &[96, 64, 0, 32]))],
        &memory,
    )
    .unwrap();
    assert_eq!(longs(&memory, 96, 3), [1, 5, 3]);
    run(
        MAXIMUM,
        &[(0, &n), (4, &[0]), (8, &pointers(&memory, &[96, 0, 32]))],
        &memory,
    )
    .unwrap();
    assert_eq!(longs(&memory, 96, 3), [1, 5, 3]);
}

#[test]
fn what_is_not_understood_is_left_alone() {
    let memory = Bytes::new(64);
    let before = bytes(&memory, 0, 64);
    let n = 3i32.to_le_bytes();
    // A functor of another size, one pointer too many, an unknown type.
    let wrong = [0u8; 8];
    assert!(run(FILL, &[(0, &n), (4, &wrong), (16, &pointers(&memory, &[0]))], &memory).is_err());
    assert!(run(FILL, &[(0, &n), (4, &n), (8, &pointers(&memory, &[0, 0]))], &memory).is_err());
    let strange = [99, 0, 0, 0, 8, 0, 0, 0];
    let params: [(u32, &[u8]); 7] = [
        (0, &n),
        (4, &[0]),
        (8, &pointers(&memory, &[32, 0])),
        (24, &[0]),
        (25, &[0]),
        (28, &strange),
        (36, &strange),
    ];
    assert!(run(COPY_CAST, &params, &memory).is_err());
    assert_eq!(bytes(&memory, 0, 64), before);
    for symbol in [
        "_ZN2at6native29vectorized_elementwise_kernelILi4EZZZNS0_16fmod_kernel_cudaERNS_18TensorIteratorBaseEENKUlvE_clEv",
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIN3c107complexIfEEEESt5arrayIPcLm1EELb0EEEviT0_T1_",
        "ampere_sgemm_32x32_sliced1x4_tn",
        "",
    ] {
        assert!(find(symbol).is_none(), "{symbol}");
    }
}
