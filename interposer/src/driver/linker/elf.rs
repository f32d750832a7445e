// SPDX-License-Identifier: MIT OR Apache-2.0
//! Symbol tables of loaded objects.
//!
//! [`after_us`] replaces `dlsym(RTLD_NEXT, name)`, so that it can find `dlsym` itself; it allocates
//! nothing. Only memory that the dynamic linker mapped and relocated is read.

use std::ffi::{CStr, c_char, c_int, c_void};

/// Marks this object by its address.
static HERE: u8 = 0;

// Tags of the dynamic section (elf.h).
const DT_NULL: i64 = 0;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;

const FUNCTION: u8 = 2;

#[repr(C)]
#[derive(Debug)]
struct Dynamic {
    tag: i64,
    value: u64,
}

#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

struct Search<'a> {
    name: &'a CStr,
    passed_us: bool,
    after: Option<*mut ()>,
    before: Option<*mut ()>,
}

/// The first definition after this object in load order, else the first one before it.
pub fn after_us(name: &CStr) -> Option<*mut ()> {
    let mut search = Search {
        name,
        passed_us: false,
        after: None,
        before: None,
    };
    let data: *mut Search<'_> = &mut search;
    // SAFETY: the callback uses the pointer only while `search` is alive.
    unsafe { libc::dl_iterate_phdr(Some(visit), data.cast()) };
    search.after.or(search.before)
}

/// The debugger's part of glibc's `struct link_map`. A handle of `dlopen` is the address of one.
#[repr(C)]
#[derive(Debug)]
pub struct LinkMap {
    base: u64,
    name: *const c_char,
    dynamic: *const Dynamic,
    next: *const LinkMap,
}

impl LinkMap {
    pub fn path(&self) -> &CStr {
        if self.name.is_null() {
            return c"";
        }
        // SAFETY: a C string while the object is loaded.
        unsafe { CStr::from_ptr(self.name) }
    }

    pub fn is_ours(&self) -> bool {
        self.dynamic == &raw const _DYNAMIC
    }

    pub fn defines(&self, name: &CStr) -> bool {
        // SAFETY: the address of the dynamic section is from the linker's record.
        unsafe { define(self.base, self.dynamic, name) }.is_some()
    }
}

/// The first answer of `ask` over the loaded objects of all namespaces. Nothing may be loaded or
/// unloaded meanwhile.
pub fn all<T>(ask: impl Fn(&LinkMap) -> Option<T>) -> Option<T> {
    let mut namespace = &raw const _r_debug;
    loop {
        // SAFETY: null, or the linker's record, which lives as long as the process.
        let debug = unsafe { namespace.as_ref() }?;
        let mut at = debug.first;
        // SAFETY: null, or an object that is loaded.
        while let Some(map) = unsafe { at.as_ref() } {
            let answer = ask(map);
            if answer.is_some() {
                return answer;
            }
            at = map.next;
        }
        // Older versions have none.
        namespace = if debug.version >= 2 {
            debug.more
        } else {
            std::ptr::null()
        };
    }
}

/// Head of the linker's list (`struct r_debug`); from version 2 it links to the next namespace.
#[repr(C)]
struct Debug {
    version: c_int,
    first: *const LinkMap,
    changed: u64,
    state: c_int,
    linker: u64,
    more: *const Debug,
}

unsafe extern "C" {
    static _r_debug: Debug;
    static _DYNAMIC: Dynamic;
}

/// [`after_us`] without the dynamic linker's lock. Another thread, or a thread lost in a fork, may
/// hold that lock forever. Searches the objects loaded at program start, which are never unloaded.
pub fn after_us_at_once(name: &CStr) -> Option<*mut ()> {
    // SAFETY: the linker's record, which lives as long as the process.
    let mut at = unsafe { _r_debug.first };
    let mut passed_us = false;
    loop {
        // SAFETY: null, or an object that is never unloaded.
        let map = unsafe { at.as_ref() }?;
        if passed_us {
            // SAFETY: the address of the dynamic section is from the linker's record.
            let found = unsafe { define(map.base, map.dynamic, name) };
            if found.is_some() {
                return found;
            }
        }
        passed_us |= map.is_ours();
        at = map.next;
    }
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: a valid record.
    let info = unsafe { &*info };
    // SAFETY: `after_us`'s live Search, which nothing else uses meanwhile.
    let search = unsafe { &mut *data.cast::<Search<'_>>() };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: place and number of the program headers.
    let segments = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let base = info.dlpi_addr;
    let here = (&raw const HERE) as u64;
    let holds_us = segments.iter().any(|segment| {
        let start = base.wrapping_add(segment.p_vaddr);
        segment.p_type == libc::PT_LOAD && (start..start.wrapping_add(segment.p_memsz)).contains(&here)
    });
    if holds_us {
        search.passed_us = true;
        return 0;
    }
    let dynamic = segments.iter().find(|segment| segment.p_type == libc::PT_DYNAMIC);
    let Some(dynamic) = dynamic else { return 0 };
    let dynamic = base.wrapping_add(dynamic.p_vaddr) as *const Dynamic;
    // SAFETY: mapped, and ends with DT_NULL.
    let find = |name| unsafe { define(base, dynamic, name) };
    // Another copy of weft would lead back to itself.
    let found = find(search.name).filter(|_| find(super::ourselves::MARK).is_none());
    if search.passed_us && search.after.is_none() {
        search.after = found;
    } else if !search.passed_us && search.before.is_none() {
        search.before = found;
    }
    c_int::from(search.after.is_some())
}

/// # Safety
/// `dynamic` is of an object loaded at `base`.
unsafe fn define(base: u64, dynamic: *const Dynamic, name: &CStr) -> Option<*mut ()> {
    // SAFETY: the caller's promise.
    let table = unsafe { SymbolTable::of(base, dynamic) }?;
    if !table.gnu.is_null() {
        // SAFETY: the dynamic section gives this hash table.
        return unsafe { table.by_gnu_hash(name) };
    }
    if !table.sysv.is_null() {
        // SAFETY: as above.
        return unsafe { table.by_hash(name) };
    }
    None
}

/// Names of the functions that an object defines.
///
/// # Safety
/// `handle` is an open one of `dlopen`.
pub unsafe fn functions(handle: *mut c_void) -> Vec<String> {
    if handle.is_null() {
        return Vec::new();
    }
    // SAFETY: an open handle; glibc's point to this structure.
    let map = unsafe { &*handle.cast::<LinkMap>() };
    // SAFETY: the linker's record of the object.
    let Some(table) = (unsafe { SymbolTable::of(map.base, map.dynamic) }) else {
        return Vec::new();
    };
    // SAFETY: the table is of a loaded object.
    let count = unsafe { table.count() };
    // SAFETY: numbers below the count are symbols.
    let names = (0..count).filter_map(|at| unsafe { table.function(at) });
    names.map(|(name, _)| name.to_string_lossy().into_owned()).collect()
}

struct SymbolTable {
    base: u64,
    texts: *const u8,
    symbols: *const Symbol,
    gnu: *const u32,
    sysv: *const u32,
}

impl SymbolTable {
    /// # Safety
    /// `dynamic` is of an object loaded at `base`.
    unsafe fn of(base: u64, dynamic: *const Dynamic) -> Option<SymbolTable> {
        let (mut texts, mut symbols, mut gnu, mut sysv) = (0u64, 0u64, 0u64, 0u64);
        for at in 0.. {
            // SAFETY: this loop stops at the section's end, DT_NULL.
            let Dynamic { tag, value } = unsafe { dynamic.wrapping_add(at).read() };
            // The linker relocates addresses in place, except in a read-only section.
            let address = if value < base { base.wrapping_add(value) } else { value };
            match tag {
                DT_NULL => break,
                DT_STRTAB => texts = address,
                DT_SYMTAB => symbols = address,
                DT_GNU_HASH => gnu = address,
                DT_HASH => sysv = address,
                _ => {}
            }
        }
        (texts != 0 && symbols != 0).then_some(SymbolTable {
            base,
            texts: texts as *const u8,
            symbols: symbols as *const Symbol,
            gnu: gnu as *const u32,
            sysv: sysv as *const u32,
        })
    }

    /// Name and address of the function that symbol `at` defines.
    ///
    /// # Safety
    /// The table has a symbol `at`.
    unsafe fn function(&self, at: u32) -> Option<(&CStr, *mut ())> {
        // SAFETY: the caller's promise.
        let symbol = unsafe { self.symbols.wrapping_add(at as usize).read() };
        if symbol.section == 0 || symbol.value == 0 || symbol.info & 15 != FUNCTION {
            return None;
        }
        let text = self.texts.wrapping_add(symbol.name as usize);
        // SAFETY: a C string in the object's string table.
        let text = unsafe { CStr::from_ptr(text.cast()) };
        Some((text, self.base.wrapping_add(symbol.value) as *mut ()))
    }

    /// # Safety
    /// The table has a symbol `at`.
    unsafe fn matching(&self, at: u32, name: &CStr) -> Option<*mut ()> {
        // SAFETY: the caller's promise.
        let (text, address) = unsafe { self.function(at) }?;
        (text == name).then_some(address)
    }

    /// # Safety
    /// The object is loaded and has a GNU hash table.
    unsafe fn by_gnu_hash(&self, name: &CStr) -> Option<*mut ()> {
        let hash = name
            .to_bytes()
            .iter()
            .fold(5381u32, |h, byte| h.wrapping_mul(33).wrapping_add(u32::from(*byte)));
        // SAFETY: four counts at the start bound every access below.
        let word = |at: usize| unsafe { self.gnu.wrapping_add(at).read() };
        let (buckets, first, filters) = (word(0), word(1), word(2));
        if buckets == 0 {
            return None;
        }
        // Filter words have 64 bits.
        let bucket_at = 4 + 2 * filters as usize;
        let chain_at = bucket_at + buckets as usize;
        let mut at = word(bucket_at + (hash % buckets) as usize);
        if at < first {
            return None;
        }
        loop {
            let value = word(chain_at + (at - first) as usize);
            if value | 1 == hash | 1 {
                // SAFETY: the table names existing symbols only.
                let found = unsafe { self.matching(at, name) };
                if found.is_some() {
                    return found;
                }
            }
            if value & 1 == 1 {
                return None;
            }
            at += 1;
        }
    }

    /// # Safety
    /// The object is loaded and has a System V hash table.
    unsafe fn by_hash(&self, name: &CStr) -> Option<*mut ()> {
        // SAFETY: the caller's promise.
        let count = unsafe { self.count() };
        // SAFETY: numbers below the count are symbols.
        (0..count).find_map(|at| unsafe { self.matching(at, name) })
    }

    /// Number of symbols. In a GNU hash table it follows from the last chain.
    ///
    /// # Safety
    /// The object is loaded.
    unsafe fn count(&self) -> u32 {
        if !self.sysv.is_null() {
            // SAFETY: the second word counts the symbols.
            return unsafe { self.sysv.wrapping_add(1).read() };
        }
        if self.gnu.is_null() {
            return 0;
        }
        // SAFETY: as in `by_gnu_hash`.
        let word = |at: usize| unsafe { self.gnu.wrapping_add(at).read() };
        let (buckets, first, filters) = (word(0), word(1), word(2));
        let bucket_at = 4 + 2 * filters as usize;
        let chain_at = bucket_at + buckets as usize;
        let mut last = (0..buckets as usize)
            .map(|bucket| word(bucket_at + bucket))
            .max()
            .unwrap_or(0);
        if last < first {
            return first;
        }
        while word(chain_at + (last - first) as usize) & 1 == 0 {
            last += 1;
        }
        last + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_dlsym_is_libc_s() {
        let found = after_us(c"dlsym").expect("libc has dlsym");
        type Dlsym = unsafe extern "C" fn(*mut c_void, *const std::ffi::c_char) -> *mut c_void;
        // SAFETY: a function of that name has that type.
        let dlsym = unsafe { std::mem::transmute::<*mut (), Dlsym>(found) };
        // SAFETY: RTLD_DEFAULT and a C string are valid arguments.
        let getpid = unsafe { dlsym(libc::RTLD_DEFAULT, c"getpid".as_ptr()) };
        assert_eq!(getpid as usize, libc::getpid as *const () as usize);
        assert!(after_us(c"weft has no such function").is_none());
        assert_eq!(after_us_at_once(c"dlsym"), Some(found));
        assert!(after_us_at_once(c"weft has no such function").is_none());
    }

    #[test]
    fn an_object_s_functions_are_listed() {
        // SAFETY: a C string and valid flags.
        let libc = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOW) };
        // SAFETY: just opened.
        let names = unsafe { functions(libc) };
        assert!(names.len() > 1000, "{}", names.len());
        for name in ["getpid", "fopen", "strlen", "dlsym"] {
            // strlen is resolved at load time, so it is not a plain function.
            assert_eq!(names.iter().any(|other| other == name), name != "strlen", "{name}");
        }
        // SAFETY: null is allowed.
        assert!(unsafe { functions(std::ptr::null_mut()) }.is_empty());
    }
}
