// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wrappers, containers, compression and the choice among architectures.

mod build;

use build::{Cubin, Packing, fatbin};
use proptest::prelude::*;
use weft_image::fatbin::{EntryKind, Fatbin, Wrapper};
use weft_image::kind::{Extent, extent};
use weft_image::{ImageError, lz4, read};

fn cubin(name: &str) -> Vec<u8> {
    Cubin::default().kernel(name, &[(0, 8)], 0, 10).build()
}

const PTX: &[u8] = b".version 8.0\n.target sm_70\n.entry from_ptx() { ret; }\0";

#[test]
fn every_packing_gives_the_same_code() {
    let code = cubin("packed");
    let file = fatbin(&[
        (2, 80, &code, Packing::Plain),
        (2, 80, &code, Packing::Lz4),
        (2, 80, &code, Packing::Zstd),
    ]);
    let entries: Vec<_> = Fatbin::new(&file).unwrap().entries().map(Result::unwrap).collect();
    assert_eq!(entries.len(), 3);
    for entry in entries {
        assert_eq!(entry.kind, EntryKind::Cubin);
        let unpacked = entry.code().unwrap();
        assert_eq!(&unpacked[..code.len()], &code[..]);
    }
}

#[test]
fn the_best_architecture_is_taken() {
    let (a, b, c) = (cubin("sm75"), cubin("sm80"), cubin("sm90"));
    let file = fatbin(&[
        (1, 70, PTX, Packing::Plain),
        (2, 75, &a, Packing::Zstd),
        (2, 80, &b, Packing::Zstd),
        (2, 90, &c, Packing::Zstd),
    ]);
    let name = |arch| read(&file, arch).map(|module| module.kernels[0].name.clone());
    assert_eq!(name(80).as_deref(), Ok("sm80"));
    assert_eq!(name(86).as_deref(), Ok("sm80"));
    assert_eq!(name(90).as_deref(), Ok("sm90"));
    assert_eq!(name(75).as_deref(), Ok("sm75"));
    assert_eq!(name(120).as_deref(), Ok("from_ptx"), "PTX runs on what is newer");
    assert_eq!(name(60), Err(ImageError::NoBinary(60)));
}

#[test]
fn wrapper_and_lengths() {
    let file = fatbin(&[(1, 70, PTX, Packing::Lz4)]);
    assert_eq!(extent(&file[..16]), Ok(Extent::Bytes(file.len() as u64)));
    let mut wrapper = 0x4662_43b1u32.to_le_bytes().to_vec();
    wrapper.extend(1u32.to_le_bytes());
    wrapper.extend(0x7fff_1234_5678u64.to_le_bytes());
    wrapper.extend(0u64.to_le_bytes());
    assert_eq!(
        Wrapper::new(&wrapper),
        Ok(Wrapper {
            version: 1,
            data: 0x7fff_1234_5678,
            second: 0
        })
    );
    assert_eq!(extent(&wrapper), Ok(Extent::Bytes(24)));
    assert_eq!(Wrapper::new(&wrapper[..20]), Err(ImageError::Short("fatbin wrapper")));
}

#[test]
fn lz4_matches_may_overlap_what_they_produce() {
    // "ab" as literals, then a match of 4 + 15 + 3 bytes two back, then "!" as the last literal.
    let block = [0x2f, b'a', b'b', 2, 0, 3, 0x10, b'!'];
    assert_eq!(lz4::block(&block, 25).unwrap(), b"abababababababababababab!");
    assert!(lz4::block(&block, 26).is_err(), "shorter than announced");
    assert!(
        lz4::block(&[0x1f, b'a', 2, 0, 0], 30).is_err(),
        "a match before the first byte"
    );
}

proptest! {
    #[test]
    fn zstd_and_lz4_give_back_what_was_packed(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        let file = fatbin(&[(2, 80, &bytes, Packing::Zstd), (2, 80, &bytes, Packing::Lz4)]);
        for entry in Fatbin::new(&file).unwrap().entries() {
            let code = entry.unwrap().code().unwrap();
            prop_assert_eq!(code.as_ref(), &bytes[..]);
        }
    }
}
