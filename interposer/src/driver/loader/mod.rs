// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens the real driver, once, at the first call of a driver function.
//!
//! Never in a constructor: shells and compilers that a job starts inherit the preload. Always by
//! absolute path: the name `libcuda.so.1` leads to weft. Never weft itself, under any name or copy.
//! Never closed.

pub mod own_libraries;
mod search;

use std::cell::Cell;
use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::driver::linker::{elf, next, ourselves};
use crate::{process, report};

#[derive(Debug)]
pub struct Library {
    /// Result of `dlopen`: never closed, so always valid.
    handle: usize,
    path: PathBuf,
}

#[derive(Debug, Clone, Copy)]
pub enum Driver {
    Open(&'static Library),
    /// There is no driver. Reported on stderr once.
    Missing,
    /// This thread is opening it, and the driver's constructors called an entry point of weft.
    Opening,
}

#[derive(Debug)]
enum OpenError {
    /// No file of that name anywhere.
    NotFound,
    /// The only file of that name is this library.
    Ourselves(PathBuf),
    /// The only file of that name is another copy of weft.
    Copy(PathBuf),
    /// A file was found but could not be opened.
    NotOpened(PathBuf, String),
}

static OPENED: OnceLock<Option<Library>> = OnceLock::new();

thread_local! {
    static OPENING: Cell<bool> = const { Cell::new(false) };
}

/// The driver, opened at the first call.
///
/// Concurrent first calls each open it: the linker gives them one handle. No call may wait for
/// another, which may wait for the linker's lock, held by a thread in a constructor.
pub fn driver() -> Driver {
    if OPENED.get().is_none() {
        if OPENING.get() {
            return Driver::Opening;
        }
        OPENING.set(true);
        report::start();
        process::mark_driver();
        let library = open();
        OPENING.set(false);
        let (library, why) = match library {
            Ok(library) => (Some(library), None),
            Err(error) => (None, Some(error)),
        };
        if OPENED.set(library).is_ok() {
            match (opened(), why) {
                (_, Some(error)) => report::always(&explain(&error)),
                (Some(library), None) => log::debug!("driver: {}", library.path.display()),
                (None, None) => {}
            }
        }
    }
    opened().map_or(Driver::Missing, Driver::Open)
}

pub fn opened() -> Option<&'static Library> {
    OPENED.get().and_then(Option::as_ref)
}

/// Whether this thread is opening the driver: its constructors run.
fn is_opening() -> bool {
    OPENED.get().is_none() && OPENING.get()
}

impl Library {
    pub fn symbol(&self, name: &CStr) -> Option<*mut ()> {
        // SAFETY: an open handle and a C string.
        let found = unsafe { next::dlsym(self.handle as *mut c_void, name.as_ptr()) };
        (!found.is_null()).then_some(found.cast())
    }

    /// Whether a client's handle is the driver's.
    pub fn is(&self, handle: *mut c_void) -> bool {
        self.handle == handle as usize
    }

    pub fn handle(&self) -> *mut c_void {
        self.handle as *mut c_void
    }

    /// Names of all exported functions.
    pub fn functions(&self) -> Vec<String> {
        // SAFETY: an open handle.
        unsafe { elf::functions(self.handle()) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn open() -> Result<Library, OpenError> {
    let ourselves = ourselves::path().and_then(search::identity);
    let (mut failed, mut us) = (None, None);
    for path in search::candidates() {
        let Some(identity) = search::identity(&path) else {
            continue;
        };
        if Some(identity) == ourselves {
            us = us.or(Some(OpenError::Ourselves(path)));
            continue;
        }
        match open_at(&path) {
            // A copy of weft under another inode.
            Ok(library) if library.symbol(ourselves::MARK).is_some() => us = us.or(Some(OpenError::Copy(path))),
            Ok(library) => return Ok(library),
            // The first reason counts: later candidates are fallbacks.
            Err(why) => failed = failed.or(Some(OpenError::NotOpened(path, why))),
        }
    }
    Err(failed.or(us).unwrap_or(OpenError::NotFound))
}

fn open_at(path: &Path) -> Result<Library, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: a C string; the driver's constructors run as at any client's dlopen.
    let handle = unsafe { next::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        // SAFETY: takes no arguments.
        let why = unsafe { libc::dlerror() };
        if why.is_null() {
            return Err("unknown reason".to_owned());
        }
        // SAFETY: a C string until this thread's next dlerror.
        let why = unsafe { CStr::from_ptr(why) };
        return Err(why.to_string_lossy().into_owned());
    }
    Ok(Library {
        handle: handle as usize,
        path: path.to_owned(),
    })
}

fn explain(error: &OpenError) -> String {
    match error {
        OpenError::NotFound => {
            let variable = search::VARIABLE;
            let why = search::named().map_or(
                "no libcuda.so.1 on LD_LIBRARY_PATH, in the linker's cache or in the usual folders".to_string(),
                |named| format!("{variable}={} is not one", named.display()),
            );
            format!(
                "no NVIDIA driver found: {why}; this process gets CUDA_ERROR_NO_DEVICE \
                 (set {variable}=/path/to/libcuda.so.1)"
            )
        }
        OpenError::Ourselves(path) => format!(
            "no NVIDIA driver found: {} is weft itself; this process gets CUDA_ERROR_NO_DEVICE \
             (set {}=/path/to/libcuda.so.1)",
            path.display(),
            search::VARIABLE
        ),
        OpenError::Copy(path) => format!(
            "no NVIDIA driver found: {} is a copy of weft, so two copies of weft are in this process, which gets \
             CUDA_ERROR_NO_DEVICE (set {}=/path/to/libcuda.so.1)",
            path.display(),
            search::VARIABLE
        ),
        OpenError::NotOpened(path, why) => {
            format!(
                "cannot open the driver {}: {why}; this process gets CUDA_ERROR_NO_DEVICE",
                path.display()
            )
        }
    }
}
