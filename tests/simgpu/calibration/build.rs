// SPDX-License-Identifier: MIT OR Apache-2.0
//! Puts the folder's calibration files into the program, so that a device process finds them by
//! name wherever it runs.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=.");
    let folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .expect("the folder is readable")
        .map(|entry| entry.expect("the folder is readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .filter(|path| !path.ends_with("Cargo.toml") && !path.ends_with("keys.toml"))
        .collect();
    files.sort();
    let mut text = String::from("pub(crate) const FILES: &[(&str, &str)] = &[\n");
    for path in files {
        let name = path.file_stem().expect("a file has a name").to_string_lossy();
        writeln!(text, "    ({name:?}, include_str!({:?})),", path.display().to_string()).expect("writing to a text");
    }
    text.push_str("];\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("files.rs"), text).expect("OUT_DIR is writable");
}
