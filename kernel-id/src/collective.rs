// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels that wait on the device for kernels on other devices: collectives.
//!
//! They are recognised by their names: those of NCCL, and of the libraries in [`PARTS`]. A job's
//! own collective (Triton, CuTe) with another name is not recognised.

/// Parts of the mangled names of other collectives.
const PARTS: [&str; 13] = [
    // vLLM's and SGLang's custom all-reduce.
    "cross_device_reduce_",
    // TensorRT-LLM's one-shot and two-shot kernels, and its fused ones, which FlashInfer has too.
    "ShotAllReduceKernel",
    "allreduce_fusion_kernel",
    // PyTorch's symmetric memory: barriers, signals, and its kernels, also those in Triton.
    "16symmetric_memory",
    "shot_all_reduce_kernel",
    "multimem_",
    // Namespaces of DeepEP and MSCCL++, whose kernels have common names.
    "7deep_ep",
    "7mscclpp",
    // The same, as profilers write them.
    "deep_ep::",
    "ep::internode::",
    "mscclpp::",
    // NVSHMEM's collectives on streams.
    "_on_stream_kernel",
    "nvshmemi_",
];

/// Whether a symbol is a collective: one of [`PARTS`], `ncclDevKernel_AllReduce_Sum_f32_RING_LL`,
/// `ncclSymkDevKernel_...` of newer NCCLs, `ncclKernel_...` of older ones, also mangled as in C++
/// with the name's length before it.
pub fn is_collective(symbol: &str) -> bool {
    let mangled = symbol
        .strip_prefix("_Z")
        .map(|rest| rest.trim_start_matches(|digit: char| digit.is_ascii_digit()));
    let name = mangled.unwrap_or(symbol);
    let kind = name.split_once('_').map_or("", |(kind, _)| kind);
    kind.starts_with("nccl") && kind.ends_with("Kernel") || PARTS.iter().any(|part| symbol.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectives_are_told_from_other_kernels() {
        for symbol in [
            "_Z40ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE",
            "_Z22ncclDevKernel_SendRecv24ncclDevKernelArgsStorageILm4096EE",
            "_Z33ncclSymkDevKernel_AllGather_LL_MC",
            "_Z37ncclKernel_AllReduce_RING_LL_Sum_int8_t11ncclDevCommmP8ncclWork",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
            "_ZN4vllm26cross_device_reduce_1stageI6__halfLi8EEEvPNS_8RankDataE",
            "_ZN12tensorrt_llm7kernels22oneShotAllReduceKernelI6__halfLi8ELb1ELb0EEEvNS0_15AllReduceParamsE",
            "_ZN10flashinfer23trtllm_allreduce_fusion39allreduce_fusion_kernel_oneshot_lamportILi1E",
            "_ZN4c10d16symmetric_memory12_GLOBAL__N_114barrier_kernelEPPjmmmm",
            "one_shot_all_reduce_kernel",
            "_ZN7deep_ep9intranode8dispatchILi8ELi768ELi8192EEEvP4int4",
            "_ZN7mscclpp15executionKernelI6__halfNS_12LLPacket16E",
            "barrier_on_stream_kernel_threadgroup",
            "void dpsk::ep::internode::dispatch<true, 8>(int4*, float*)",
            "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        ] {
            assert!(is_collective(symbol), "{symbol}");
        }
        for symbol in [
            "_ZN2at6native29vectorized_elementwise_kernelILi4E",
            "_Z14myncclKernel_xPf",
            "ncclKernels",
            "_Z16ncclLaunchKernelP8ncclCommP14ncclKernelPlan",
            "_Z9nccl_copyPf",
            "_Z13reduce_kernelILi512ELi1EN2at6native8ReduceOpE",
            "_Z18on_stream_transferPf",
            "",
        ] {
            assert!(!is_collective(symbol), "{symbol}");
        }
    }
}
