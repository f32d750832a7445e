// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exports every symbol of the table that `src/lib.rs` does not implement, with the answer "not
//! supported", and the table with which `cuGetProcAddress` finds all of them.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut source = String::new();
    for file in ["src/lib.rs", "src/code.rs", "src/graph.rs"] {
        source += &fs::read_to_string(file)?;
        println!("cargo::rerun-if-changed={file}");
    }
    let table = weft_symbols::table()?;
    let mut out = String::new();
    for (at, entry) in table.iter().enumerate() {
        let symbol = entry.symbol;
        if !source.contains(&format!("fn {symbol}(")) {
            writeln!(
                out,
                "#[allow(non_snake_case)] #[unsafe(no_mangle)] extern \"C\" fn {symbol}() -> i32 {{ called({at}); NOT_SUPPORTED }}"
            )?;
        }
    }
    writeln!(out, "static TABLE: [DriverSymbol; {}] = [", table.len())?;
    for entry in &table {
        writeln!(
            out,
            "DriverSymbol {{ symbol: c\"{}\", base: c\"{}\", since: {}, per_thread: {}, address: Address({} as *const ()) }},",
            entry.symbol,
            entry.base,
            entry.since,
            entry.flavour.per_thread(),
            entry.symbol
        )?;
    }
    writeln!(out, "];")?;
    // Positions of the implemented symbols, for their own records of calls.
    writeln!(out, "#[allow(non_upper_case_globals, dead_code)] mod at {{")?;
    for (at, entry) in table.iter().enumerate() {
        writeln!(out, "pub const {}: usize = {at};", entry.symbol)?;
    }
    writeln!(
        out,
        "}}\nstatic CALLED: [AtomicU64; {}] = [const {{ AtomicU64::new(0) }}; {0}];",
        table.len()
    )?;
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("exports.rs"), out)?;
    // Without -Bsymbolic this library's own references would resolve to a preloaded interposer.
    for option in ["-soname,libcuda.so.1", "-Bsymbolic"] {
        println!("cargo::rustc-cdylib-link-arg=-Wl,{option}");
    }
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}
