// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entry points of 2D and 3D copies.
#![deny(unsafe_code)]

use crate::abi::{Handle, In};
use crate::copy::{Copy2D, Copy3D};
use crate::export::export;

export! {
    fn cuMemcpy2D_v2 | cuMemcpy2D_v2_ptds [default] (copy: In<Copy2D>) {
        copy.get()?.copy()?.run(default)
    }

    fn cuMemcpy2DUnaligned_v2 | cuMemcpy2DUnaligned_v2_ptds [default] (copy: In<Copy2D>) {
        copy.get()?.copy()?.run(default)
    }

    fn cuMemcpy3D_v2 | cuMemcpy3D_v2_ptds [default] (copy: In<Copy3D>) {
        copy.get()?.copy()?.run(default)
    }

    fn cuMemcpy3DPeer | cuMemcpy3DPeer_ptds [default] (copy: In<Copy3D>) {
        copy.get()?.copy()?.run(default)
    }

    fn cuMemcpy2DAsync_v2(copy: In<Copy2D>, stream: Handle) {
        copy.get()?.copy()?.enqueue(stream)
    }

    fn cuMemcpy3DAsync_v2(copy: In<Copy3D>, stream: Handle) {
        copy.get()?.copy()?.enqueue(stream)
    }

    fn cuMemcpy3DPeerAsync(copy: In<Copy3D>, stream: Handle) {
        copy.get()?.copy()?.enqueue(stream)
    }
}
