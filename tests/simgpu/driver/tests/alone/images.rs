// SPDX-License-Identifier: MIT OR Apache-2.0
//! A driver's answers to images that are none, or none for this device.

use crate::client::{Cuda, SUCCESS, isolated};

const INVALID_IMAGE: u32 = 200;
const NO_BINARY: u32 = 209;
const INVALID_PTX: u32 = 218;
const PTX: &str = include_str!("../../src/kernels/simgpu.ptx");

fn load(cu: &Cuda, image: &[u8]) -> u32 {
    let mut module = 0;
    // However little of it there is, a driver may look at a header's worth.
    let mut image = image.to_vec();
    image.resize(image.len() + 128, 0);
    cu.cuModuleLoadData(&mut module, image.as_ptr())
}

/// An ELF file: its header, and two sections if it `has` any, the second of which has their names.
fn elf(machine: u16, flags: u32, has: bool) -> Vec<u8> {
    let sections = if has { 2u8 } else { 0 };
    let end = 64 + 64 * usize::from(sections);
    let mut bytes = vec![0; end + 1];
    bytes[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\x33");
    bytes[8] = 7;
    bytes[16] = 2;
    bytes[18..20].copy_from_slice(&machine.to_le_bytes());
    bytes[20] = 1;
    bytes[48..52].copy_from_slice(&flags.to_le_bytes());
    bytes[52] = 64;
    bytes[58] = 64;
    if has {
        bytes[40] = 64;
        bytes[60] = sections;
        bytes[62] = 1;
        let names = 128;
        bytes[names + 4] = 3;
        bytes[names + 24] = u8::try_from(end).unwrap();
        bytes[names + 32] = 1;
    }
    bytes
}

#[test]
fn images_that_are_none_are_refused() {
    isolated("images_that_are_none_are_refused", &[], |cu, _| {
        cu.start();
        assert_eq!(load(cu, PTX.as_bytes()), SUCCESS);
        assert_eq!(load(cu, b"nonsense"), INVALID_IMAGE);
        assert_eq!(load(cu, &elf(190, 80, false)), INVALID_IMAGE, "no section");
        assert_eq!(load(cu, &elf(62, 80, true)), INVALID_IMAGE, "a program of the host's");
        assert_eq!(
            load(cu, &[&0xba55_ed50u32.to_le_bytes()[..], &[0xff; 60]].concat()),
            INVALID_IMAGE
        );
        assert_eq!(load(cu, &elf(190, 80, true)), SUCCESS);
        assert_eq!(load(cu, &elf(190, 90, true)), NO_BINARY);
        assert_eq!(
            load(cu, &elf(190, 86, true)),
            NO_BINARY,
            "newer of the same major architecture"
        );
        assert_eq!(load(cu, &elf(190, 75, true)), NO_BINARY);
    });
}

#[test]
fn text_that_is_cut_short_is_no_ptx() {
    isolated("text_that_is_cut_short_is_no_ptx", &[], |cu, _| {
        cu.start();
        // In a parameter list, in a body, before all declarations.
        for part in [
            PTX.find(".param").unwrap() + 3,
            PTX.find("ret;").unwrap(),
            PTX.find(".version").unwrap() - 1,
        ] {
            assert_eq!(
                load(cu, format!("//\n{}", &PTX[..part]).as_bytes()),
                INVALID_PTX,
                "{part} bytes"
            );
        }
        assert_eq!(load(cu, format!("// {{ is no body\n/* {{ */{PTX}").as_bytes()), SUCCESS);
    });
}
