// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the protocol with a compiler from a crate, so protoc is not needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = "proto/deviceplugin.proto";
    println!("cargo:rerun-if-changed={file}");
    let compiled = protox::compile([file], ["proto"])?;
    tonic_prost_build::configure().compile_fds(compiled)?;
    Ok(())
}
