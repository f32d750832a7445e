// SPDX-License-Identifier: MIT OR Apache-2.0
//! Generates code from the symbol table: the table as data, and an export with a slot per symbol.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

use weft_symbols::{Class, Entry, Flavour, QueueRule};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut table = weft_symbols::table()?;
    let beyond = weft_symbols::beyond()?;
    table.extend(
        beyond
            .iter()
            .filter(|known| known.exported)
            .map(|known| passed_on(known.name)),
    );
    table.sort_by_key(|entry| entry.symbol);
    let mut out = String::new();
    let count = table.len();
    writeln!(
        out,
        "/// How many symbols the table has.\npub const COUNT: usize = {count};"
    )?;
    writeln!(out, "/// The CUDA version of the header the table was made from.")?;
    writeln!(
        out,
        "pub const HEADER_VERSION: u32 = {};",
        weft_symbols::header_version()
    )?;

    let passed = beyond.iter().filter(|known| !known.exported);
    let passed: Vec<(&str, bool)> = passed.map(|known| (known.name, known.prefix)).collect();
    writeln!(
        out,
        "/// Names that a driver exports, no header declares and nothing of ours stands for; true: all that begin so.\npub const PASSED: [(&str, bool); {}] = {passed:?};",
        passed.len()
    )?;

    writeln!(
        out,
        "/// Every symbol's number.\n#[allow(non_upper_case_globals, dead_code, missing_docs)]\npub mod index {{"
    )?;
    for (at, entry) in table.iter().enumerate() {
        writeln!(out, "pub const {}: usize = {at};", entry.symbol)?;
    }
    writeln!(out, "}}")?;

    // By name, so that a hook reads its own rule in a const.
    writeln!(
        out,
        "/// What each symbol does about deferred launches.\n#[allow(non_upper_case_globals, dead_code, missing_docs)]\npub mod queue_rule {{\nuse weft_symbols::QueueRule;"
    )?;
    for entry in &table {
        writeln!(
            out,
            "pub const {}: QueueRule = QueueRule::{:?};",
            entry.symbol, entry.queue
        )?;
    }
    writeln!(out, "}}")?;
    writeln!(
        out,
        "/// How many arguments each symbol has.\n#[allow(non_upper_case_globals, dead_code, missing_docs)]\npub mod argument_count {{"
    )?;
    for entry in &table {
        writeln!(out, "pub const {}: u8 = {};", entry.symbol, entry.args)?;
    }
    writeln!(out, "}}")?;

    writeln!(
        out,
        "/// The table, sorted by symbol.\npub static ENTRIES: [Entry; COUNT] = ["
    )?;
    for entry in &table {
        let per_thread = entry.flavour != Flavour::Plain;
        let position = |at: Option<u8>| at.map_or(255, u32::from);
        writeln!(
            out,
            "Entry {{ symbol: c\"{}\", base: \"{}\", since: {}, per_thread: {per_thread}, class: Class::{:?}, args: {}, \
             stream: {}, size: {}, queue: QueueRule::{:?}, op: {}, moves: {} }},",
            entry.symbol,
            entry.base,
            entry.since,
            entry.class,
            entry.args,
            position(entry.stream),
            position(entry.size),
            entry.queue,
            op(entry),
            moves(entry),
        )?;
    }
    writeln!(out, "];")?;

    // Sorted by base name, for binary search.
    let mut by_base: Vec<usize> = (0..count).collect();
    by_base.sort_by_key(|&at| (table[at].base, table[at].since, table[at].symbol));
    writeln!(out, "/// Numbers of the symbols, sorted by base name and version.")?;
    writeln!(out, "pub static BY_BASE: [u16; COUNT] = {by_base:?};")?;

    let folder = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(folder.join("symbols.rs"), std::mem::take(&mut out))?;

    let processor = Processor::of_target()?;
    // The exports. Naked functions, because rustc's version script hides what `global_asm!`
    // defines.
    writeln!(
        out,
        "/// The exported entry points.\n#[allow(non_snake_case, missing_docs)]\nmod entry_points {{"
    )?;
    for (at, entry) in table.iter().enumerate() {
        writeln!(
            out,
            "#[unsafe(naked)] #[cfg_attr(not(test), unsafe(no_mangle))] pub unsafe extern \"C\" fn {}() {{ \
             std::arch::naked_asm!({}, slots = sym super::SLOTS, at = const {}) }}",
            entry.symbol,
            processor.export(),
            8 * at
        )?;
    }
    writeln!(out, "}}")?;
    writeln!(
        out,
        "/// Addresses of the exported entry points.\npub static EXPORTS: [unsafe extern \"C\" fn(); COUNT] = ["
    )?;
    for entry in &table {
        writeln!(out, "entry_points::{},", entry.symbol)?;
    }
    writeln!(out, "];")?;

    // Four runs of stubs of exactly 16 bytes each: load the symbol's number, jump to the common
    // code.
    for (name, target, what) in [
        (
            "bind_stubs",
            "super::binder",
            "Where a slot points before its symbol's first call.",
        ),
        (
            "ordered_stubs",
            "super::ordered_gate",
            "Where a slot points whose symbol puts something on a stream.",
        ),
        (
            "queue_stubs",
            "super::queue_gate",
            "Where a slot points whose symbol must not overtake launches in the queue.",
        ),
        (
            "counted_stubs",
            "super::counted_gate",
            "Where a slot points whose calls are counted, in jobs with movable memory.",
        ),
    ] {
        writeln!(
            out,
            "/// {what}\npub mod {name} {{\n/// All of them.\n///\n/// # Safety\n/// Not to be called: stubs are jumped to.\n#[unsafe(naked)]\npub unsafe extern \"C\" fn run() {{ std::arch::naked_asm!("
        )?;
        for at in 0..count {
            writeln!(out, "{},", processor.stub(at))?;
        }
        writeln!(out, "target = sym {target}) }}\n}}")?;
    }
    writeln!(
        out,
        "/// What each exported entry point jumps to.\npub static SLOTS: [AtomicPtr<()>; COUNT] = ["
    )?;
    for at in 0..count {
        writeln!(out, "stub(bind_stubs::run, {at}),")?;
    }
    writeln!(out, "];")?;

    fs::write(folder.join("exports.rs"), out)?;

    // SONAME: `dlopen("libcuda.so.1")` finds weft. -Bsymbolic: weft's references to its own names
    // stay its own. nodelete: closing a handle must not unload running code. RPATH, the old kind,
    // precedes LD_LIBRARY_PATH: the driver's bare name, opened from here, leads to weft
    // (`lookup/open.rs`).
    for option in [
        "-soname,libcuda.so.1",
        "--disable-new-dtags,-rpath,$ORIGIN/lib",
        "-Bsymbolic",
        "-z,now",
        "-z,relro",
        "-z,nodelete",
    ] {
        println!("cargo::rustc-cdylib-link-arg=-Wl,{option}");
    }
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}

/// A kind of processor.
#[derive(Clone, Copy)]
enum Processor {
    X86_64,
    AArch64,
}

impl Processor {
    fn of_target() -> Result<Processor, Box<dyn std::error::Error>> {
        match env::var("CARGO_CFG_TARGET_ARCH")?.as_str() {
            "x86_64" => Ok(Processor::X86_64),
            "aarch64" => Ok(Processor::AArch64),
            other => Err(format!("no machine code for {other}").into()),
        }
    }

    /// An export: the jump through the slot at `{slots} + {at}`.
    fn export(self) -> &'static str {
        match self {
            Processor::X86_64 => r#""jmp qword ptr [rip + {slots} + {at}]""#,
            Processor::AArch64 => r#""adrp x16, {slots} + {at}", "ldr x16, [x16, :lo12:{slots} + {at}]", "br x16""#,
        }
    }

    /// A stub of exactly 16 bytes: it loads the symbol's number and jumps to `{target}`.
    fn stub(self, at: usize) -> String {
        match self {
            Processor::X86_64 => format!(
                r#"".byte 0x41, 0xbb", ".long {at}", ".byte 0xe9", ".long {{target}} - . - 4", ".byte 0xcc, 0xcc, 0xcc, 0xcc, 0xcc""#
            ),
            Processor::AArch64 => format!(r#""mov w17, #{at}", "b {{target}}", "brk #0", "brk #0""#),
        }
    }
}

/// An export that only jumps to the driver. `cuGetProcAddress` has no version of it: answers match
/// only by address.
fn passed_on(name: &'static str) -> Entry<'static> {
    Entry {
        symbol: name,
        base: name,
        since: u32::MAX,
        flavour: Flavour::Plain,
        class: Class::Tools,
        args: 0,
        stream: None,
        size: None,
        queue: QueueRule::Empties,
    }
}

/// Stream-ordered kind of an entry, in the form that the session takes.
fn op(entry: &Entry<'_>) -> &'static str {
    let named = |parts: [&str; 2]| parts.iter().any(|part| entry.base.contains(part));
    match entry.class {
        Class::Copy if named(["HtoD", "HtoA"]) => "StreamOp::CopyToDevice",
        Class::Copy if named(["DtoH", "AtoH"]) => "StreamOp::CopyToHost",
        Class::Copy => "StreamOp::CopyOnDevice",
        Class::Memset => "StreamOp::Memset",
        Class::Event => "StreamOp::EventRecord",
        Class::Wait => "StreamOp::EventWait",
        _ => "StreamOp::Other",
    }
}

/// Place of the amount that a copy or fill moves, in the call's arguments.
fn moves(entry: &Entry<'_>) -> String {
    // Bytes per element of a fill, from its name.
    let unit = match entry.base {
        base if entry.class != Class::Memset || base.contains("D8") => 1,
        base if base.contains("D16") => 2,
        _ => 4,
    };
    match (entry.class, entry.size) {
        (Class::Copy | Class::Memset, Some(size)) => format!("Moves::Bytes({size}, {unit})"),
        // (address, pitch, value, width, height)
        (Class::Memset, None) if entry.base.contains("2D") => format!("Moves::Rows(3, 4, {unit})"),
        // (targets, sources, sizes, count, ...)
        (Class::Copy, None) if entry.base == "cuMemcpyBatchAsync" => "Moves::List(2, 3)".to_owned(),
        // The structures since CUDA 3.2.
        (Class::Copy, None) if entry.since >= 3020 && entry.base.starts_with("cuMemcpy2D") => {
            "Moves::Copy2d".to_owned()
        }
        (Class::Copy, None)
            if entry.since >= 3020
                && entry.base.starts_with("cuMemcpy3D")
                && !entry.base.contains("Batch")
                && !entry.base.contains("Attributes") =>
        {
            "Moves::Copy3d".to_owned()
        }
        _ => "Moves::Nothing".to_owned(),
    }
}
