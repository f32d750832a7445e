// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cubins: kernels, parameters, variables, length.

mod build;

use build::Cubin;
use weft_image::kind::{Extent, ImageKind, PREFIX, cubin_extent, extent, kind};
use weft_image::{Param, read};

fn sample() -> Vec<u8> {
    Cubin::new(0x0055_0550, 0)
        .kernel("axpy", &[(0, 4), (8, 8), (16, 8), (24, 20)], 1024, 33)
        .kernel("none", &[], 0, 4)
        .device_function("helper")
        .variables(
            ".nv.global.init",
            vec![1, 2, 3, 4, 5, 6, 7, 8],
            &[("low", 0, 4), ("high", 4, 4)],
        )
        .variables(".nv.constant3", vec![9; 16], &[("scale", 0, 16)])
        .build()
}

#[test]
fn kernels_with_their_parameters() {
    let module = read(&sample(), 80).unwrap();
    assert_eq!(module.arch, 0x50);
    assert_eq!(module.kernels.len(), 2, "a device function is no kernel");
    let axpy = module.kernel("axpy").unwrap();
    let at = |offset, size| Param { offset, size };
    assert_eq!(
        axpy.params.as_deref(),
        Some(&[at(0, 4), at(8, 8), at(16, 8), at(24, 20)][..])
    );
    assert_eq!(
        (axpy.param_bytes(), axpy.shared, axpy.registers, axpy.max_threads),
        (44, 1024, 33, 64)
    );
    let none = module.kernel("none").unwrap();
    assert_eq!((none.params.as_deref(), none.param_bytes()), (Some(&[][..]), 0));
}

#[test]
fn registers_that_stand_with_the_code_alone() {
    let image = Cubin::new(0, 8)
        .kernel("usual", &[(0, 4)], 0, 33)
        .kernel_of_another_assembler("other", 98)
        .build();
    let module = read(&image, 80).unwrap();
    let registers = |name| module.kernel(name).unwrap().registers;
    assert_eq!((registers("usual"), registers("other")), (33, 98));
}

#[test]
fn variables_with_their_first_values() {
    let module = read(&sample(), 80).unwrap();
    let high = module.global("high").unwrap();
    assert_eq!(
        (high.size, high.initial.as_slice(), high.constant),
        (4, &[5, 6, 7, 8][..], false)
    );
    let scale = module.global("scale").unwrap();
    assert_eq!((scale.size, scale.constant), (16, true));
}

#[test]
fn architecture_of_the_newer_abi() {
    let image = Cubin::new(0x0600_5a02, 8).build();
    assert_eq!(read(&image, 90).unwrap().arch, 90);
}

#[test]
fn length_is_found_from_the_image_alone() {
    let mut image = sample();
    let whole = image.len() as u64;
    image.extend([0xcc; 500]);
    assert_eq!(kind(&image), ImageKind::Cubin);
    let Extent::Tables(tables) = extent(&image[..PREFIX]).unwrap() else {
        panic!("an ELF file has tables")
    };
    assert_eq!(cubin_extent(&image[..tables as usize]).unwrap(), whole);
}
