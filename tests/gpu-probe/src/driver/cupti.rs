// SPDX-License-Identifier: MIT OR Apache-2.0
//! CUPTI's activity records of kernels, if its library is found. The records are counted and thrown
//! away.

use std::alloc::Layout;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use libloading::Library;

/// A buffer for records; CUPTI's guide advises 1 to 10 MB.
const BUFFER_BYTES: usize = 2 << 20;
/// Buffers must be aligned to 8.
const BUFFER: Layout = match Layout::from_size_align(BUFFER_BYTES, 8) {
    Ok(layout) => layout,
    Err(_) => panic!("a size and an alignment that fit"),
};
/// `CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL`: the kind that does not serialise kernels.
const CONCURRENT_KERNEL: u32 = 10;
/// `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`.
const FORCED: u32 = 1;

/// File names, newest first.
const NAMES: [&str; 3] = ["libcupti.so.13", "libcupti.so.12", "libcupti.so"];
/// Folders of toolkits.
const PLACES: [&str; 3] = [
    "/usr/local/cuda/extras/CUPTI/lib64",
    "/usr/local/cuda/targets/x86_64-linux/lib",
    "/usr/local/cuda/lib64",
];
/// Folders of Python packages, below theirs.
const PACKAGES: [&str; 3] = [
    "nvidia/cu13/lib",
    "nvidia/cuda_cupti/lib",
    "triton/backends/nvidia/lib/cupti",
];

/// Usual places: the file names themselves, in toolkits, in the packages of every Python on the
/// path.
fn candidates() -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .iter()
        .filter_map(std::env::var_os)
        .map(PathBuf::from)
        .collect();
    let path = std::env::var_os("PATH").unwrap_or_default();
    prefixes.extend(
        std::env::split_paths(&path)
            .filter(|folder| folder.join("python3").exists())
            .filter_map(|folder| Some(folder.parent()?.to_owned())),
    );
    prefixes.push(PathBuf::from("/usr/local"));
    let mut folders: Vec<PathBuf> = PLACES.iter().map(PathBuf::from).collect();
    for prefix in prefixes {
        let Ok(entries) = std::fs::read_dir(prefix.join("lib")) else {
            continue;
        };
        for python in entries
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
        {
            for packages in ["site-packages", "dist-packages"] {
                folders.extend(
                    PACKAGES
                        .iter()
                        .map(|package| python.path().join(packages).join(package)),
                );
            }
        }
    }
    let files = folders.iter().flat_map(|folder| NAMES.map(|name| folder.join(name)));
    NAMES
        .iter()
        .map(PathBuf::from)
        .chain(files.filter(|file| file.exists()))
        .collect()
}

type Request = extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type Complete = extern "C" fn(usize, u32, *mut u8, usize, usize);
type GetNext = unsafe extern "C" fn(*mut u8, usize, *mut *const u32) -> u32;

/// Number of records so far, and the function that walks a buffer: CUPTI's callbacks carry no data
/// of ours.
static RECORDS: AtomicU64 = AtomicU64::new(0);
static GET_NEXT: std::sync::OnceLock<GetNext> = std::sync::OnceLock::new();

/// The library.
pub struct Cupti {
    library: &'static Library,
    path: PathBuf,
}

/// A recording in progress.
pub struct Tracing<'c>(&'c Cupti);

extern "C" fn request(buffer: *mut *mut u8, size: *mut usize, records: *mut usize) {
    // SAFETY: the layout is not empty.
    let memory = unsafe { std::alloc::alloc(BUFFER) };
    // SAFETY: CUPTI's out pointer.
    unsafe { *buffer = memory };
    // SAFETY: CUPTI's out pointer; no buffer has no size.
    unsafe { *size = if memory.is_null() { 0 } else { BUFFER_BYTES } };
    // SAFETY: CUPTI's out pointer. 0: as many records as fit.
    unsafe { *records = 0 };
}

extern "C" fn complete(_context: usize, _stream: u32, buffer: *mut u8, _size: usize, valid: usize) {
    if buffer.is_null() {
        return;
    }
    if let Some(next) = GET_NEXT.get() {
        let mut record = std::ptr::null();
        // SAFETY: the buffer that `request` gave, of which `valid` bytes are filled; the walk ends
        // with an error.
        while unsafe { next(buffer, valid, &mut record) } == 0 {
            RECORDS.fetch_add(1, Ordering::Relaxed);
        }
    }
    // SAFETY: allocated by `request` with this layout, given back once.
    unsafe { std::alloc::dealloc(buffer, BUFFER) };
}

impl Cupti {
    /// Opens the given file, or one of the usual places.
    pub fn open(given: Option<&Path>) -> Result<Cupti> {
        let candidates: Vec<PathBuf> = match given {
            Some(path) => vec![path.to_owned()],
            None => candidates(),
        };
        let mut said = Vec::new();
        for path in candidates {
            // SAFETY: the vendor's library, whose constructors run in any profiler.
            match unsafe { Library::new(&path) } {
                Ok(library) => {
                    // Never closed: it may have threads.
                    let library = Box::leak(Box::new(library));
                    return Ok(Cupti { library, path });
                }
                Err(error) => said.push(error.to_string()),
            }
        }
        anyhow::bail!(
            "no CUPTI library: {}",
            said.first().map_or("nothing tried", String::as_str)
        )
    }

    /// Path of the library.
    pub fn path(&self) -> String {
        self.path.display().to_string()
    }

    fn function<F: Copy + 'static>(&self, name: &CStr) -> Result<F> {
        // SAFETY: the callers name the function's true type, from the public header.
        let found = unsafe { self.library.get::<F>(name) };
        Ok(*found.with_context(|| format!("CUPTI has no {}", name.to_string_lossy()))?)
    }

    fn activity(&self, name: &CStr, argument: u32) -> Result<()> {
        let function: unsafe extern "C" fn(u32) -> u32 = self.function(name)?;
        // SAFETY: these functions take one number.
        self.check(name, unsafe { function(argument) })
    }

    fn check(&self, call: &CStr, code: u32) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut text = std::ptr::null();
        let name: unsafe extern "C" fn(u32, *mut *const std::ffi::c_char) -> u32 =
            self.function(c"cuptiGetResultString")?;
        // SAFETY: the out pointer is a local.
        let told = unsafe { name(code, &mut text) } == 0 && !text.is_null();
        // SAFETY: CUPTI answered with one of its own texts.
        let said = told.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
        ensure!(
            code == 0,
            "{}: {} ({code})",
            call.to_string_lossy(),
            said.unwrap_or_default()
        );
        Ok(())
    }

    /// Begins to record kernels.
    pub fn trace_kernels(&self) -> Result<Tracing<'_>> {
        let _ = GET_NEXT.set(self.function(c"cuptiActivityGetNextRecord")?);
        let register: unsafe extern "C" fn(Request, Complete) -> u32 =
            self.function(c"cuptiActivityRegisterCallbacks")?;
        // SAFETY: the callbacks have CUPTI's types and live as long as the program.
        self.check(c"cuptiActivityRegisterCallbacks", unsafe {
            register(request, complete)
        })?;
        self.activity(c"cuptiActivityEnable", CONCURRENT_KERNEL)?;
        Ok(Tracing(self))
    }
}

impl Tracing<'_> {
    /// Number of records so far. The device must be idle.
    pub fn records(&self) -> Result<u64> {
        self.0.activity(c"cuptiActivityFlushAll", FORCED)?;
        Ok(RECORDS.load(Ordering::Relaxed))
    }

    /// Ends the recording.
    pub fn end(self) -> Result<()> {
        self.0.activity(c"cuptiActivityDisable", CONCURRENT_KERNEL)
    }
}
