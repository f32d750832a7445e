// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel parameters read from images, for drivers that do not report them (before CUDA 12.4).
//!
//! * Images are kept only in jobs that are or may become managed.
//! * An image is read at the first launch of one of its kernels, when the client may have freed it.
//!   So plain images are copied, up to [`COPY_BYTES`] each and [`ALL_COPIES_BYTES`] in total.
//! * The CUDA runtime's images, part of a program and too large, are read in place by
//!   `process_vm_readv`. That call fails if nothing is mapped there. If the hash has changed, the
//!   image is refused.
//! * An unreadable image costs its kernels only their layouts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::image;
use crate::driver::{calls, symbols};

/// Largest copied image. Run-time compilers make some hundred KB.
const COPY_BYTES: usize = 16 << 20;

const ALL_COPIES_BYTES: usize = 256 << 20;

/// Largest image read in place. The largest fat binary has some hundred MB.
const IN_PLACE_BYTES: usize = 1 << 30;

/// CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR.
const MAJOR: i32 = 75;
/// CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR.
const MINOR: i32 = 76;

static COPIED: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameter {
    pub offset: u32,
    pub size: u32,
}

#[derive(Debug)]
pub struct KeptImage(Mutex<ImageState>);

#[derive(Debug)]
enum ImageState {
    Copied(Copied),
    /// Address, bytes and hash of an image read in place.
    Stays(usize, usize, u64),
    Read(HashMap<String, Vec<Parameter>>),
}

/// A copy, and the counter of all copies' bytes.
#[derive(Debug)]
struct Copied(Vec<u8>, &'static AtomicUsize);

impl Drop for Copied {
    fn drop(&mut self) {
        self.1.fetch_sub(self.0.len(), Ordering::Relaxed);
    }
}

impl Copied {
    fn new(bytes: &[u8], count: &'static AtomicUsize) -> Option<Copied> {
        if bytes.len() > COPY_BYTES {
            return None;
        }
        if count.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len() > ALL_COPIES_BYTES {
            count.fetch_sub(bytes.len(), Ordering::Relaxed);
            return None;
        }
        Some(Copied(bytes.to_vec(), count))
    }
}

/// Whether the driver does not report parameters.
pub fn tell_more() -> bool {
    symbols::real(symbols::index::cuFuncGetParamInfo).is_none()
}

/// Keeps an image in memory.
///
/// # Safety
/// The driver accepted `code`, just now.
pub unsafe fn keep(code: *const u8, hash: u64) -> Option<Arc<KeptImage>> {
    if code.is_null() || hash == 0 {
        return None;
    }
    // SAFETY: the caller's promise.
    let (start, bytes, stays) = unsafe { image::span(code) }?;
    if stays {
        return (bytes <= IN_PLACE_BYTES).then(|| KeptImage::new(ImageState::Stays(start as usize, bytes, hash)));
    }
    // SAFETY: the image states this length, and the driver accepted it.
    let bytes = unsafe { std::slice::from_raw_parts(start, bytes) };
    Copied::new(bytes, &COPIED).map(|copied| KeptImage::new(ImageState::Copied(copied)))
}

pub fn keep_file(bytes: &[u8]) -> Option<Arc<KeptImage>> {
    let copied = Copied::new(bytes, &COPIED)?;
    Some(KeptImage::new(ImageState::Copied(copied)))
}

impl KeptImage {
    fn new(state: ImageState) -> Arc<KeptImage> {
        Arc::new(KeptImage(Mutex::new(state)))
    }

    /// A kernel's parameters, if the image has them. The first read calls the driver: never during
    /// a capture.
    pub fn parameters(&self, symbol: &str) -> Option<Vec<Parameter>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let read = match &*state {
            ImageState::Read(_) => None,
            ImageState::Copied(copied) => Some(read(&copied.0)),
            ImageState::Stays(start, bytes, hash) => Some(
                look(*start, *bytes)
                    .filter(|found| image::hash_bytes(found) == *hash)
                    .map(|found| read(&found))
                    .unwrap_or_default(),
            ),
        };
        if let Some(kernels) = read {
            *state = ImageState::Read(kernels);
        }
        match &*state {
            ImageState::Read(kernels) => kernels.get(symbol).cloned(),
            _ => None,
        }
    }
}

fn read(image: &[u8]) -> HashMap<String, Vec<Parameter>> {
    let module = match weft_image::read(image, architecture()) {
        Ok(module) => module,
        Err(why) => {
            log::debug!("an image of {} bytes lists no parameters: {why}", image.len());
            return HashMap::new();
        }
    };
    let kernels = module.kernels.into_iter().filter_map(|kernel| {
        let parameter = |one: weft_image::Param| Parameter {
            offset: one.offset,
            size: one.size,
        };
        Some((kernel.name, kernel.params?.into_iter().map(parameter).collect()))
    });
    kernels.collect()
}

/// The current device's architecture, 80 for sm_80; 0: no device.
fn architecture() -> u32 {
    let mut device = 0;
    // SAFETY: valid out-parameter.
    if !unsafe { calls::cuCtxGetDevice(&mut device) }.ok() {
        return 0;
    }
    let ask = |attribute| {
        let mut value = 0;
        // SAFETY: valid out-parameter, current device.
        let asked = unsafe { calls::cuDeviceGetAttribute(&mut value, attribute, device) };
        asked.ok().then(|| u32::try_from(value).ok()).flatten().unwrap_or(0)
    };
    ask(MAJOR).saturating_mul(10).saturating_add(ask(MINOR))
}

/// Copies memory of the process, if it is mapped.
fn look(start: usize, bytes: usize) -> Option<Vec<u8>> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let mut found: Vec<u8> = Vec::new();
    found.try_reserve_exact(bytes).ok()?;
    found.resize(bytes, 0);
    let mut at = 0;
    while at < bytes {
        let into = libc::iovec {
            iov_base: found.get_mut(at..)?.as_mut_ptr().cast(),
            iov_len: bytes - at,
        };
        let from = libc::iovec {
            iov_base: start.checked_add(at)? as *mut libc::c_void,
            iov_len: bytes - at,
        };
        // SAFETY: writes at most the buffer's length; unreadable memory is an error.
        let read = unsafe { libc::process_vm_readv(own, &into, 1, &from, 1, 0) };
        at += usize::try_from(read).ok().filter(|read| *read > 0)?;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &[u8] = b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry axpy(\n.param .u64 a,\n.param .u32 n\n)\n{\nret;\n}\n";

    #[test]
    fn what_lies_somewhere_is_read_and_what_does_not_is_no_fault() {
        assert_eq!(look(PTX.as_ptr() as usize, PTX.len()).as_deref(), Some(PTX));
        assert_eq!(look(8, 4096), None);
        assert_eq!(look(usize::MAX - 8, 4096), None);
    }

    #[test]
    fn an_image_tells_its_kernels_parameters_and_a_part_of_one_is_no_panic() {
        let kept = |bytes: &[u8]| KeptImage::new(ImageState::Copied(Copied::new(bytes, &COPIED).unwrap()));
        let whole = kept(PTX);
        let at = |offset, size| Parameter { offset, size };
        assert_eq!(whole.parameters("axpy"), Some(vec![at(0, 8), at(8, 4)]));
        assert_eq!(whole.parameters("gemm"), None);
        for length in 0..PTX.len() {
            let _ = kept(&PTX[..length]).parameters("axpy");
        }
        assert_eq!(kept(b"\x7fELF").parameters("axpy"), None);
    }

    #[test]
    fn an_image_that_changed_is_not_believed() {
        let hash = image::hash_bytes(PTX);
        let state = |hash| ImageState::Stays(PTX.as_ptr() as usize, PTX.len(), hash);
        let kept = KeptImage::new(state(hash ^ 1));
        assert_eq!(kept.parameters("axpy"), None);
        let ImageState::Read(kernels) = &*kept.0.lock().unwrap() else {
            panic!("read again at each kernel");
        };
        assert!(kernels.is_empty());
    }

    #[test]
    fn copies_are_counted_and_bounded() {
        // A counter of its own, not the other tests' one.
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        assert!(Copied::new(&vec![0; COPY_BYTES + 1], &COUNT).is_none());
        let copies = (0..ALL_COPIES_BYTES / COPY_BYTES + 2).filter_map(|_| Copied::new(&vec![0; COPY_BYTES], &COUNT));
        let some: Vec<Copied> = copies.collect();
        assert_eq!(some.len(), ALL_COPIES_BYTES / COPY_BYTES);
        assert_eq!(COUNT.load(Ordering::Relaxed), ALL_COPIES_BYTES);
        drop(some);
        assert_eq!(COUNT.load(Ordering::Relaxed), 0);
    }
}
