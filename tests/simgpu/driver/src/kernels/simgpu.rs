// SPDX-License-Identifier: MIT OR Apache-2.0
//! The test kernels of `simgpu.ptx`, computed: the same parameters, the same results as the PTX
//! gives on a real GPU.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::call::{Call, Compute, KernelEffect, KernelFault, Memory, pieces};
use super::spin;

pub(super) fn find(name: &str) -> Option<KernelEffect> {
    let compute: Arc<Compute> = match name {
        "simgpu_fill" => Arc::new(fill),
        "simgpu_axpy" => Arc::new(axpy),
        "simgpu_copy" => Arc::new(copy),
        "simgpu_checksum" => Arc::new(checksum),
        "simgpu_spin" => return Some(KernelEffect::Spin(spin::ours)),
        _ => return None,
    };
    Some(KernelEffect::Compute(compute))
}

fn fill(call: &Call<'_>, memory: &dyn Memory) -> Result<(), KernelFault> {
    let (out, value, count) = (call.unsigned(0)?, call.bytes(1)?, call.unsigned(2)?);
    pieces(count, 4, |first, items| {
        memory.write(out + 4 * first, &value.repeat(items))
    })
}

fn copy(call: &Call<'_>, memory: &dyn Memory) -> Result<(), KernelFault> {
    let (to, from, count) = (call.unsigned(0)?, call.unsigned(1)?, call.unsigned(2)?);
    pieces(count, 1, |first, items| {
        let mut bytes = vec![0; items];
        memory.read(from + first, &mut bytes)?;
        memory.write(to + first, &bytes)
    })
}

fn axpy(call: &Call<'_>, memory: &dyn Memory) -> Result<(), KernelFault> {
    let (y, x, count) = (call.unsigned(0)?, call.unsigned(1)?, call.unsigned(3)?);
    let a = f32::from_bits(u32::try_from(call.unsigned(2)?).map_err(|_| KernelFault::Parameters)?);
    pieces(count, 4, |first, items| {
        let (mut xs, mut ys) = (vec![0; 4 * items], vec![0; 4 * items]);
        memory.read(x + 4 * first, &mut xs)?;
        memory.read(y + 4 * first, &mut ys)?;
        for (y, x) in ys.as_chunks_mut::<4>().0.iter_mut().zip(xs.as_chunks::<4>().0) {
            *y = a.mul_add(f32::from_le_bytes(*x), f32::from_le_bytes(*y)).to_le_bytes();
        }
        memory.write(y + 4 * first, &ys)
    })
}

fn checksum(call: &Call<'_>, memory: &dyn Memory) -> Result<(), KernelFault> {
    let (sum, input, count) = (call.unsigned(0)?, call.unsigned(1)?, call.unsigned(2)?);
    let mut bytes = [0; 8];
    memory.read(sum, &mut bytes)?;
    let mut total = u64::from_le_bytes(bytes);
    pieces(count, 4, |first, items| {
        let mut words = vec![0; 4 * items];
        memory.read(input + 4 * first, &mut words)?;
        for (n, word) in (first..).zip(words.as_chunks::<4>().0) {
            let weight = 2 * n + 1;
            total = total.wrapping_add(weight.wrapping_mul(u32::from_le_bytes(*word).into()));
        }
        Ok(())
    })?;
    memory.write(sum, &total.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use weft_image::{Module, ptx};

    use super::super::call::{Spin, Until};
    use super::super::testing::Bytes;
    use super::super::testing::SIMGPU_PTX;
    use super::*;

    fn module() -> Module {
        ptx::read(SIMGPU_PTX).unwrap()
    }

    /// Runs a kernel with these parameters, laid out as its PTX declares them.
    fn run(name: &str, values: &[&[u8]], memory: &Bytes) -> Result<(), KernelFault> {
        let module = module();
        let params = module.kernel(name).unwrap().params.as_deref().unwrap();
        let mut buffer = vec![0; 64];
        for (param, value) in params.iter().zip(values) {
            assert_eq!(param.size as usize, value.len());
            buffer[param.offset as usize..][..value.len()].copy_from_slice(value);
        }
        let Some(KernelEffect::Compute(compute)) = find(name) else {
            panic!("{name} computes")
        };
        compute(
            &Call {
                buffer: &buffer,
                params,
            },
            memory,
        )
    }

    fn words(memory: &Bytes) -> Vec<u32> {
        memory
            .bytes
            .borrow()
            .as_chunks::<4>()
            .0
            .iter()
            .map(|w| u32::from_le_bytes(*w))
            .collect()
    }

    #[test]
    fn every_kernel_of_the_ptx_is_executed() {
        for kernel in module().kernels {
            assert!(find(&kernel.name).is_some(), "{}", kernel.name);
        }
    }

    #[test]
    fn fill_copy_axpy_checksum() {
        let memory = Bytes::new(64);
        let at = |n: u64| (memory.base + n).to_le_bytes();
        run(
            "simgpu_fill",
            &[&at(0), &2f32.to_bits().to_le_bytes(), &8u64.to_le_bytes()],
            &memory,
        )
        .unwrap();
        run(
            "simgpu_fill",
            &[&at(32), &3f32.to_bits().to_le_bytes(), &8u64.to_le_bytes()],
            &memory,
        )
        .unwrap();
        run(
            "simgpu_axpy",
            &[&at(0), &at(32), &10f32.to_bits().to_le_bytes(), &7u64.to_le_bytes()],
            &memory,
        )
        .unwrap();
        run("simgpu_copy", &[&at(56), &at(28), &4u64.to_le_bytes()], &memory).unwrap();
        let floats: Vec<f32> = words(&memory).into_iter().map(f32::from_bits).collect();
        assert_eq!(floats, [[32.0; 7].as_slice(), &[2.0], &[3.0; 6], &[2.0, 3.0]].concat());

        run(
            "simgpu_fill",
            &[&at(0), &0u32.to_le_bytes(), &2u64.to_le_bytes()],
            &memory,
        )
        .unwrap();
        run(
            "simgpu_fill",
            &[&at(8), &5u32.to_le_bytes(), &3u64.to_le_bytes()],
            &memory,
        )
        .unwrap();
        run("simgpu_checksum", &[&at(0), &at(8), &3u64.to_le_bytes()], &memory).unwrap();
        assert_eq!(words(&memory)[..2], [5 + 5 * 3 + 5 * 5, 0]);
    }

    #[test]
    fn an_address_outside_is_a_fault() {
        let memory = Bytes::new(64);
        let at = (memory.base + 60).to_le_bytes();
        let result = run("simgpu_fill", &[&at, &0u32.to_le_bytes(), &2u64.to_le_bytes()], &memory);
        assert_eq!(result, Err(KernelFault::Address(memory.base + 60)));
    }

    #[test]
    fn spin_watches_its_word() {
        let module = module();
        let params = module.kernel("simgpu_spin").unwrap().params.as_deref().unwrap();
        let memory = Bytes::new(8);
        memory.bytes.borrow_mut().fill(0);
        let buffer = [memory.base.to_le_bytes(), 5000u64.to_le_bytes()].concat();
        let Some(KernelEffect::Spin(spin)) = find("simgpu_spin") else {
            panic!("spin spins")
        };
        let spin = spin(&Call {
            buffer: &buffer,
            params,
        })
        .unwrap();
        assert_eq!(
            spin,
            Spin {
                word: memory.base,
                until: Until::NotZero,
                limit: 5000,
                given_up: None
            }
        );
        assert_eq!(spin.is_over(&memory), Ok(false));
        memory.write(memory.base, &[0, 0, 1, 0]).unwrap();
        assert_eq!(spin.is_over(&memory), Ok(true));
    }
}
