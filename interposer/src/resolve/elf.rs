//! Finds a function in the symbol tables of the loaded objects that come after us.
//!
//! This is what `dlsym(RTLD_NEXT, name)` does, for the one case where `dlsym` itself is what we look for. Only what the
//! dynamic linker has mapped and relocated is read, and nothing is allocated.

use std::ffi::{CStr, c_int, c_void};

/// Something of ours, by whose address our own object is known.
static HERE: u8 = 0;

// Tags of the dynamic section (elf.h).
const DT_NULL: i64 = 0;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;

/// STT_FUNC.
const FUNCTION: u8 = 2;

#[repr(C)]
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

/// The first definition after us in the order of loading; if there is none, the first before us.
pub fn after_us(name: &CStr) -> Option<*mut ()> {
    let mut search = Search {
        name,
        passed_us: false,
        after: None,
        before: None,
    };
    let data: *mut Search<'_> = &mut search;
    // SAFETY: the callback gets our pointer back and uses it while `search` is alive.
    unsafe { libc::dl_iterate_phdr(Some(visit), data.cast()) };
    search.after.or(search.before)
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr hands over a valid record.
    let info = unsafe { &*info };
    // SAFETY: `after_us` gave this pointer to a Search that is alive and used by nobody else meanwhile.
    let search = unsafe { &mut *data.cast::<Search<'_>>() };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the record says where its program headers are and how many.
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
    // SAFETY: a loaded object's dynamic section is mapped and ends with DT_NULL.
    let found = unsafe { define(base, dynamic, search.name) };
    if search.passed_us && search.after.is_none() {
        search.after = found;
    } else if !search.passed_us && search.before.is_none() {
        search.before = found;
    }
    c_int::from(search.after.is_some())
}

/// # Safety
/// `dynamic` is the dynamic section of an object loaded at `base`.
unsafe fn define(base: u64, dynamic: *const Dynamic, name: &CStr) -> Option<*mut ()> {
    let (mut texts, mut symbols, mut gnu, mut sysv) = (0u64, 0u64, 0u64, 0u64);
    for at in 0.. {
        // SAFETY: the section ends with DT_NULL, where this loop stops.
        let entry = unsafe { dynamic.add(at) };
        // SAFETY: as above.
        let Dynamic { tag, value } = unsafe { entry.read() };
        // The linker relocates these addresses in place, except in objects whose dynamic section is read-only.
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
    if texts == 0 || symbols == 0 {
        return None;
    }
    let table = Table {
        base,
        texts: texts as *const u8,
        symbols: symbols as *const Symbol,
        name,
    };
    if gnu != 0 {
        // SAFETY: the object's own dynamic section says that its hash table is there.
        return unsafe { table.by_gnu_hash(gnu as *const u32) };
    }
    if sysv != 0 {
        // SAFETY: as above.
        return unsafe { table.by_hash(sysv as *const u32) };
    }
    None
}

struct Table<'a> {
    base: u64,
    texts: *const u8,
    symbols: *const Symbol,
    name: &'a CStr,
}

impl Table<'_> {
    /// The function, if symbol `at` defines it.
    ///
    /// # Safety
    /// `at` is the number of a symbol of this table.
    unsafe fn matching(&self, at: u32) -> Option<*mut ()> {
        // SAFETY: the caller's promise.
        let symbol = unsafe { self.symbols.add(at as usize) };
        // SAFETY: as above.
        let symbol = unsafe { symbol.read() };
        if symbol.section == 0 || symbol.value == 0 || symbol.info & 15 != FUNCTION {
            return None;
        }
        // SAFETY: a symbol's name is a C string in the object's string table.
        let text = unsafe { self.texts.add(symbol.name as usize) };
        // SAFETY: as above.
        let text = unsafe { CStr::from_ptr(text.cast()) };
        (text == self.name).then(|| self.base.wrapping_add(symbol.value) as *mut ())
    }

    /// # Safety
    /// `words` is the GNU hash table of this object.
    unsafe fn by_gnu_hash(&self, words: *const u32) -> Option<*mut ()> {
        let hash = self
            .name
            .to_bytes()
            .iter()
            .fold(5381u32, |h, byte| h.wrapping_mul(33).wrapping_add(u32::from(*byte)));
        // SAFETY: the table starts with four counts; every access below stays inside by the table's own counts.
        let word = |at: usize| unsafe { words.wrapping_add(at).read() };
        let (buckets, first, filters) = (word(0), word(1), word(2));
        if buckets == 0 {
            return None;
        }
        // Filter words have 64 bits here.
        let bucket_at = 4 + 2 * filters as usize;
        let chain_at = bucket_at + buckets as usize;
        let mut at = word(bucket_at + (hash % buckets) as usize);
        if at < first {
            return None;
        }
        loop {
            let value = word(chain_at + (at - first) as usize);
            if value | 1 == hash | 1 {
                // SAFETY: the table speaks of existing symbols only.
                let found = unsafe { self.matching(at) };
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
    /// `words` is the System V hash table of this object.
    unsafe fn by_hash(&self, words: *const u32) -> Option<*mut ()> {
        // SAFETY: the second word counts the symbols.
        let count = unsafe { words.wrapping_add(1).read() };
        // SAFETY: numbers below the count are symbols.
        (0..count).find_map(|at| unsafe { self.matching(at) })
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
    }
}
