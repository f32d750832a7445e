// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft probe`, hidden: a separate process's view of the driver, which may hang or crash.
//!
//! `device` opens a library and reports versions and devices. `ways` looks a function up in every
//! way that real programs use, and reports the file of each address. Each prints one JSON value.
#![allow(unsafe_code)]

use std::error::Error as _;
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::ptr;

use anyhow::{Result, bail};
use libloading::os::unix;
use once_cell::sync::OnceCell;
use serde::{Deserialize, Serialize};

/// Report a separate process's view of the driver
#[derive(Debug, clap::Args)]
pub struct ProbeArgs {
    /// Print versions and devices of this driver
    #[arg(long, conflicts_with = "ways")]
    device: Option<PathBuf>,
    /// Look functions up in every way; the value is the real driver's path
    #[arg(long)]
    ways: Option<PathBuf>,
    /// With --ways: call no function of the driver that uses the GPU
    #[arg(long, requires = "ways")]
    no_init: bool,
    /// Print the free memory of each device, once for each input line
    #[arg(long)]
    memory: bool,
}

/// Output of `--device`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DriverReport {
    /// Error of opening the library.
    pub trouble: Option<String>,
    /// Result of `cuInit`; 0 is success.
    pub init: Option<i32>,
    /// `cuDriverGetVersion`: 13020 is 13.2.
    pub version: Option<i32>,
    /// Visible devices.
    pub devices: Vec<DeviceReport>,
    /// NVML's report.
    pub nvml: NvmlReport,
}

/// A visible device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// `cuDeviceGetName`.
    pub name: String,
    /// Hexadecimal digits.
    pub uuid: String,
    /// Bytes.
    pub memory: u64,
    /// Major and minor.
    pub capability: (i32, i32),
    /// Pages can migrate while kernels run.
    pub managed: bool,
    /// Whether this process would share it under MPS; `None` if the driver does not report this
    /// (before CUDA 12.4).
    #[serde(default)]
    pub mps: Option<bool>,
    /// `CU_DEVICE_ATTRIBUTE_COMPUTE_MODE`; 0 is the default mode.
    #[serde(default)]
    pub compute_mode: i32,
    /// SMs that green contexts can divide; 0 if the driver makes no green contexts on it.
    #[serde(default)]
    pub green_sms: u32,
}

/// NVML's report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NvmlReport {
    /// File of the library.
    pub library: Option<PathBuf>,
    /// Reason why nothing is known.
    pub trouble: Option<String>,
    /// Version of the driver itself, such as 590.48.01.
    pub driver: Option<String>,
    /// Whether the first device is divided into MIG instances.
    pub mig: Option<bool>,
    /// All GPUs of the machine, whatever `CUDA_VISIBLE_DEVICES` is.
    #[serde(default)]
    pub gpus: Vec<GpuReport>,
}

/// A GPU according to NVML.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuReport {
    /// The whole GPU.
    pub whole: GpuPart,
    /// MIG instances; empty if it is not divided.
    pub instances: Vec<GpuPart>,
    /// Whether it is divided; work then runs only on its instances.
    pub mig: bool,
}

/// A GPU or instance according to NVML.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuPart {
    /// `GPU-...` or `MIG-...`.
    pub uuid: String,
    /// `nvmlDeviceGetName`.
    pub name: String,
    /// Bytes.
    pub memory: u64,
    /// Free bytes.
    pub free: u64,
}

/// One way to reach the driver, and the library that it found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DriverWay {
    /// Description of the way.
    pub way: String,
    /// File of the address found.
    pub library: Option<PathBuf>,
}

/// Output of `--ways`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WaysReport {
    /// All ways tried.
    pub ways: Vec<DriverWay>,
    /// Result of `cuInit` through the first way; `None` also if it was not called.
    pub init: Option<i32>,
    /// Driver functions that weft's symbol table lacks; `None`: weft is not in the process.
    pub beyond: Option<Vec<String>>,
}

/// Runs the probe and prints its JSON.
pub fn main(args: ProbeArgs) -> Result<ExitCode> {
    if args.memory {
        return memory();
    }
    let line = match (args.device, args.ways) {
        (Some(path), _) => serde_json::to_string(&device(&path))?,
        (_, Some(path)) => serde_json::to_string(&ways(&path, !args.no_init))?,
        _ => bail!("nothing to probe: give --device, --ways or --memory"),
    };
    println!("{line}");
    Ok(ExitCode::SUCCESS)
}

/// Answers each input line with a list of UUID, free bytes and total bytes.
fn memory() -> Result<ExitCode> {
    if let Some(trouble) = nvml().trouble {
        bail!("{trouble}");
    }
    let library = OpenLibrary::nvml().map_err(anyhow::Error::msg)?;
    for line in std::io::stdin().lines() {
        line?;
        let gpus = gpus(library);
        let parts = gpus
            .iter()
            .flat_map(|gpu| std::iter::once(&gpu.whole).chain(&gpu.instances));
        let told: Vec<(String, u64, u64)> = parts
            .map(|part| (super::text::uuid_digits(&part.uuid), part.free, part.memory))
            .collect();
        println!("{}", serde_json::to_string(&told)?);
    }
    Ok(ExitCode::SUCCESS)
}

/// A library that is never closed.
#[derive(Debug, Clone, Copy)]
struct OpenLibrary(&'static unix::Library);

impl OpenLibrary {
    fn open(name: &OsStr) -> Result<OpenLibrary, String> {
        // SAFETY: a driver's constructors run, as in any CUDA program.
        let opened = unsafe { unix::Library::open(Some(name), libc::RTLD_NOW) };
        opened.map(Self::kept).map_err(|error| {
            // The source holds the linker's own message.
            error.source().unwrap_or(&error).to_string()
        })
    }

    /// NVML, opened at the first successful call.
    fn nvml() -> Result<OpenLibrary, String> {
        static NVML: OnceCell<OpenLibrary> = OnceCell::new();
        NVML.get_or_try_init(|| Self::open(OsStr::new("libnvidia-ml.so.1")))
            .copied()
    }

    /// All loaded libraries in the linker's search order (`RTLD_DEFAULT`).
    fn everything() -> OpenLibrary {
        // SAFETY: dlsym takes this special handle, and nothing is closed.
        Self::kept(unsafe { unix::Library::from_raw(libc::RTLD_DEFAULT) })
    }

    fn kept(library: unix::Library) -> OpenLibrary {
        OpenLibrary(Box::leak(Box::new(library)))
    }

    fn symbol(self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: any symbol has an address, and nothing is read there.
        let found = unsafe { self.0.get::<*mut c_void>(name) };
        found.ok().map(unix::Symbol::into_raw)
    }

    /// A function whose type is one of the C types below.
    fn function<F: Copy>(self, name: &CStr) -> Option<F> {
        // SAFETY: `F` is the function's signature in the driver's or NVML's public header.
        let found = unsafe { self.0.get::<F>(name) };
        found.ok().map(|function| *function)
    }
}

/// The file that holds an address.
fn file_of(address: *mut c_void) -> Option<PathBuf> {
    // SAFETY: all zeroes is a valid Dl_info (null pointers).
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr looks the address up and does not read it; `info` is ours.
    let found = unsafe { libc::dladdr(address, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr gave the loader's own name of a library that stays loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    std::fs::canonicalize(OsStr::from_bytes(name.to_bytes())).ok()
}

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type GetInt = unsafe extern "C" fn(*mut c_int) -> c_int;
type GetIntOf = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type GetName = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
type GetUuid = unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_int;
type GetSize = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
type GetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
type GetResource = unsafe extern "C" fn(c_int, *mut DeviceResource, c_uint) -> c_int;
type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`.
const CAPABILITY_MAJOR: c_int = 75;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`.
const CAPABILITY_MINOR: c_int = 76;
/// `CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS`.
const CONCURRENT_MANAGED_ACCESS: c_int = 89;
/// `CU_DEVICE_ATTRIBUTE_MPS_ENABLED`.
const MPS_ENABLED: c_int = 133;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_MODE`.
const COMPUTE_MODE: c_int = 20;

/// A `CUdevResource`, with room for fields of newer drivers.
#[repr(C, align(8))]
struct DeviceResource {
    kind: c_uint,
    padding: [u8; 92],
    /// `smCount` of a resource of kind [`SM_RESOURCE`].
    sms: c_uint,
    more: [u8; 412],
}

// `scripts/symbols check` compares these numbers with the header.
const _: () = assert!(std::mem::offset_of!(DeviceResource, sms) == 96 && size_of::<DeviceResource>() == 512);

/// `CU_DEV_RESOURCE_TYPE_SM`.
const SM_RESOURCE: c_uint = 1;

/// Calls without which no work runs in a green context (CUDA 12.4 and 12.5).
const GREEN_CALLS: [&CStr; 4] = [
    c"cuDevSmResourceSplitByCount",
    c"cuDevResourceGenerateDesc",
    c"cuGreenCtxCreate",
    c"cuGreenCtxStreamCreate",
];

/// SMs of a device that green contexts can divide; 0 if none or without driver support. Creates no
/// context.
fn green_sms(library: OpenLibrary, device: c_int) -> u32 {
    let Some(resource) = library.function::<GetResource>(c"cuDeviceGetDevResource") else {
        return 0;
    };
    if GREEN_CALLS.iter().any(|name| library.symbol(name).is_none()) {
        return 0;
    }
    let mut found = DeviceResource {
        kind: 0,
        padding: [0; 92],
        sms: 0,
        more: [0; 412],
    };
    // SAFETY: the resource is ours and larger than any driver's; a device that exists.
    let result = unsafe { resource(device, &mut found, SM_RESOURCE) };
    if result == 0 { found.sms } else { 0 }
}

fn device(path: &std::path::Path) -> DriverReport {
    let mut told = DriverReport {
        nvml: nvml(),
        ..DriverReport::default()
    };
    let library = match OpenLibrary::open(path.as_os_str()) {
        Ok(library) => library,
        Err(why) => {
            told.trouble = Some(why);
            return told;
        }
    };
    let Some(init) = library.function::<Init>(c"cuInit") else {
        told.trouble = Some("it has no cuInit".to_string());
        return told;
    };
    // SAFETY: cuInit takes flags, which must be 0.
    told.init = Some(unsafe { init(0) });
    if let Some(version) = library.function::<GetInt>(c"cuDriverGetVersion") {
        // SAFETY: the closure passes a pointer to an int of ours.
        told.version = int(|out| unsafe { version(out) });
    }
    if told.init != Some(0) {
        return told;
    }
    if let Some(count) = library.function::<GetInt>(c"cuDeviceGetCount") {
        // SAFETY: as above.
        let count = int(|out| unsafe { count(out) }).unwrap_or(0);
        told.devices = (0..count.min(64))
            .filter_map(|ordinal| one_device(library, ordinal))
            .collect();
    }
    told
}

fn one_device(library: OpenLibrary, ordinal: c_int) -> Option<DeviceReport> {
    let get = library.function::<GetIntOf>(c"cuDeviceGet")?;
    // SAFETY: the closure passes a pointer to an int of ours and an ordinal below the count.
    let handle = int(|out| unsafe { get(out, ordinal) })?;
    let mut device = DeviceReport::default();
    if let Some(name) = library.function::<GetName>(c"cuDeviceGetName") {
        let mut buffer = [0u8; 256];
        // SAFETY: the buffer is longer than the given length, with one byte left for the end.
        let result = unsafe { name(buffer.as_mut_ptr().cast(), 255, handle) };
        if result == 0 {
            device.name = until_zero(&buffer);
        }
    }
    let uuid = library
        .function::<GetUuid>(c"cuDeviceGetUuid_v2")
        .or_else(|| library.function::<GetUuid>(c"cuDeviceGetUuid"));
    if let Some(uuid) = uuid {
        let mut bytes = [0u8; 16];
        // SAFETY: a CUuuid is 16 bytes.
        let result = unsafe { uuid(&mut bytes, handle) };
        if result == 0 {
            device.uuid = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        }
    }
    if let Some(total) = library.function::<GetSize>(c"cuDeviceTotalMem_v2") {
        let mut bytes = 0usize;
        // SAFETY: the pointer is to a size of ours.
        let result = unsafe { total(&mut bytes, handle) };
        if result == 0 {
            device.memory = bytes as u64;
        }
    }
    if let Some(attribute) = library.function::<GetAttribute>(c"cuDeviceGetAttribute") {
        // SAFETY: a pointer to an int of ours, a number of the public header, a device that exists.
        let ask = |which| int(|out| unsafe { attribute(out, which, handle) });
        let figure = |which| ask(which).unwrap_or(0);
        device.capability = (figure(CAPABILITY_MAJOR), figure(CAPABILITY_MINOR));
        device.managed = figure(CONCURRENT_MANAGED_ACCESS) != 0;
        device.compute_mode = figure(COMPUTE_MODE);
        device.mps = ask(MPS_ENABLED).map(|enabled| enabled != 0);
    }
    device.green_sms = green_sms(library, handle);
    Some(device)
}

fn int(call: impl FnOnce(*mut c_int) -> c_int) -> Option<i32> {
    let mut value = 0;
    (call(&mut value) == 0).then_some(value)
}

fn until_zero(buffer: &[u8]) -> String {
    let end = buffer.iter().position(|byte| *byte == 0).unwrap_or(buffer.len());
    String::from_utf8_lossy(&buffer[..end]).into_owned()
}

fn nvml() -> NvmlReport {
    type Plain = unsafe extern "C" fn() -> c_int;
    type Text = unsafe extern "C" fn(*mut c_char, c_uint) -> c_int;
    type Handle = unsafe extern "C" fn(c_uint, *mut *mut c_void) -> c_int;
    type Mig = unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut c_uint) -> c_int;
    let mut told = NvmlReport::default();
    let library = match OpenLibrary::nvml() {
        Ok(library) => library,
        Err(why) => {
            told.trouble = Some(why);
            return told;
        }
    };
    told.library = library.symbol(c"nvmlInit_v2").and_then(file_of);
    let Some(init) = library.function::<Plain>(c"nvmlInit_v2") else {
        told.trouble = Some("it has no nvmlInit_v2".to_string());
        return told;
    };
    // SAFETY: takes nothing.
    let result = unsafe { init() };
    if result != 0 {
        told.trouble = Some(format!("nvmlInit_v2 returns {result}"));
        return told;
    }
    if let Some(version) = library.function::<Text>(c"nvmlSystemGetDriverVersion") {
        let mut buffer = [0u8; 96];
        // SAFETY: the buffer is longer than the given length, with one byte left for the end.
        let result = unsafe { version(buffer.as_mut_ptr().cast(), 95) };
        if result == 0 {
            told.driver = Some(until_zero(&buffer));
        }
    }
    if let (Some(handle), Some(mig)) = (
        library.function::<Handle>(c"nvmlDeviceGetHandleByIndex_v2"),
        library.function::<Mig>(c"nvmlDeviceGetMigMode"),
    ) {
        let mut device = ptr::null_mut();
        // SAFETY: index 0 and a pointer to a handle of ours.
        let found = unsafe { handle(0, &mut device) };
        let (mut current, mut pending) = (0, 0);
        // SAFETY: called only with a handle that NVML has just given, and two ints of ours.
        if found == 0 && unsafe { mig(device, &mut current, &mut pending) } == 0 {
            told.mig = Some(current == 1);
        }
    }
    told.gpus = gpus(library);
    told
}

/// Bound above the number of instances of a GPU.
const INSTANCES: c_uint = 16;

/// Bound above the number of GPUs of a machine.
const GPUS: c_uint = 64;

type ByIndex = unsafe extern "C" fn(c_uint, *mut *mut c_void) -> c_int;
type ByIndexOf = unsafe extern "C" fn(*mut c_void, c_uint, *mut *mut c_void) -> c_int;
type CurrentAndPending = unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut c_uint) -> c_int;
type TextOf = unsafe extern "C" fn(*mut c_void, *mut c_char, c_uint) -> c_int;
type MemoryOf = unsafe extern "C" fn(*mut c_void, *mut [u64; 3]) -> c_int;

fn gpus(library: OpenLibrary) -> Vec<GpuReport> {
    let Some(by_index) = library.function::<ByIndex>(c"nvmlDeviceGetHandleByIndex_v2") else {
        return Vec::new();
    };
    let mode = library.function::<CurrentAndPending>(c"nvmlDeviceGetMigMode");
    let instance = library.function::<ByIndexOf>(c"nvmlDeviceGetMigDeviceHandleByIndex");
    let mut all = Vec::new();
    for index in 0..GPUS {
        let mut handle = ptr::null_mut();
        // SAFETY: a pointer to a handle of ours; a wrong index is answered with an error.
        if unsafe { by_index(index, &mut handle) } != 0 {
            break;
        }
        let (mut current, mut pending) = (0, 0);
        // SAFETY: a handle that NVML has just given, and two ints of ours.
        let mig = mode.is_some_and(|mode| unsafe { mode(handle, &mut current, &mut pending) } == 0 && current == 1);
        let mut instances = Vec::new();
        if let Some(instance) = instance.filter(|_| mig) {
            for at in 0..INSTANCES {
                let mut part = ptr::null_mut();
                // SAFETY: a handle of NVML, and a pointer to one of ours; a wrong index is answered
                // with an error.
                if unsafe { instance(handle, at, &mut part) } == 0 {
                    instances.push(one_part(library, part));
                }
            }
        }
        all.push(GpuReport {
            whole: one_part(library, handle),
            instances,
            mig,
        });
    }
    all
}

fn one_part(library: OpenLibrary, handle: *mut c_void) -> GpuPart {
    let text = |name: &CStr| {
        let mut buffer = [0u8; 128];
        let ask = library.function::<TextOf>(name)?;
        // SAFETY: a handle of NVML, and a buffer longer than the given length, with one byte left
        // for the end.
        let result = unsafe { ask(handle, buffer.as_mut_ptr().cast(), 127) };
        (result == 0).then(|| until_zero(&buffer))
    };
    let mut figures = [0u64; 3];
    if let Some(ask) = library.function::<MemoryOf>(c"nvmlDeviceGetMemoryInfo") {
        // SAFETY: a handle of NVML, and the three numbers of `nvmlMemory_t`: total, free, used.
        let _ = unsafe { ask(handle, &mut figures) };
    }
    GpuPart {
        uuid: text(c"nvmlDeviceGetUUID").unwrap_or_default(),
        name: text(c"nvmlDeviceGetName").unwrap_or_default(),
        memory: figures[0],
        free: figures[1],
    }
}

/// Function that is looked up: on a way that does not lead to weft's, launches bypass weft.
const LOOKED_UP: &CStr = c"cuLaunchKernel";

fn ways(real: &std::path::Path, with_init: bool) -> WaysReport {
    let mut told = WaysReport::default();
    let by_handle = |library: Result<OpenLibrary, String>| library.ok()?.symbol(LOOKED_UP).and_then(file_of);
    let mut add = |way: &str, library: Option<PathBuf>| {
        told.ways.push(DriverWay {
            way: way.to_string(),
            library,
        });
    };
    add(
        "dlopen(\"libcuda.so.1\")",
        by_handle(OpenLibrary::open(OsStr::new("libcuda.so.1"))),
    );
    add(
        "dlopen(\"libcuda.so\")",
        by_handle(OpenLibrary::open(OsStr::new("libcuda.so"))),
    );
    add(
        "dlopen of the driver's absolute path",
        by_handle(OpenLibrary::open(real.as_os_str())),
    );
    add("dlsym(RTLD_DEFAULT)", by_handle(Ok(OpenLibrary::everything())));
    let named = OpenLibrary::open(OsStr::new("libcuda.so.1")).ok();
    let init = named.filter(|_| with_init);
    let init = init.and_then(|library| library.function::<Init>(c"cuInit"));
    told.init = init.map(|init| {
        // SAFETY: cuInit takes flags, which must be 0.
        unsafe { init(0) }
    });
    let lookup = named.and_then(|library| library.function::<GetProcAddress>(c"cuGetProcAddress_v2"));
    let found = lookup.and_then(|lookup| {
        let mut address = ptr::null_mut();
        let mut status = 0;
        // 12000: the first CUDA version whose runtime asks this way. Flag 0: the program's default.
        // SAFETY: a C string, a pointer to a pointer and an int of ours.
        let result = unsafe { lookup(LOOKED_UP.as_ptr(), &mut address, 12000, 0, &mut status) };
        (result == 0 && !address.is_null()).then(|| file_of(address)).flatten()
    });
    told.ways.push(DriverWay {
        way: "cuGetProcAddress_v2".to_string(),
        library: found,
    });
    told.beyond = OpenLibrary::everything().function::<Text>(c"weft_text").map(beyond);
    told
}

/// `weft_text` of libweft: topic, buffer, buffer length; returns the wanted length.
type Text = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> usize;

fn beyond(text: Text) -> Vec<String> {
    let mut buffer = vec![0u8; 64 * 1024];
    // SAFETY: a C string, and a buffer of the given length.
    unsafe { text(c"beyond".as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    until_zero(&buffer).lines().map(str::to_string).collect()
}
