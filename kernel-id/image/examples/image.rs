// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prints the readers' results for an image file, or for every fatbin inside a library:
//! `image FILE [ARCH] [NAME-PART]`.
//!
//! Shows a framework's real kernels (names, parameter layouts) without vendor tools.

use weft_image::fatbin::{EntryKind, Fatbin};
use weft_image::kind::{FATBIN_MAGIC, ImageKind, kind};
use weft_image::{ImageError, Module, read};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let file = args.next().ok_or("usage: image FILE [ARCH] [NAME-PART]")?;
    let arch = args.next().map_or(Ok(80), |a| a.parse())?;
    let part = args.next().unwrap_or_default();
    let bytes = std::fs::read(&file)?;
    if kind(&bytes) != ImageKind::Cubin {
        print(&read(&bytes, arch)?, &part);
        return Ok(());
    }
    // A cubin, or a library with fatbins at multiples of eight.
    let module = read(&bytes, arch);
    if let Ok(module) = &module {
        print(module, &part);
    }
    let (mut found, mut failed, mut kernels, mut unknown) = (0, 0, 0, 0);
    for at in (0..bytes.len()).step_by(8) {
        if bytes[at..].starts_with(&FATBIN_MAGIC.to_le_bytes()) {
            let Ok(fatbin) = Fatbin::new(&bytes[at..]) else {
                continue;
            };
            found += 1;
            if fatbin
                .entries()
                .any(|e| matches!(e, Ok(e) if e.kind == EntryKind::Cubin && e.code().is_err()))
            {
                failed += 1;
            }
            match read(&bytes[at..], arch) {
                Ok(module) => {
                    kernels += module.kernels.len();
                    unknown += module
                        .kernels
                        .iter()
                        .filter(|k| k.params.is_none() || k.registers == 0)
                        .count();
                    print(&module, &part);
                }
                Err(ImageError::NoBinary(_)) => {}
                Err(error) => {
                    failed += 1;
                    eprintln!("fatbin at {at:#x}: {error}");
                }
            }
        }
    }
    eprintln!("{found} fatbins, {failed} unreadable; {kernels} kernels for sm_{arch}, {unknown} with unknown facts");
    Ok(())
}

fn print(module: &Module, part: &str) {
    for kernel in module.kernels.iter().filter(|k| k.name.contains(part)) {
        let params = match &kernel.params {
            Some(params) => params
                .iter()
                .map(|p| format!("{}+{}", p.offset, p.size))
                .collect::<Vec<_>>()
                .join(" "),
            None => "?".to_string(),
        };
        println!(
            "{} params [{params}] shared {} registers {} local {} threads {}",
            kernel.name, kernel.shared, kernel.registers, kernel.local, kernel.max_threads
        );
    }
    for global in module.globals.iter().filter(|g| g.name.contains(part)) {
        println!(
            "{} variable of {} bytes{}",
            global.name,
            global.size,
            if global.constant { ", constant" } else { "" }
        );
    }
}
