// SPDX-License-Identifier: MIT OR Apache-2.0
//! Evidence made exact by a framework's record of its operations.
//!
//! `tests/clients/operands.py` writes the tensors that each operation of a PyTorch program received
//! and made, and the launches of each operation. A kernel that uses whole tensors touches them to
//! the byte, whatever closed library it is from, and the framework knows their addresses. A guessed
//! launch becomes exact if *every* pointer among its parameters is explained:
//!
//! * it is the begin of one of the operation's tensors: the kernel touches that tensor, all of it
//!   (operations that choose by data which elements they read are excluded);
//! * or of memory that the library took for the operation. Its size then follows from this launch,
//!   or from the nearest launch before or after it that uses the memory (one memory serves several
//!   steps, with other sizes). Such memory is: a copy in another layout (cuDNN's `nchwToNhwcKernel`
//!   and `nhwcToNchwKernel` give images and the elements of one, with padded channels); partial
//!   sums (cuBLAS's `splitKreduce_kernel` gives their stride and number, and the matrix product
//!   before it writes them instead of its result); the indices of a maximum (one of 64 bits an
//!   output, PyTorch's `max_pool_forward_nchw`);
//! * or the kernel is one whose parameters have gaps with pointers that it does not use (PyTorch's
//!   concatenation, cuDNN's batch normalisation), it is the operation's only one, and all the
//!   operation's tensors are among its pointers.
//!
//! All else stays a guess: workspaces whose use only the library knows.
#![forbid(unsafe_code)]

use std::collections::HashSet;

use anyhow::{Context, Result};
use weft_profiles::working_set::recording::{Recorded, Recording};
use weft_profiles::working_set::{Access, Allocations, Certainty, Touched};

/// A tensor: address, use (0 read, 1 written, 2 both), and its runs of bytes: offset and size.
type Tensor = (u64, u8, Vec<(u64, u64)>);

/// A line: the launches (after the first number, up to the second), the name, whether whole tensors
/// are used, and the tensors.
type Operation = (u64, u64, String, bool, Vec<Tensor>);

/// Kernels whose parameters have pointers in their gaps.
const WITH_GAPS: [&str; 2] = ["CatArrayBatchedCopy", "bn_fw_inf_"];

/// Makes the launches exact that these lines explain. Returns their number.
pub fn explain(recording: &mut Recording, lines: &str) -> Result<usize> {
    let mut explained = 0;
    for (number, line) in lines.lines().enumerate() {
        let operation: Operation =
            serde_json::from_str(line).with_context(|| format!("line {}: no operation", number + 1))?;
        let (before, last, _, whole, tensors) = &operation;
        if !whole {
            continue;
        }
        let from = recording.launches.partition_point(|launch| launch.number <= *before);
        let to = recording
            .launches
            .partition_point(|launch| launch.number <= *last)
            .max(from);
        let its = &recording.launches[from..to];
        // If some of the operation's launches are missing, their order means nothing.
        if its.len() as u64 != last - before {
            continue;
        }
        let taken = TakenOperands::of(recording, its, tensors);
        let found: Vec<Option<Vec<Touched>>> = its
            .iter()
            .enumerate()
            .map(|(number, launch)| match launch.certainty {
                Certainty::Exact => None,
                Certainty::Guessed => touched(recording, its, number, tensors, &taken),
            })
            .collect();
        for (launch, found) in recording.launches[from..to].iter_mut().zip(found) {
            if let Some(found) = found {
                launch.touched = found;
                launch.certainty = Certainty::Exact;
                explained += 1;
            }
        }
    }
    Ok(explained)
}

fn name<'a>(recording: &'a Recording, launch: &Recorded) -> &'a str {
    recording.names.get(&launch.kernel).map_or("", String::as_str)
}

/// The different words of a launch that point into the job's memory.
fn pointers(launch: &Recorded, live: &Allocations) -> Vec<u64> {
    let mut seen = HashSet::new();
    let view = launch.launch();
    let words = view.pointer_offsets().filter_map(|offset| view.word64(offset));
    words
        .filter(|word| live.find(*word).is_some() && seen.insert(*word))
        .collect()
}

/// A launch's statement on memory that the library took for the operation. The same memory serves
/// one step of an operation after the other, each with another size.
struct Stated {
    /// Index of the launch in the operation.
    launch: usize,
    address: u64,
    bytes: u64,
    /// Whether it fills that memory; otherwise it reads the content.
    fills: bool,
    /// Whether the memory holds partial sums.
    sums: bool,
}

/// Memory that the library took for an operation, as its launches state it.
struct TakenOperands(Vec<Stated>);

impl TakenOperands {
    fn of(recording: &Recording, launches: &[Recorded], tensors: &[Tensor]) -> TakenOperands {
        let mut taken = Vec::new();
        for (launch, recorded) in launches.iter().enumerate() {
            let (symbol, view) = (name(recording, recorded), recorded.launch());
            let word = |offset| view.word32(offset).map(u64::from);
            let mut state = |address, bytes, fills, sums| {
                taken.push(Stated {
                    launch,
                    address,
                    bytes,
                    fills,
                    sums,
                });
            };
            if symbol.contains("nchwToNhwcKernelIfff") {
                // Images, and elements of an image of the result, padded channels and all; then
                // source and result.
                if let ([Some(images), Some(image)], Some(result)) = ([word(0), word(28)], view.word64(80)) {
                    state(result, 4 * images * image, true, false);
                }
            } else if symbol.contains("nhwcToNchwKernelIfff") {
                // Images, channels, channels of the source with its padding, and elements of an
                // image of the source; then source and result.
                let shape = [word(0), word(4), word(8), word(16)];
                if let ([Some(images), Some(channels), Some(padded), Some(image)], Some(source)) =
                    (shape, view.word64(72))
                    && channels == padded
                {
                    state(source, 4 * images * image, false, false);
                }
            } else if symbol.contains("splitKreduce_kernel") && symbol.contains("EiffffL") {
                // Rows, columns, batches, elements of one part, parts; then the parts.
                let shape = [word(8), word(12), word(32), word(36), word(40)];
                if let ([Some(rows), Some(columns), Some(1), Some(part), Some(parts)], Some(sums)) =
                    (shape, view.word64(64))
                    && rows * columns == part
                {
                    state(sums, 4 * part * parts, false, true);
                }
            } else if symbol.contains("max_pool_forward_nchwIf")
                && let (Some(result), Some(indices)) = (view.word64(80), view.word64(88))
                && let Some((.., runs)) = tensors.iter().find(|(address, ..)| *address == result)
                && tensors.iter().all(|(address, ..)| *address != indices)
                && let [(0, bytes)] = runs[..]
            {
                state(indices, 2 * bytes, true, false);
            }
        }
        TakenOperands(taken)
    }

    /// The statement that applies to a launch at this address. The launch's own comes first, then
    /// that of the last launch before it that fills the memory, or of the first after it that reads
    /// it. `None` if these two differ.
    fn at(&self, launch: usize, address: u64) -> Option<&Stated> {
        let mine = || self.0.iter().filter(|one| one.address == address);
        let own = mine().find(|one| one.launch == launch);
        let before = mine().rfind(|one| one.launch < launch).filter(|one| one.fills);
        let after = mine().find(|one| one.launch > launch).filter(|one| !one.fills);
        match (own, before, after) {
            (Some(own), ..) => Some(own),
            (None, Some(before), Some(after)) => (before.bytes == after.bytes).then_some(after),
            (None, before, after) => before.or(after),
        }
    }
}

/// Memory that one of an operation's launches touched, if all its pointers are explained.
fn touched(
    recording: &Recording,
    its: &[Recorded],
    number: usize,
    tensors: &[Tensor],
    taken: &TakenOperands,
) -> Option<Vec<Touched>> {
    let launch = its.get(number)?;
    let live = recording.allocations.get(launch.allocations)?;
    let symbol = name(recording, launch);
    let words = pointers(launch, live);
    let gaps = its.len() == 1
        && WITH_GAPS.iter().any(|name| symbol.contains(name))
        && tensors.iter().all(|(address, ..)| words.contains(address));
    // If another kernel adds the partial sums of a product, that kernel writes the result.
    let sums = |word: &u64| taken.at(number, *word).is_some_and(|one| one.sums);
    let partial = !symbol.contains("splitKreduce_kernel") && words.iter().any(sums);
    let mut found = Vec::new();
    for word in words {
        let stated = taken.at(number, word);
        let tensor = tensors.iter().find(|(address, ..)| *address == word);
        // A result may get the memory that an earlier step had: then its begin is that step's, too.
        let tensor = match (stated, tensor) {
            (Some(stated), Some((.., runs))) if runs[..] != [(0, stated.bytes)] => {
                if stated.launch != number {
                    return None;
                }
                None
            }
            (_, tensor) => tensor,
        };
        if let Some((_, access, runs)) = tensor {
            if partial && *access == 1 {
                continue;
            }
            let access = match access {
                0 => Access::Read,
                1 => Access::Write,
                _ => Access::ReadWrite,
            };
            found.extend(runs.iter().map(|(offset, bytes)| Touched {
                address: word + offset,
                bytes: *bytes,
                access,
            }));
        } else if let Some(one) = stated {
            found.push(Touched {
                address: word,
                bytes: one.bytes,
                access: Access::ReadWrite,
            });
        } else if !gaps {
            return None;
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x7f00_0000_0000;

    fn launch(number: u64, kernel: u64, words: &[u64]) -> Recorded {
        Recorded {
            number,
            certainty: Certainty::Guessed,
            kernel,
            parameters: words.iter().flat_map(|word| word.to_le_bytes()).collect(),
            grid: [1; 3],
            block: [1; 3],
            touched: Vec::new(),
            allocations: 0,
        }
    }

    fn recording(launches: Vec<Recorded>, names: &[(u64, &str)]) -> Recording {
        let mut live = Allocations::new();
        live.add(BASE, 1 << 20);
        Recording {
            granule: None,
            allocations: vec![live],
            launches,
            names: names
                .iter()
                .map(|(kernel, name)| (*kernel, (*name).to_string()))
                .collect(),
        }
    }

    fn sizes(launch: &Recorded) -> Vec<(u64, u64)> {
        launch
            .touched
            .iter()
            .map(|one| (one.address - BASE, one.bytes))
            .collect()
    }

    #[test]
    fn whole_tensors_are_touched_and_other_pointers_leave_it_a_guess() {
        let launches = vec![
            launch(1, 1, &[BASE, BASE + 4096, 7]),
            launch(2, 1, &[BASE, BASE + 9000]),
            launch(3, 1, &[BASE]),
        ];
        let mut recording = recording(launches, &[]);
        let tensors = format!("[[{},0,[[0,100],[200,100]]],[{},1,[[0,50]]]]", BASE, BASE + 4096);
        let lines = format!("[0,2,\"aten::mm\",true,{tensors}]\n[2,3,\"aten::embedding\",false,{tensors}]\n");
        assert_eq!(explain(&mut recording, &lines).unwrap(), 1);
        assert_eq!(sizes(&recording.launches[0]), [(0, 100), (200, 100), (4096, 50)]);
        assert_eq!(recording.launches[0].touched[2].access, Access::Write);
        let certain = recording
            .launches
            .iter()
            .map(|launch| launch.certainty == Certainty::Exact);
        assert_eq!(certain.collect::<Vec<_>>(), [true, false, false]);
        assert!(explain(&mut recording, "no line").is_err());
    }

    #[test]
    fn partial_sums_are_as_large_as_their_reduction_says() {
        let (sums, result) = (BASE + 65536, BASE + 4096);
        // 10 rows of 20 columns in 3 parts.
        let mut reduce = [0u64; 12];
        (reduce[1], reduce[4], reduce[5]) = (10 | 20 << 32, 1 | 200 << 32, 3);
        (reduce[8], reduce[9]) = (sums, result);
        let launches = vec![launch(1, 1, &[BASE, result, sums]), launch(2, 2, &reduce)];
        let names = [
            (1, "_ZN7cutlass7Kernel2I8gemm"),
            (2, "_ZN8cublasLt19splitKreduce_kernelILi32ELi16EiffffLb0E"),
        ];
        let mut recording = recording(launches, &names);
        let lines = format!("[0,2,\"aten::mm\",true,[[{BASE},0,[[0,400]]],[{result},1,[[0,800]]]]]");
        assert_eq!(explain(&mut recording, &lines).unwrap(), 2);
        assert_eq!(
            sizes(&recording.launches[0]),
            [(0, 400), (65536, 2400)],
            "not the result"
        );
        assert_eq!(sizes(&recording.launches[1]), [(65536, 2400), (4096, 800)]);
    }

    #[test]
    fn one_memory_serves_several_steps_each_with_its_own_size() {
        let (space, input, result) = (BASE + 65536, BASE, BASE + 4096);
        // 2 images, 5 channels, and 50 elements or 20; the result of the first step, which is in
        // the same layout as its copy.
        let to_nhwc = |elements: u64| {
            let mut words = [0u64; 11];
            (words[0], words[1], words[3]) = (2 | 5 << 32, 5 | elements << 32, 5 | elements << 32);
            (words[9], words[10]) = (input, space);
            words
        };
        let mut to_nchw = [0u64; 11];
        (to_nchw[0], to_nchw[1], to_nchw[2]) = (2 | 5 << 32, 5 | 5 << 32, 30);
        (to_nchw[9], to_nchw[10]) = (space, result);
        let launches = vec![
            launch(1, 1, &to_nhwc(50)),
            launch(2, 3, &[space, result]),
            launch(3, 1, &to_nhwc(20)),
            launch(4, 3, &[space, result]),
            launch(5, 2, &to_nchw),
        ];
        let names = [
            (1, "_ZN5cudnn16nchwToNhwcKernelIfffLb0E"),
            (2, "_ZN5cudnn16nhwcToNchwKernelIfffLb1E"),
            (3, "a convolution"),
        ];
        let mut recording = recording(launches, &names);
        let lines = format!("[0,5,\"aten::convolution\",true,[[{input},0,[[0,400]]],[{result},1,[[0,240]]]]]");
        assert_eq!(explain(&mut recording, &lines).unwrap(), 4);
        let space: Vec<Option<u64>> = recording
            .launches
            .iter()
            .map(|launch| {
                sizes(launch)
                    .iter()
                    .find(|(at, _)| *at == 65536)
                    .map(|(_, bytes)| *bytes)
            })
            .collect();
        assert_eq!(space, [Some(400), Some(400), Some(160), None, Some(240)]);
        assert_eq!(
            recording.launches[3].certainty,
            Certainty::Guessed,
            "reads what the third put there, or writes what the fifth takes"
        );
    }
}
