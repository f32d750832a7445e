//! The names behind the fast table, and which code they came from.
//!
//! Written when code is loaded, looked up in and unloaded; read at the first launch of an identity.
//! Never while a driver call is under way, so no lock of it is ever held over one.
#![forbid(unsafe_code)]

use std::collections::hash_map::RandomState;
use std::sync::{Arc, LazyLock};

use dashmap::DashMap;
use weft_kernel_id::SymbolKey;

use super::handles::{self, NAMES, UNNAMED};
use super::images::{Kept, Parameter};

/// A kernel's name.
#[derive(Debug, Clone)]
pub struct Named {
    /// Hash of the image its code came from; 0 where unknown.
    pub module: u64,
    /// Its symbol.
    pub symbol: Arc<str>,
    /// Both, hashed.
    pub key: SymbolKey,
    /// The module or library it was looked up in; 0 where unknown.
    code: usize,
    /// The handle is a kernel of a library, not a function of a module.
    pub kernel: bool,
}

/// What kind of handle was named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A CUfunction.
    Function,
    /// A CUkernel.
    Kernel,
}

/// A loaded module or library.
#[derive(Debug, Default)]
struct Code {
    hash: u64,
    /// Where the driver says nothing of kernels' parameters.
    image: Option<Arc<Kept>>,
    /// Handles that end with it: kernels, functions, modules made of a library.
    handles: Vec<usize>,
}

type Map<V> = LazyLock<DashMap<usize, V, RandomState>>;

static FUNCTIONS: Map<Named> = LazyLock::new(DashMap::default);
static CODE: Map<Code> = LazyLock::new(DashMap::default);

/// A module or library was loaded from an image with that hash. A module that is a view of a
/// library ends with it: `of`.
pub fn code_loaded(handle: usize, of: usize, hash: u64) {
    if of != 0 {
        // The same view is handed out again and again.
        if CODE.get(&handle).is_some_and(|code| code.hash == hash) {
            return;
        }
        adopt(of, handle);
    } else {
        // An address that the driver reuses without our having seen the unload.
        code_unloaded(handle);
    }
    let image = CODE.get(&of).and_then(|library| library.image.clone());
    CODE.insert(
        handle,
        Code {
            hash,
            image,
            handles: Vec::new(),
        },
    );
}

/// What is kept of the image that a module or library was loaded from.
pub fn code_kept(handle: usize, image: Arc<Kept>) {
    if let Some(mut code) = CODE.get_mut(&handle) {
        code.image = Some(image);
    }
}

/// A kernel's parameters, as its image tells them where images are kept. May be a driver call of
/// ours: never while a capture is on.
pub fn parameters(handle: usize) -> Option<Vec<Parameter>> {
    let named = named(handle)?;
    let image = CODE.get(&named.code).and_then(|code| code.image.clone());
    // The client came to the handle past us, or by a view.
    let alike = || {
        let mut codes = CODE.iter();
        codes.find_map(|code| code.image.clone().filter(|_| code.hash == named.module))
    };
    let image = image.or_else(|| (named.module != 0).then(alike).flatten())?;
    image.parameters(&named.symbol)
}

/// The hash of the image that a module or library was loaded from; 0 where unknown.
pub fn code_of(handle: usize) -> u64 {
    CODE.get(&handle).map_or(0, |code| code.hash)
}

/// A module or library was unloaded: its handles mean nothing from now on.
pub fn code_unloaded(handle: usize) {
    let mut ending = vec![handle];
    // Views of libraries nest one deep, so this ends; a handle that is no code has no entry.
    while let Some(handle) = ending.pop() {
        if let Some((_, code)) = CODE.remove(&handle) {
            for inner in code.handles {
                NAMES.forget(inner);
                handles::forget_layout(inner);
                FUNCTIONS.remove(&inner);
                ending.push(inner);
            }
        }
    }
}

/// A kernel was looked up by name.
pub fn function_named(handle: usize, kind: Kind, code: usize, module: u64, symbol: &str) -> SymbolKey {
    let key = SymbolKey::new(module, symbol.as_bytes());
    // Clients look the same kernel up again and again, some every step.
    if FUNCTIONS
        .get(&handle)
        .is_some_and(|known| known.key == key && *known.symbol == *symbol)
    {
        return key;
    }
    FUNCTIONS.insert(
        handle,
        Named {
            module,
            symbol: symbol.into(),
            key,
            code,
            kernel: kind == Kind::Kernel,
        },
    );
    adopt(code, handle);
    enter(handle, key);
    key
}

/// Another handle for a kernel that may be known.
pub fn same_function(handle: usize, as_handle: usize) {
    let Some(known) = named(as_handle) else { return };
    if FUNCTIONS.get(&handle).is_some_and(|other| other.key == known.key) {
        return;
    }
    adopt(known.code, handle);
    // The name before the table that launches look into: a launch in between would find an identity
    // that nothing names.
    let key = known.key;
    FUNCTIONS.insert(handle, Named { kernel: false, ..known });
    enter(handle, key);
}

/// The kernels of libraries that have this symbol.
pub fn kernels_named(symbol: &str) -> Vec<usize> {
    let alike = FUNCTIONS
        .iter()
        .filter(|known| known.kernel && *known.symbol == *symbol);
    alike.map(|known| *known.key()).collect()
}

/// The name of a handle.
pub fn named(handle: usize) -> Option<Named> {
    FUNCTIONS.get(&handle).map(|known| known.clone())
}

fn enter(handle: usize, key: SymbolKey) {
    // 0 and 1 mean something else in the table; a key that is one of them (one in 2^63) goes the
    // slow way.
    handles::forget_layout(handle);
    if key.to_word() > UNNAMED {
        NAMES.set(handle, key.to_word());
    }
}

fn adopt(code: usize, handle: usize) {
    if let Some(mut code) = CODE.get_mut(&code)
        && !code.handles.contains(&handle)
    {
        code.handles.push(handle);
    }
}
