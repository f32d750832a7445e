// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the protocols with a compiler from a crate, so protoc is not needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["deviceplugin", "dra", "pluginregistration"].map(|name| format!("proto/{name}.proto"));
    for file in &files {
        println!("cargo:rerun-if-changed={file}");
    }
    let compiled = protox::compile(&files, ["proto"])?;
    tonic_prost_build::configure().compile_fds(compiled)?;
    Ok(())
}
