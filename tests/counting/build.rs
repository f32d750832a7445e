//! Exports every symbol of the table that `src/lib.rs` does not implement, answering "not supported", and the table by which `cuGetProcAddress` finds all of them.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let source = fs::read_to_string("src/lib.rs")?;
    let table = weft_symbols::table()?;
    let mut out = String::new();
    for entry in &table {
        let symbol = entry.symbol;
        if !source.contains(&format!("fn {symbol}(")) {
            writeln!(
                out,
                "#[allow(non_snake_case)] #[unsafe(no_mangle)] extern \"C\" fn {symbol}() -> i32 {{ NOT_SUPPORTED }}"
            )?;
        }
    }
    writeln!(out, "static TABLE: [Entry; {}] = [", table.len())?;
    for entry in &table {
        writeln!(
            out,
            "Entry {{ base: c\"{}\", since: {}, per_thread: {}, address: Address({} as *const ()) }},",
            entry.base,
            entry.since,
            entry.flavour.per_thread(),
            entry.symbol
        )?;
    }
    writeln!(out, "];")?;
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("exports.rs"), out)?;
    // Without -Bsymbolic our own references would resolve to a preloaded interposer.
    for option in ["-soname,libcuda.so.1", "-Bsymbolic"] {
        println!("cargo::rustc-cdylib-link-arg=-Wl,{option}");
    }
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/lib.rs");
    Ok(())
}
