// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds tiny images field by field, so that the tests check the readers against the layout and
//! not against themselves.
#![allow(dead_code)] // each test file takes what it needs

/// A section of an ELF file being built.
struct Section {
    name: String,
    kind: u32,
    data: Vec<u8>,
    size: u64,
    link: u32,
    info: u32,
    entry: u64,
}

/// A symbol: name, info (binding and type), other, section index, value, size.
type Symbol = (String, u8, u8, u16, u64, u64);

/// A cubin under construction.
#[derive(Default)]
pub struct Cubin {
    sections: Vec<Section>,
    symbols: Vec<Symbol>,
    module_info: Vec<u8>,
    flags: u32,
    abi: u8,
}

impl Cubin {
    /// A cubin with these `e_flags` and this `e_ident[EI_ABIVERSION]`.
    pub fn new(flags: u32, abi: u8) -> Cubin {
        Cubin {
            flags,
            abi,
            ..Cubin::default()
        }
    }

    fn section(&mut self, name: &str, kind: u32, data: Vec<u8>, size: u64) -> u16 {
        self.sections.push(Section {
            name: name.to_string(),
            kind,
            data,
            size,
            link: 0,
            // First non-local symbol, for the symbol table; harmless elsewhere.
            info: 1,
            entry: 0,
        });
        u16::try_from(self.sections.len()).unwrap()
    }

    /// A kernel: parameters as (offset, size), shared memory and registers.
    pub fn kernel(mut self, name: &str, params: &[(u16, u32)], shared: u64, registers: u32) -> Self {
        let text = self.section(&format!(".text.{name}"), 1, vec![0; 16], 16);
        let mut info = Vec::new();
        for (ordinal, (offset, size)) in params.iter().enumerate().rev() {
            info.extend([4, 0x17]);
            info.extend(12u16.to_le_bytes());
            info.extend(0u32.to_le_bytes());
            info.extend(u16::try_from(ordinal).unwrap().to_le_bytes());
            info.extend(offset.to_le_bytes());
            info.extend((size << 18 | 0x1f000).to_le_bytes());
        }
        info.extend([3, 0x19, 0, 0]); // size of the parameters in the bank: passed over
        info.extend([4, 0x05]);
        info.extend(12u16.to_le_bytes());
        for side in [8u32, 4, 2] {
            info.extend(side.to_le_bytes());
        }
        let bytes = info.len() as u64;
        self.section(&format!(".nv.info.{name}"), 0x7000_0000, info, bytes);
        if shared > 0 {
            self.section(&format!(".nv.shared.{name}"), 8, Vec::new(), shared);
        }
        self.symbols.push((name.to_string(), 0x12, 0x10, text, 0, 16));
        let symbol = u32::try_from(self.symbols.len()).unwrap();
        self.module_info.extend([4, 0x2f]);
        self.module_info.extend(8u16.to_le_bytes());
        self.module_info.extend(symbol.to_le_bytes());
        self.module_info.extend(registers.to_le_bytes());
        self
    }

    /// A kernel whose registers are only in its code's `sh_info`, above the symbol number.
    pub fn kernel_of_another_assembler(mut self, name: &str, registers: u32) -> Self {
        let text = self.section(&format!(".text.{name}"), 1, vec![0; 16], 16);
        self.symbols.push((name.to_string(), 0x12, 0x10, text, 0, 16));
        let symbol = u32::try_from(self.symbols.len()).unwrap();
        self.sections.last_mut().unwrap().info = registers << 24 | symbol;
        self
    }

    /// A function that is not an entry.
    pub fn device_function(mut self, name: &str) -> Self {
        let text = self.section(&format!(".text.{name}"), 1, vec![0; 16], 16);
        self.symbols.push((name.to_string(), 0x12, 0, text, 0, 16));
        self
    }

    /// Variables of one section, as (name, offset, size).
    pub fn variables(mut self, section: &str, data: Vec<u8>, names: &[(&str, u64, u64)]) -> Self {
        let size = data.len() as u64;
        let index = self.section(section, 1, data, size);
        for (name, at, size) in names {
            self.symbols.push((name.to_string(), 0x11, 0, index, *at, *size));
        }
        self
    }

    /// The file: header, section data, section table.
    pub fn build(mut self) -> Vec<u8> {
        let info = std::mem::take(&mut self.module_info);
        let size = info.len() as u64;
        self.section(".nv.info", 0x7000_0000, info, size);
        let mut strings = vec![0u8];
        let mut table = vec![0u8; 24];
        for (name, info, other, section, value, size) in &self.symbols {
            table.extend(u32::try_from(strings.len()).unwrap().to_le_bytes());
            strings.extend(name.bytes().chain([0]));
            table.extend([*info, *other]);
            table.extend(section.to_le_bytes());
            table.extend(value.to_le_bytes());
            table.extend(size.to_le_bytes());
        }
        let (length, bytes) = (strings.len() as u64, table.len() as u64);
        let strtab = self.section(".strtab", 3, strings, length);
        self.section(".symtab", 2, table, bytes);
        let symtab = self.sections.last_mut().unwrap();
        (symtab.link, symtab.entry) = (strtab.into(), 24);
        let mut names = vec![0u8];
        let mut offsets = Vec::new();
        for section in &self.sections {
            offsets.push(u32::try_from(names.len()).unwrap());
            names.extend(section.name.bytes().chain([0]));
        }
        offsets.push(u32::try_from(names.len()).unwrap());
        names.extend(b".shstrtab\0");
        let length = names.len() as u64;
        let shstrtab = self.section(".shstrtab", 3, names, length);

        let mut file = vec![0u8; 64];
        let mut headers = vec![0u8; 64];
        for (section, name) in self.sections.iter().zip(offsets) {
            let offset = file.len() as u64;
            file.extend(&section.data);
            file.resize(file.len().next_multiple_of(8), 0);
            headers.extend(name.to_le_bytes());
            headers.extend(section.kind.to_le_bytes());
            for field in [0u64, 0, offset, section.size] {
                headers.extend(field.to_le_bytes());
            }
            headers.extend(section.link.to_le_bytes());
            headers.extend(section.info.to_le_bytes());
            headers.extend(8u64.to_le_bytes());
            headers.extend(section.entry.to_le_bytes());
        }
        let shoff = file.len() as u64;
        file.extend(headers);
        file[..16].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0x41, self.abi, 0, 0, 0, 0, 0, 0, 0]);
        file[16..18].copy_from_slice(&2u16.to_le_bytes());
        file[18..20].copy_from_slice(&190u16.to_le_bytes());
        file[20..24].copy_from_slice(&1u32.to_le_bytes());
        file[40..48].copy_from_slice(&shoff.to_le_bytes());
        file[48..52].copy_from_slice(&self.flags.to_le_bytes());
        file[52..54].copy_from_slice(&64u16.to_le_bytes());
        file[58..60].copy_from_slice(&64u16.to_le_bytes());
        file[60..62].copy_from_slice(&(shstrtab + 1).to_le_bytes());
        file[62..64].copy_from_slice(&shstrtab.to_le_bytes());
        file
    }
}

/// Compression of a fatbin entry.
pub enum Packing {
    Plain,
    Lz4,
    Zstd,
}

/// A container of (kind, architecture, payload, packing).
pub fn fatbin(entries: &[(u16, u32, &[u8], Packing)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (kind, arch, code, packing) in entries {
        let (flags, payload) = match packing {
            Packing::Plain => (0x11u64, code.to_vec()),
            Packing::Lz4 => (0x2011, lz4_literals(code)),
            Packing::Zstd => (
                0x8011,
                ruzstd::encoding::compress_to_vec(*code, ruzstd::encoding::CompressionLevel::Fastest),
            ),
        };
        let padded = payload.len().next_multiple_of(8);
        let packed = if matches!(packing, Packing::Plain) {
            0
        } else {
            payload.len()
        };
        body.extend(kind.to_le_bytes());
        body.extend([1, 1]);
        body.extend(64u32.to_le_bytes());
        body.extend((padded as u64).to_le_bytes());
        body.extend(u32::try_from(packed).unwrap().to_le_bytes());
        body.extend([0; 8]);
        body.extend(arch.to_le_bytes());
        body.extend([0; 8]);
        body.extend(flags.to_le_bytes());
        body.extend([0; 8]);
        body.extend(if packed == 0 { 0 } else { code.len() as u64 }.to_le_bytes());
        body.extend(&payload);
        body.resize(body.len() + padded - payload.len(), 0);
    }
    let mut file = 0xba55_ed50u32.to_le_bytes().to_vec();
    file.extend([1, 0, 16, 0]);
    file.extend((body.len() as u64).to_le_bytes());
    file.extend(body);
    file
}

/// One LZ4 sequence with only literals.
pub fn lz4_literals(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    if bytes.len() < 15 {
        out.push(u8::try_from(bytes.len()).unwrap() << 4);
    } else {
        out.push(0xf0);
        let mut rest = bytes.len() - 15;
        while rest >= 255 {
            out.push(255);
            rest -= 255;
        }
        out.push(u8::try_from(rest).unwrap());
    }
    out.extend(bytes);
    out
}
