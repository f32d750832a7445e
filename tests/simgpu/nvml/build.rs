// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes the entry points that the sources do not define: every other name of the public header
//! answers "not supported".

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    for path in ["src", "names.txt", "build.rs"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let written = written(Path::new("src"));
    let names = fs::read_to_string("names.txt").expect("the checked-in list");
    let mut text = String::new();
    for name in names.lines().filter(|name| !written.contains(*name)) {
        let _ = writeln!(
            text,
            "/// Not supported by the simulated device.\n#[allow(non_snake_case)]\n#[unsafe(no_mangle)]\npub extern \"C\" fn {name}() -> u32 {{\n    crate::abi::absent({name:?})\n}}\n"
        );
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("absent.rs"), text).expect("OUT_DIR is writable");
}

/// Entry points that the sources define: lines with `fn nvml`.
fn written(dir: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(dir).expect("src is readable") {
        let text = fs::read_to_string(entry.expect("src is readable").path()).expect("sources are text");
        for line in text.lines() {
            if let Some((_, rest)) = line.split_once("fn nvml") {
                let end = rest
                    .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                    .unwrap_or(rest.len());
                names.insert(format!("nvml{}", &rest[..end]));
            }
        }
    }
    names
}
