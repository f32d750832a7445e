// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels that read the device's clock or store for the host to see: those of a program that
//! measures a GPU, `gpu_probe_*` (`tests/gpu-probe/src/driver/kernels.ptx`).
//!
//! The program's other kernels are only timed, as any kernel is: an empty one takes the shortest
//! time, and the time of a sweep comes from its shape. The memory that a touch uses is derived as
//! for any kernel (`touching.rs`).
//!
//! A stamp shows no pause: its first and last readings are known, but not the time at which a
//! slice's end froze it.
#![forbid(unsafe_code)]

use super::call::{Call, Clocked, KernelEffect, KernelFault};

pub(super) fn find(name: &str) -> Option<KernelEffect> {
    Some(KernelEffect::Clocked(match name {
        "gpu_probe_spin" => spin,
        "gpu_probe_stamp" => stamp,
        "gpu_probe_store" => store,
        _ => return None,
    }))
}

/// `(u64 ns)`
fn spin(call: &Call<'_>) -> Result<Clocked, KernelFault> {
    Ok(Clocked {
        duration: Some(call.unsigned(0)?),
        to: None,
        end: Box::new(|_, _| Ok(())),
    })
}

/// `(u64 *out, u64 ns)`: first reading, last reading, the two around the longest pause.
fn stamp(call: &Call<'_>) -> Result<Clocked, KernelFault> {
    let out = call.unsigned(0)?;
    Ok(Clocked {
        duration: Some(call.unsigned(1)?),
        to: Some(out),
        end: Box::new(move |memory, (start, end)| {
            let words = [start, end, start, start].map(u64::to_le_bytes);
            memory.write(out, words.as_flattened())
        }),
    })
}

/// `(u32 *word, u32 value)`
fn store(call: &Call<'_>) -> Result<Clocked, KernelFault> {
    let (word, value) = (call.unsigned(0)?, call.unsigned(1)?);
    let value = u32::try_from(value).map_err(|_| KernelFault::Parameters)?;
    Ok(Clocked {
        duration: None,
        to: Some(word),
        end: Box::new(move |memory, _| memory.write(word, &value.to_le_bytes())),
    })
}

#[cfg(test)]
mod tests {
    use weft_image::ptx;

    use super::super::testing::Bytes;
    use super::*;

    const PTX: &str = include_str!("../../../../gpu-probe/src/driver/kernels.ptx");

    /// A launch with these parameters, laid out as the PTX declares them.
    fn clocked(name: &str, values: &[u64]) -> Clocked {
        let module = ptx::read(PTX).unwrap();
        let params = module.kernel(name).unwrap().params.as_deref().unwrap();
        assert_eq!(params.len(), values.len());
        let mut buffer = vec![0; 64];
        for (param, value) in params.iter().zip(values) {
            buffer[param.offset as usize..][..param.size as usize]
                .copy_from_slice(&value.to_le_bytes()[..param.size as usize]);
        }
        let Some(KernelEffect::Clocked(kernel)) = find(name) else {
            panic!("{name} reads the clock")
        };
        kernel(&Call {
            buffer: &buffer,
            params,
        })
        .unwrap()
    }

    #[test]
    fn a_stamp_runs_as_long_as_it_is_told_and_writes_its_readings() {
        let memory = Bytes::new(32);
        let stamp = clocked("gpu_probe_stamp", &[memory.base, 7_000]);
        assert_eq!((stamp.duration, stamp.to), (Some(7_000), Some(memory.base)));
        (stamp.end)(&memory, (100, 7_100)).unwrap();
        let words: Vec<u64> = memory
            .bytes
            .borrow()
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word))
            .collect();
        assert_eq!(words, [100, 7_100, 100, 100]);
    }

    #[test]
    fn a_store_writes_its_word_and_a_spin_nothing() {
        let memory = Bytes::new(8);
        let store = clocked("gpu_probe_store", &[memory.base, 0x1234]);
        assert_eq!(store.duration, None);
        (store.end)(&memory, (0, 1)).unwrap();
        assert_eq!(memory.bytes.borrow()[..], [0x34, 0x12, 0, 0, 0xcd, 0xcd, 0xcd, 0xcd]);
        let spin = clocked("gpu_probe_spin", &[9]);
        assert_eq!((spin.duration, spin.to), (Some(9), None));
    }

    #[test]
    fn every_kernel_of_the_probes_is_understood() {
        let names: Vec<String> = ptx::read(PTX)
            .unwrap()
            .kernels
            .into_iter()
            .map(|kernel| kernel.name)
            .collect();
        assert_eq!(names.len(), 6, "{names:?}");
        let clocked = names.iter().filter(|name| find(name).is_some()).count();
        assert_eq!(clocked, 3);
    }
}
