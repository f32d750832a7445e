// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prints every image in a library, with the facts that cuobjdump also prints: `images FILE`.
//!
//! Each image is a line `image KIND ARCH WHERE`. After it comes a line
//! `kernel NAME REGISTERS SHARED LOCAL` per kernel. Tabs separate fields; WHERE is its section.
//! The compiler puts images into `.nv_fatbin`, and the vendor's tool looks only there; libraries
//! keep more images among plain data. Unreadable parts are lines `error WHY`.
//! tests/clients/test_images.py compares this with the vendor's tool.

use std::io::Write;

use object::{Object as _, ObjectSection as _};
use weft_image::fatbin::{EntryKind, Fatbin};
use weft_image::kind::FATBIN_MAGIC;
use weft_image::read;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).ok_or("usage: images FILE")?;
    let bytes = std::fs::read(&file)?;
    let library = object::File::parse(bytes.as_slice())?;
    let sections = library.sections();
    let places: Vec<_> = sections
        .filter_map(|section| Some((section.file_range()?, section.name().ok()?.to_owned())))
        .collect();
    let place = |at: usize| {
        let inside = |(start, size): (u64, u64)| (start..start + size).contains(&(at as u64));
        places
            .iter()
            .find(|(range, _)| inside(*range))
            .map_or("-", |(_, name)| name.as_str())
    };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut at = 0;
    // Containers lie at multiples of eight.
    while at + 16 <= bytes.len() {
        let rest = &bytes[at..];
        let container = Fatbin::new(rest)
            .ok()
            .filter(|_| rest.starts_with(&FATBIN_MAGIC.to_le_bytes()));
        let Some(container) = container else {
            at += 8;
            continue;
        };
        for entry in container.entries() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    writeln!(out, "error\tcontainer at {at:#x}: {error}")?;
                    break;
                }
            };
            let kind = match entry.kind {
                EntryKind::Ptx => "ptx",
                EntryKind::Cubin => "cubin",
                EntryKind::Other(_) => continue,
            };
            writeln!(out, "image\t{kind}\t{}\t{}", entry.arch, place(at))?;
            if kind != "cubin" {
                continue;
            }
            match entry.code().and_then(|code| read(&code, entry.arch)) {
                Ok(module) => {
                    for kernel in &module.kernels {
                        writeln!(
                            out,
                            "kernel\t{}\t{}\t{}\t{}",
                            kernel.name, kernel.registers, kernel.shared, kernel.local
                        )?;
                    }
                }
                Err(error) => writeln!(out, "error\tcontainer at {at:#x}: {error}")?,
            }
        }
        // The length is read from the header, because compressed code may contain the first word of
        // a container.
        let header = usize::from(u16::from_le_bytes([rest[6], rest[7]]));
        let mut size = [0; 8];
        size.copy_from_slice(&rest[8..16]);
        at += (header + usize::try_from(u64::from_le_bytes(size))?)
            .next_multiple_of(8)
            .max(8);
    }
    Ok(())
}
