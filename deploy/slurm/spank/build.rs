// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the Slurm release that the plugin is built for. Slurm loads no plugin of another release.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::{env, fs};

/// The header's name for the release, `0xMMmmpp`.
const RELEASE: &str = "SLURM_VERSION_NUMBER";

/// The header's path on Debian.
const HEADER: &str = "/usr/include/slurm/slurm_version.h";

fn main() -> ExitCode {
    println!("cargo::rerun-if-env-changed=SLURM_VERSION_H");
    let header = env::var("SLURM_VERSION_H").unwrap_or_else(|_| HEADER.to_string());
    println!("cargo::rerun-if-changed={header}");
    let wrong = |why: &str| {
        println!("cargo::error={header}: {why} (SLURM_VERSION_H=/path/to/slurm_version.h names another)");
        ExitCode::FAILURE
    };
    let text = match fs::read_to_string(&header) {
        Ok(text) => text,
        Err(error) => return wrong(&error.to_string()),
    };
    match release(&text) {
        Some(number) => {
            println!("cargo::rustc-env={RELEASE}={number}");
            ExitCode::SUCCESS
        }
        None => wrong(&format!("no {RELEASE} in it")),
    }
}

/// The release number in the header.
fn release(header: &str) -> Option<u32> {
    let mut lines = header.lines().map(str::split_whitespace);
    lines.find_map(|mut words| match (words.next(), words.next(), words.next()) {
        (Some("#define"), Some(RELEASE), Some(number)) => u32::from_str_radix(number.strip_prefix("0x")?, 16).ok(),
        _ => None,
    })
}
