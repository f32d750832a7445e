// SPDX-License-Identifier: MIT OR Apache-2.0
//! PTX text.

use weft_image::ptx::read;
use weft_image::{Global, Param};

const TEXT: &str = r#"
//
// Comment with .entry inside
.version 8.1
.target sm_80, debug
.address_size 64
.visible .global .align 4 .u32 counter = 7;
.global .align 8 .b8 table[100];
.const .align 4 .f32 scale[4] = {0f3F800000, 0f00000000};
.extern .shared .align 16 .b8 dynamic[];
.extern .func (.param .b32 out) vprintf(.param .b64 a, .param .b64 b);
/* block .entry comment */
.visible .entry axpy(
    .param .f32 a,
    .param .u64 .ptr .global .align 1 x,
    .param .u16 half, .param .u32 n,
    .param .align 16 .b8 s[20]
)
.maxntid 32, 8, 1
{
    .reg .u32 %r<4>;
    .shared .align 4 .b8 tile[1024];
    .shared .f32 one;
    .file 1 "a { b.cu"
    { .reg .pred %p; ret; }
}
.entry none() { ret; }
.weak .entry bare { ret; }
.func helper() { .shared .u32 hidden; ret; }
"#;

#[test]
fn declarations_are_read() {
    let module = read(TEXT).unwrap();
    assert_eq!(module.arch, 80);
    let names: Vec<_> = module.kernels.iter().map(|k| k.name.as_str()).collect();
    assert_eq!(names, ["axpy", "none", "bare"]);
    let axpy = &module.kernels[0];
    let at = |offset, size| Param { offset, size };
    assert_eq!(
        axpy.params.as_deref(),
        Some(&[at(0, 4), at(8, 8), at(16, 2), at(20, 4), at(32, 20)][..])
    );
    assert_eq!((axpy.shared, axpy.max_threads), (1028, 256));
    assert_eq!(module.kernels[2].params.as_deref(), Some(&[][..]));
    let variable = |name: &str, size, constant| Global {
        name: name.to_string(),
        size,
        initial: Vec::new(),
        constant,
    };
    assert_eq!(
        module.globals,
        [
            variable("counter", 4, false),
            variable("table", 100, false),
            variable("scale", 16, true)
        ]
    );
}

#[test]
fn text_that_is_no_ptx_is_refused() {
    assert!(read("").is_err());
    assert!(read("int main() { return 0; }").is_err());
    assert!(read(".version 8.0 .entry f(.param .u32 a").is_err());
    assert!(read(".version 8.0 .entry f(.param .b8 a[-1])").is_err());
}
