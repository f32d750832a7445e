// SPDX-License-Identifier: MIT OR Apache-2.0
//! No bytes cause a panic, a hang or exhausted memory in a reader.

mod build;

use build::{Cubin, Packing, fatbin};
use proptest::prelude::*;
use weft_image::fatbin::{Fatbin, Wrapper};
use weft_image::kind::{cubin_extent, extent};
use weft_image::{lz4, ptx, read};

/// Makes all the reads that a driver makes of an image.
fn read_all(bytes: &[u8]) {
    let _ = extent(bytes);
    let _ = cubin_extent(bytes);
    let _ = Wrapper::new(bytes);
    let _ = read(bytes, 80);
    if let Ok(fatbin) = Fatbin::new(bytes) {
        assert!(fatbin.entries().count() <= bytes.len() / 48 + 1);
        for entry in fatbin.entries().flatten() {
            let _ = entry.code();
        }
    }
}

fn cubin() -> Vec<u8> {
    Cubin::default()
        .kernel("kernel", &[(0, 8), (8, 4)], 64, 10)
        .variables(".nv.global.init", vec![1; 16], &[("variable", 0, 16)])
        .build()
}

fn whole() -> Vec<u8> {
    let text = b".version 8.0\n.target sm_70\n.entry f(.param .u64 a, .param .b8 b[7]) { ret; }";
    fatbin(&[
        (1, 70, text, Packing::Zstd),
        (2, 80, &cubin(), Packing::Lz4),
        (2, 80, &cubin(), Packing::Plain),
    ])
}

/// Changes some bytes and cuts off the end.
fn damage(mut bytes: Vec<u8>, changes: &[(usize, u8)], cut: usize) -> Vec<u8> {
    for (at, value) in changes {
        let at = at % bytes.len();
        bytes[at] = *value;
    }
    let keep = bytes.len() - cut % bytes.len();
    bytes.truncate(keep);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn damaged_cubin(changes in prop::collection::vec((any::<usize>(), any::<u8>()), 0..8), cut in any::<usize>(), cuts in any::<bool>()) {
        read_all(&damage(cubin(), &changes, if cuts { cut } else { 0 }));
    }

    #[test]
    fn damaged_fatbin(changes in prop::collection::vec((any::<usize>(), any::<u8>()), 0..8), cut in any::<usize>(), cuts in any::<bool>()) {
        read_all(&damage(whole(), &changes, if cuts { cut } else { 0 }));
    }

    #[test]
    fn random_bytes_behind_each_magic(bytes in prop::collection::vec(any::<u8>(), 0..300), magic in 0usize..4) {
        let magic: &[u8] = [&[0xb1u8, 0x43, 0x62, 0x46][..], &[0x50, 0xed, 0x55, 0xba], b"\x7fELF\x02\x01", b".version"][magic];
        read_all(&[magic, &bytes].concat());
    }

    #[test]
    fn random_text(text in r#"[.a-z0-9_ (){}\[\],;/*"\n]{0,200}"#) {
        let _ = ptx::read(&format!(".version 8.0 {text}"));
        let _ = ptx::read(&format!(".version 8.0 .entry f({text}"));
        let _ = ptx::read(&format!(".version 8.0 .global {text}"));
    }

    #[test]
    fn random_lz4(bytes in prop::collection::vec(any::<u8>(), 0..200), size in 0usize..100_000) {
        if let Ok(out) = lz4::block(&bytes, size) {
            prop_assert_eq!(out.len(), size);
        }
    }
}
