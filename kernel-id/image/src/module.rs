//! What a reader hands back: the kernels and variables of one module.
#![forbid(unsafe_code)]

/// One parameter of a kernel, as it lies in the parameter buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param {
    /// Offset in the parameter buffer.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
}

/// One entry function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kernel {
    /// The symbol, mangled where the source language mangles.
    pub name: String,
    /// Parameters in order of declaration, `None` where the image does not say (a stripped cubin).
    pub params: Option<Vec<Param>>,
    /// Bytes of static shared memory of one block.
    pub shared: u32,
    /// Registers of one thread; 0 where the image does not say (PTX).
    pub registers: u32,
    /// Bytes of stack of one thread; 0 where the image does not say.
    pub local: u32,
    /// Largest block the kernel was compiled for; 0 where it names none.
    pub max_threads: u32,
}

impl Kernel {
    /// Size of the whole parameter buffer.
    pub fn param_bytes(&self) -> u32 {
        let ends = self.params.iter().flatten().map(|p| p.offset.saturating_add(p.size));
        ends.max().unwrap_or(0)
    }
}

/// One variable that a client can ask the address of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Global {
    /// The symbol.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// First bytes; shorter than `size`, and empty most often: the rest is zero.
    pub initial: Vec<u8>,
    /// Whether it lies in constant memory.
    pub constant: bool,
}

/// The kernels and variables of one image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Module {
    /// Architecture compiled for (80 for sm_80); 0 where unknown.
    pub arch: u32,
    /// Entry functions.
    pub kernels: Vec<Kernel>,
    /// Global and constant variables.
    pub globals: Vec<Global>,
}

impl Module {
    /// The kernel of this name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|k| k.name == name)
    }

    /// The variable of this name.
    pub fn global(&self, name: &str) -> Option<&Global> {
        self.globals.iter().find(|g| g.name == name)
    }
}
