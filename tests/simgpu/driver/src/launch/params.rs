// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel parameters: as the client gives them, and as a copy in one buffer.
#![forbid(unsafe_code)]

use crate::abi::{Error, In, R};
use crate::module::function::Function;

/// `CU_LAUNCH_PARAM_BUFFER_POINTER` and `CU_LAUNCH_PARAM_BUFFER_SIZE`.
const BUFFER_POINTER: usize = 1;
const BUFFER_SIZE: usize = 2;

/// Parameters as the client gives them; their pointers are valid only during the client's call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum GivenParams {
    /// An address for each parameter.
    Each(In<usize>),
    /// All in one buffer, with its size in bytes.
    Buffer(In<u8>, usize),
    /// None.
    Nothing,
}

impl GivenParams {
    /// From the two arguments of `cuLaunchKernel`.
    pub(crate) fn new(each: In<usize>, extra: In<usize>) -> R<GivenParams> {
        if !each.is_null() {
            return Ok(GivenParams::Each(each));
        }
        if extra.is_null() {
            return Ok(GivenParams::Nothing);
        }
        let (mut buffer, mut size) = (0, 0);
        let mut at = 0;
        loop {
            let (key, value) = (extra.at(at).get()?, extra.at(at + 1));
            match key {
                0 => break,
                BUFFER_POINTER => buffer = value.get()?,
                BUFFER_SIZE => size = In::<usize>::from_address(value.get()?).get()?,
                _ => return Err(Error::INVALID_VALUE),
            }
            at += 2;
        }
        if buffer == 0 {
            Ok(GivenParams::Nothing)
        } else {
            Ok(GivenParams::Buffer(In::from_address(buffer), size))
        }
    }

    /// Copies them, as far as the image describes them.
    pub(crate) fn pack(self, function: &Function) -> R<Params> {
        match self {
            GivenParams::Nothing => Ok(Params::default()),
            GivenParams::Buffer(bytes, size) => Ok(Params {
                buffer: bytes.bytes(size)?,
            }),
            GivenParams::Each(each) => {
                let mut buffer = vec![0; function.param_bytes()];
                for (at, param) in function.params().iter().enumerate() {
                    let address = each.at(at).get()?;
                    let bytes = In::<u8>::from_address(address).bytes(param.size as usize)?;
                    let place = buffer
                        .get_mut(param.offset as usize..)
                        .and_then(|rest| rest.get_mut(..bytes.len()));
                    place.ok_or(Error::INVALID_VALUE)?.copy_from_slice(&bytes);
                }
                Ok(Params { buffer })
            }
        }
    }
}

/// A launch's own copy of its parameters. The function has the place of each (`Function::params`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Params {
    /// The parameter buffer.
    pub(crate) buffer: Vec<u8>,
}
