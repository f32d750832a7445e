// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels and variables of an ELF cubin.
//!
//! A kernel is a function symbol with a section `.text.<name>`. Its static shared memory is the
//! size of `.nv.shared.<name>`, its parameters are in `.nv.info.<name>`. Variables are object
//! symbols in global or constant sections.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use object::read::elf::{ElfFile64, FileHeader as _, SectionHeader as _};
use object::{Endianness, Object as _, ObjectSection as _, ObjectSymbol as _, SymbolFlags, SymbolKind};

use crate::ImageError;
use crate::info::{self, Fact};
use crate::module::{EntryFunction, Global, Module};

/// `STO_CUDA_ENTRY`: bit of a symbol's `st_other` that marks an entry function.
const ENTRY: u8 = 0x10;
/// Bit position of a thread's register count in the `sh_info` of a kernel's code: above the symbol
/// number.
const REGISTERS: u32 = 24;

/// Reads a cubin.
pub fn read(image: &[u8]) -> Result<Module, ImageError> {
    let file = ElfFile64::<Endianness>::parse(image).map_err(|_| ImageError::Malformed("ELF"))?;
    let mut module = Module {
        arch: arch(&file),
        ..Module::default()
    };
    let sections: HashMap<&str, _> = file.sections().filter_map(|s| Some((s.name().ok()?, s))).collect();
    let mut by_symbol: HashMap<u32, usize> = HashMap::new();

    for symbol in file.symbols() {
        let Ok(name) = symbol.name() else { continue };
        if name.is_empty() {
            continue;
        }
        match symbol.kind() {
            SymbolKind::Text => {
                let SymbolFlags::Elf { st_other, .. } = symbol.flags() else {
                    continue;
                };
                let Some(code) = sections.get(format!(".text.{name}").as_str()) else {
                    continue;
                };
                if st_other.0 & ENTRY == 0 {
                    continue;
                }
                let mut kernel = EntryFunction {
                    name: name.to_string(),
                    // The module-wide section replaces it below. Kernels of other assemblers have
                    // it only here.
                    registers: code.elf_section_header().sh_info(file.endian()) >> REGISTERS,
                    ..EntryFunction::default()
                };
                if let Some(shared) = sections.get(format!(".nv.shared.{name}").as_str()) {
                    kernel.shared = u32::try_from(shared.size()).unwrap_or(u32::MAX);
                }
                if let Some(data) = sections
                    .get(format!(".nv.info.{name}").as_str())
                    .and_then(|s| s.data().ok())
                {
                    info::kernel(data, &mut kernel);
                }
                by_symbol.insert(
                    u32::try_from(symbol.index().0).unwrap_or(u32::MAX),
                    module.kernels.len(),
                );
                module.kernels.push(kernel);
            }
            SymbolKind::Data => module.globals.extend(global(&file, name, &symbol)),
            _ => {}
        }
    }

    if let Some(data) = sections.get(".nv.info").and_then(|s| s.data().ok()) {
        for fact in info::module(data) {
            let (Fact::Registers(symbol, _) | Fact::Frame(symbol, _)) = fact;
            let Some(kernel) = by_symbol.get(&symbol).and_then(|n| module.kernels.get_mut(*n)) else {
                continue;
            };
            match fact {
                Fact::Registers(_, count) => kernel.registers = count,
                Fact::Frame(_, bytes) => kernel.local = bytes,
            }
        }
    }
    Ok(module)
}

/// A variable, with its initial value if the file has one.
fn global<'a>(
    file: &ElfFile64<'a, Endianness>,
    name: &str,
    symbol: &object::read::elf::ElfSymbol64<'a, '_, Endianness>,
) -> Option<Global> {
    let section = file.section_by_index(symbol.section_index()?).ok()?;
    let place = section.name().ok()?;
    let constant = place.starts_with(".nv.constant");
    if !constant && !place.starts_with(".nv.global") {
        return None;
    }
    let initial = section.data().ok().and_then(|data| {
        let at = usize::try_from(symbol.address()).ok()?;
        data.get(at..at.checked_add(usize::try_from(symbol.size()).ok()?)?)
    });
    Some(Global {
        name: name.to_string(),
        size: symbol.size(),
        initial: initial.unwrap_or(&[]).to_vec(),
        constant,
    })
}

/// Architecture from the ELF flags: bits 0 to 7; since the CUDA 13 ABI (version 8) bits 8 to 15.
fn arch(file: &ElfFile64<'_, Endianness>) -> u32 {
    let header = file.elf_header();
    let flags = header.e_flags(file.endian()).0;
    match header.e_ident().abi_version {
        8.. => flags >> 8 & 0xff,
        _ => flags & 0xff,
    }
}
