// SPDX-License-Identifier: MIT OR Apache-2.0
//! Turns the symbol table into the code that the sources do not write by hand: answers for entry
//! points that are not implemented, the per-thread-stream twins of those that are, and the table
//! behind `cuGetProcAddress`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use weft_symbols::{Entry, Flavour};

/// The library name that cudart and every linked client open.
const SONAME: &str = "libcuda.so.1";

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
    // Our own references to cu* must not be answered by a library preloaded in front of us.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let table = weft_symbols::table().expect("the checked-in table is well formed");
    let mut written = BTreeSet::new();
    implemented(Path::new("src"), &mut written).expect("src is readable");
    fs::write(out.join("exports.rs"), exports(&table, &written)).expect("OUT_DIR is writable");
}

/// Names of the entry points that the sources define: lines that begin with `fn cu` and a capital
/// letter.
fn implemented(dir: &Path, names: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            implemented(&path, names)?;
            continue;
        }
        for line in fs::read_to_string(&path)?.lines() {
            let Some(rest) = line.trim_start().strip_prefix("fn cu") else {
                continue;
            };
            if rest.starts_with(|c: char| c.is_ascii_uppercase()) {
                let end = rest
                    .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                    .unwrap_or(rest.len());
                names.insert(format!("cu{}", &rest[..end]));
                // `fn cuX | cuX_ptds (..)` defines both.
                if let Some(twin) = rest[end..].trim_start().strip_prefix("| cu") {
                    let end = twin
                        .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                        .unwrap_or(twin.len());
                    names.insert(format!("cu{}", &twin[..end]));
                }
            }
        }
    }
    Ok(())
}

fn exports(table: &[Entry<'_>], written: &BTreeSet<String>) -> String {
    let mut text = String::new();
    for entry in table.iter().filter(|entry| !written.contains(entry.symbol)) {
        let symbol = entry.symbol;
        let plain = symbol.trim_end_matches("_ptsz").trim_end_matches("_ptds");
        match (entry.flavour, entry.stream) {
            (Flavour::Ptsz, Some(at)) if written.contains(plain) => twin(&mut text, symbol, plain, at),
            (Flavour::Plain, _) => absent(&mut text, symbol),
            _ if written.contains(plain) => forward(&mut text, symbol, plain),
            _ => absent(&mut text, symbol),
        }
    }
    // Entry points of the sources are reached by their C names: they lie in modules all over the
    // crate.
    text.push_str("mod written {\n    unsafe extern \"C\" {\n");
    for entry in table.iter().filter(|entry| written.contains(entry.symbol)) {
        let _ = writeln!(text, "        pub(super) safe fn {}() -> u32;", entry.symbol);
    }
    text.push_str("    }\n}\n");
    let mut sorted: Vec<_> = table.iter().collect();
    sorted.sort_by_key(|entry| (entry.base, entry.since));
    text.push_str("pub(crate) static TABLE: &[EntryPoint] = &[\n");
    for entry in sorted {
        let path = if written.contains(entry.symbol) {
            "written"
        } else {
            "self"
        };
        let _ = writeln!(
            text,
            "    EntryPoint {{ base: {:?}, since: {}, per_thread: {}, address: Address({path}::{} as *const ()) }},",
            entry.base,
            entry.since,
            entry.flavour.per_thread(),
            entry.symbol
        );
    }
    text.push_str("];\n");
    text
}

/// An entry point that is known and not implemented, and answers so.
fn absent(text: &mut String, symbol: &str) {
    let _ = writeln!(
        text,
        "#[unsafe(no_mangle)] pub extern \"C\" fn {symbol}() -> u32 {{\n    \
         static SAID: AtomicBool = AtomicBool::new(false);\n    crate::export::absent({symbol:?}, &SAID)\n}}"
    );
}

/// A kind of processor.
#[derive(Clone, Copy)]
enum Processor {
    X86_64,
    AArch64,
}

impl Processor {
    fn of_target() -> Processor {
        match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
            Ok("aarch64") => Processor::AArch64,
            _ => Processor::X86_64,
        }
    }

    /// The registers of the first arguments. Further ones are on the stack, a word each.
    fn registers(self) -> &'static [&'static str] {
        match self {
            Processor::X86_64 => &["rdi", "rsi", "rdx", "rcx", "r8", "r9"],
            Processor::AArch64 => &["x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7"],
        }
    }

    /// A jump to the function that the code names last.
    fn jump(self) -> &'static str {
        match self {
            Processor::X86_64 => "jmp {}",
            Processor::AArch64 => "b {}",
        }
    }

    /// Turns argument `at` from 0 into 2. The callee owns the words on the stack.
    fn per_thread(self, at: u8) -> Vec<String> {
        let register = self.registers().get(usize::from(at));
        let word = 8 * usize::from(at).saturating_sub(self.registers().len());
        match (self, register) {
            (Processor::X86_64, register) => {
                // Past the return address.
                let on_stack = format!("qword ptr [rsp + {}]", 8 + word);
                let handle = register.map_or(on_stack, |register| (*register).to_string());
                vec![format!("cmp {handle}, 0"), "jne 2f".into(), format!("mov {handle}, 2")]
            }
            (Processor::AArch64, Some(register)) => vec![format!("cbnz {register}, 2f"), format!("mov {register}, #2")],
            (Processor::AArch64, None) => vec![
                format!("ldr x16, [sp, #{word}]"),
                "cbnz x16, 2f".into(),
                "mov x16, #2".into(),
                format!("str x16, [sp, #{word}]"),
            ],
        }
    }
}

/// The per-thread-stream twin of a function: stream 0 becomes the per-thread default stream, the
/// rest is a jump.
fn twin(text: &mut String, symbol: &str, plain: &str, stream: u8) {
    let processor = Processor::of_target();
    let mut lines = processor.per_thread(stream);
    lines.extend(["2:".to_string(), processor.jump().to_string()]);
    naked(text, symbol, plain, &lines);
}

/// A twin of a function in which no default stream has a part.
fn forward(text: &mut String, symbol: &str, plain: &str) {
    naked(text, symbol, plain, &[Processor::of_target().jump().to_string()]);
}

fn naked(text: &mut String, symbol: &str, plain: &str, lines: &[String]) {
    let lines: Vec<String> = lines.iter().map(|line| format!("{line:?}")).collect();
    let _ = writeln!(
        text,
        "#[unsafe(no_mangle)] #[unsafe(naked)] pub extern \"C\" fn {symbol}() -> u32 {{\n    \
         naked_asm!({}, sym written::{plain})\n}}",
        lines.join(", ")
    );
}
