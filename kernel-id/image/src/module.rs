// SPDX-License-Identifier: MIT OR Apache-2.0
//! Result of the readers: the kernels and variables of a module.
#![forbid(unsafe_code)]

/// A parameter of a kernel in the parameter buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param {
    /// Offset in the parameter buffer.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
}

/// An entry function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntryFunction {
    /// Symbol, mangled if the source language mangles.
    pub name: String,
    /// Parameters in order of declaration; `None` if the image does not contain them (a stripped
    /// cubin).
    pub params: Option<Vec<Param>>,
    /// Static shared memory of a block, bytes.
    pub shared: u32,
    /// Registers of a thread; 0 if unknown (PTX).
    pub registers: u32,
    /// Stack of a thread, bytes; 0 if unknown.
    pub local: u32,
    /// Largest block the kernel was compiled for; 0 if unknown.
    pub max_threads: u32,
}

impl EntryFunction {
    /// Size of the parameter buffer, bytes.
    pub fn param_bytes(&self) -> u32 {
        let ends = self.params.iter().flatten().map(|p| p.offset.saturating_add(p.size));
        ends.max().unwrap_or(0)
    }
}

/// A variable whose address a client can request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Global {
    /// The symbol.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// First bytes, shorter than `size` and mostly empty; the rest is zero.
    pub initial: Vec<u8>,
    /// Whether it is in constant memory.
    pub constant: bool,
}

/// Kernels and variables of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Module {
    /// Architecture compiled for (80 for sm_80); 0 if unknown.
    pub arch: u32,
    /// Entry functions.
    pub kernels: Vec<EntryFunction>,
    /// Global and constant variables.
    pub globals: Vec<Global>,
}

impl Module {
    /// The kernel of this name.
    pub fn kernel(&self, name: &str) -> Option<&EntryFunction> {
        self.kernels.iter().find(|k| k.name == name)
    }

    /// The variable of this name.
    pub fn global(&self, name: &str) -> Option<&Global> {
        self.globals.iter().find(|g| g.name == name)
    }
}
