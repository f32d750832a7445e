// SPDX-License-Identifier: MIT OR Apache-2.0
//! The linker of the driver API. Nothing is compiled: the linked image is the last thing that was
//! added, which the simulated device can load as it is.
#![deny(unsafe_code)]

use std::sync::Mutex;

use simgpu_device::lock::lock;

use crate::abi::{Error, Handle, In, Out, R};
use crate::context::current;
use crate::export::export;
use crate::registry::{HandleKind, Registry};
use crate::state;

static LINKS: Registry<Mutex<Vec<u8>>> = Registry::new(HandleKind::Link);

/// `CU_JIT_INPUT_LIBRARY`: an archive, which is no image by itself.
const LIBRARY: u32 = 4;

fn create(out: Out<Handle>) -> R {
    current::get()?;
    out.set(LINKS.add(Mutex::new(Vec::new())))
}

fn add(link: Handle, kind: u32, bytes: Vec<u8>) -> R {
    let link = LINKS.get(link)?;
    if kind != LIBRARY {
        *lock(&link) = bytes;
    }
    Ok(())
}

fn add_file(link: Handle, kind: u32, path: In<u8>) -> R {
    state::driver()?;
    let mut bytes = std::fs::read(path.text()?).map_err(|_| Error::FILE_NOT_FOUND)?;
    bytes.push(0);
    add(link, kind, bytes)
}

fn add_data(link: Handle, kind: u32, data: In<u8>, size: usize) -> R {
    state::driver()?;
    let mut bytes = data.bytes(size)?;
    bytes.push(0);
    add(link, kind, bytes)
}

export! {
    fn cuLinkCreate(count: u32, options: In<u32>, values: In<usize>, link: Out<Handle>) {
        let _ = (count, options, values);
        create(link)
    }

    fn cuLinkCreate_v2(count: u32, options: In<u32>, values: In<usize>, link: Out<Handle>) {
        let _ = (count, options, values);
        create(link)
    }

    fn cuLinkAddData(link: Handle, kind: u32, data: In<u8>, size: usize, name: usize, count: u32, options: In<u32>, values: In<usize>) {
        let _ = (name, count, options, values);
        add_data(link, kind, data, size)
    }

    fn cuLinkAddData_v2(link: Handle, kind: u32, data: In<u8>, size: usize, name: usize, count: u32, options: In<u32>, values: In<usize>) {
        let _ = (name, count, options, values);
        add_data(link, kind, data, size)
    }

    fn cuLinkAddFile(link: Handle, kind: u32, path: In<u8>, count: u32, options: In<u32>, values: In<usize>) {
        let _ = (count, options, values);
        add_file(link, kind, path)
    }

    fn cuLinkAddFile_v2(link: Handle, kind: u32, path: In<u8>, count: u32, options: In<u32>, values: In<usize>) {
        let _ = (count, options, values);
        add_file(link, kind, path)
    }

    fn cuLinkComplete(link: Handle, image: Out<usize>, size: Out<usize>) {
        state::driver()?;
        let link = LINKS.get(link)?;
        let bytes = lock(&link);
        if bytes.is_empty() {
            return Err(Error::INVALID_IMAGE);
        }
        image.set(bytes.as_ptr().expose_provenance())?;
        size.set_if(bytes.len() - 1);
        Ok(())
    }

    fn cuLinkDestroy(link: Handle) {
        state::driver()?;
        LINKS.remove(link).map(drop)
    }
}
