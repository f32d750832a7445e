// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names and parameter layouts of kernels by handle, and the code that holds them.
//!
//! Two append-only tables serve launches. The maps behind them change when code is loaded, searched
//! or unloaded. No lock is held during a driver call.
#![forbid(unsafe_code)]

use std::collections::hash_map::RandomState;
use std::sync::{Arc, LazyLock};

use dashmap::DashMap;
use weft_kernel_id::SymbolKey;

use super::images::{KeptImage, Parameter};
use super::index::{Index, Slot};

/// Slots for handles; three quarters are usable. PyTorch with its libraries makes some thousands.
const HANDLE_SLOTS: usize = 65_536;

pub(super) const UNNAMED: u64 = 1;

/// Word of each handle's module and symbol; [`UNNAMED`]; 0: unknown.
static NAMES: Index<HANDLE_SLOTS> = Index::new();

/// Address of each handle's layout, or the mark of `layouts`; 0: unknown.
static LAYOUTS: Index<HANDLE_SLOTS> = Index::new();

#[derive(Debug, Clone)]
pub struct KernelName {
    /// Hash of the image; 0: unknown.
    pub module: u64,
    pub symbol: Arc<str>,
    pub key: SymbolKey,
    /// Module or library of the lookup; 0: unknown.
    code: usize,
    /// Whether the handle is a library kernel.
    pub kernel: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandleKind {
    Function,
    Kernel,
}

#[derive(Debug, Default)]
struct Code {
    hash: u64,
    /// The image, if the driver does not report kernel parameters.
    image: Option<Arc<KeptImage>>,
    /// Handles that end with it.
    handles: Vec<usize>,
}

type Map<V> = LazyLock<DashMap<usize, V, RandomState>>;

static FUNCTIONS: Map<KernelName> = LazyLock::new(DashMap::default);
static CODE: Map<Code> = LazyLock::new(DashMap::default);

/// Notes loaded code by its image's hash. `of`: the library that a module is a view of, and with
/// which the module ends.
pub fn code_loaded(handle: usize, of: usize, hash: u64) {
    if of != 0 {
        // A view is handed out repeatedly.
        if CODE.get(&handle).is_some_and(|code| code.hash == hash) {
            return;
        }
        adopt(of, handle);
    } else {
        // A reused address; weft did not see the unload.
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

pub fn code_kept(handle: usize, image: Arc<KeptImage>) {
    if let Some(mut code) = CODE.get_mut(&handle) {
        code.image = Some(image);
    }
}

/// Parameters from a kernel's image. May call the driver: never during a capture.
pub fn parameters(handle: usize) -> Option<Vec<Parameter>> {
    let named = named(handle)?;
    let image = CODE.get(&named.code).and_then(|code| code.image.clone());
    // The client got the handle without a call that weft saw, or by a view.
    let alike = || {
        let mut codes = CODE.iter();
        codes.find_map(|code| code.image.clone().filter(|_| code.hash == named.module))
    };
    let image = image.or_else(|| (named.module != 0).then(alike).flatten())?;
    image.parameters(&named.symbol)
}

/// Hash of a module's or library's image; 0: unknown.
pub fn code_of(handle: usize) -> u64 {
    CODE.get(&handle).map_or(0, |code| code.hash)
}

/// Forgets an unloaded module or library with its handles.
pub fn code_unloaded(handle: usize) {
    let mut ending = vec![handle];
    // Views nest only one deep, so this ends.
    while let Some(handle) = ending.pop() {
        if let Some((_, code)) = CODE.remove(&handle) {
            for inner in code.handles {
                NAMES.forget(inner);
                forget_layout(inner);
                FUNCTIONS.remove(&inner);
                ending.push(inner);
            }
        }
    }
}

pub fn function_named(handle: usize, kind: HandleKind, code: usize, module: u64, symbol: &str) -> SymbolKey {
    let key = SymbolKey::new(module, symbol.as_bytes());
    // Clients repeat lookups, some at every step.
    if FUNCTIONS
        .get(&handle)
        .is_some_and(|known| known.key == key && *known.symbol == *symbol)
    {
        return key;
    }
    FUNCTIONS.insert(
        handle,
        KernelName {
            module,
            symbol: symbol.into(),
            key,
            code,
            kernel: kind == HandleKind::Kernel,
        },
    );
    adopt(code, handle);
    enter(handle, key);
    key
}

/// Notes another handle of a known kernel.
pub fn same_function(handle: usize, as_handle: usize) {
    let Some(known) = named(as_handle) else { return };
    if FUNCTIONS.get(&handle).is_some_and(|other| other.key == known.key) {
        return;
    }
    adopt(known.code, handle);
    // The name first: a launch in between would find an unnamed identity.
    let key = known.key;
    FUNCTIONS.insert(handle, KernelName { kernel: false, ..known });
    enter(handle, key);
}

pub fn kernels_named(symbol: &str) -> Vec<usize> {
    let alike = FUNCTIONS
        .iter()
        .filter(|known| known.kernel && *known.symbol == *symbol);
    alike.map(|known| *known.key()).collect()
}

pub fn named(handle: usize) -> Option<KernelName> {
    FUNCTIONS.get(&handle).map(|known| known.clone())
}

#[inline(always)]
pub(super) fn named_slot(handle: usize) -> Option<&'static Slot> {
    NAMES.find(handle)
}

/// Notes a handle without a name.
pub(super) fn set_unnamed(handle: usize) {
    NAMES.set(handle, UNNAMED);
}

#[inline]
pub(super) fn layout_slot(handle: usize) -> Option<&'static Slot> {
    LAYOUTS.find(handle)
}

pub(super) fn set_layout(handle: usize, word: u64) {
    LAYOUTS.set(handle, word);
}

fn forget_layout(handle: usize) {
    // The layout leaks, because a launch may be reading it. A model's kernels are unloaded once.
    if LAYOUTS.find(handle).is_some() {
        LAYOUTS.set(handle, 0);
    }
}

fn enter(handle: usize, key: SymbolKey) {
    // Other words are reserved; such a key (one in 2^63) takes the slow path.
    forget_layout(handle);
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
