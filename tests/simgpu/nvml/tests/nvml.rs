// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library as a client sees it, loaded together with the simulated driver: their answers must
//! agree.
#![allow(missing_docs)]

use std::ffi::{CStr, CString, c_char};
use std::path::PathBuf;
use std::process::Command;

use libloading::{Library, Symbol};

type Handle = usize;
const SUCCESS: u32 = 0;
const UNINITIALIZED: u32 = 1;
const INVALID_ARGUMENT: u32 = 2;
const NOT_SUPPORTED: u32 = 3;
const NOT_FOUND: u32 = 6;
const INSUFFICIENT_SIZE: u32 = 7;

/// Calls a function of a library, of the type that the public header gives it.
macro_rules! call {
    ($library:expr, $name:ident($($value:expr => $ty:ty),* $(,)?) -> $result:ty) => {{
        type Function = unsafe extern "C" fn($($ty),*) -> $result;
        let name = concat!(stringify!($name), "\0");
        // SAFETY: the type is that of the public header.
        let symbol: Symbol<'_, Function> = unsafe { $library.get(name.as_bytes()) }.expect(name);
        // SAFETY: the test hands over pointers to its own locals.
        unsafe { symbol($($value),*) }
    }};
    ($library:expr, $name:ident($($value:expr => $ty:ty),* $(,)?)) => {
        call!($library, $name($($value => $ty),*) -> u32)
    };
}

/// `nvmlPciInfo_t`.
#[repr(C)]
#[derive(Default)]
struct PciInfo {
    legacy: [u8; 16],
    numbers: [u32; 5],
    text: [u8; 32],
}

/// `nvmlProcessInfo_v2_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Process {
    pid: u32,
    memory: u64,
    instances: [u32; 2],
}

/// Cargo's folder for libraries; asks cargo to bring them up to date.
fn libraries() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let profile = program.parent().and_then(|deps| deps.parent()).expect("cargo's layout");
    // scripts/test has built all of it, with the features of the whole workspace.
    if std::env::var_os("WEFT_TEST_BUILT").is_none() {
        let mut build = Command::new(env!("CARGO"));
        build.args([
            "build",
            "-q",
            "-p",
            "simgpu-driver",
            "-p",
            "simgpu-nvml",
            "-p",
            "simgpu-device",
        ]);
        build.args(["--features", "simgpu-driver/cuda-runtime"]);
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success(), "the libraries build");
    }
    profile.to_path_buf()
}

fn text(bytes: &[u8]) -> &str {
    CStr::from_bytes_until_nul(bytes).unwrap().to_str().unwrap()
}

fn memory(nvml: &Library, device: Handle) -> [u64; 3] {
    let mut first = [0u64; 3];
    assert_eq!(
        call!(nvml, nvmlDeviceGetMemoryInfo(device => Handle, &mut first => *mut [u64; 3])),
        SUCCESS
    );
    // Version, total, reserved, free, used.
    let mut second = [2 << 24 | 40, 0, 0, 0, 0];
    assert_eq!(
        call!(nvml, nvmlDeviceGetMemoryInfo_v2(device => Handle, &mut second => *mut [u64; 5])),
        SUCCESS
    );
    assert_eq!((second[1], second[3], second[4]), (first[0], first[1], first[2]));
    assert_eq!(first[0], first[1] + first[2]);
    first
}

fn processes(nvml: &Library, device: Handle) -> Vec<Process> {
    let mut found = [Process::default(); 8];
    let mut count = 8u32;
    let list = found.as_mut_ptr();
    let result = call!(nvml, nvmlDeviceGetComputeRunningProcesses_v3(device => Handle, &mut count => *mut u32, list => *mut Process));
    assert_eq!(result, SUCCESS);
    found[..count as usize].to_vec()
}

#[test]
fn what_clients_ask_agrees_with_the_driver() {
    let libraries = libraries();
    let place = tempfile::tempdir().unwrap();
    // SAFETY: the only test of this program, before any thread of the libraries'.
    unsafe { std::env::set_var("SIMGPU_SOCKET", place.path().join("device.sock")) };
    // SAFETY: the library under test, whose constructors do nothing.
    let nvml = unsafe { Library::new(libraries.join("libsimnvml.so")) }.unwrap();
    // SAFETY: as above.
    let cuda = unsafe { Library::new(libraries.join("libsimcuda.so")) }.unwrap();
    let (nvml, cuda) = (&nvml, &cuda);

    let mut count = 9u32;
    assert_eq!(
        call!(nvml, nvmlDeviceGetCount_v2(&mut count => *mut u32)),
        UNINITIALIZED
    );
    assert_eq!(call!(nvml, nvmlInitWithFlags(0 => u32)), SUCCESS);
    assert_eq!(call!(nvml, nvmlInit_v2()), SUCCESS);
    assert_eq!(call!(nvml, nvmlShutdown()), SUCCESS);
    assert_eq!(
        call!(nvml, nvmlDeviceGetCount_v2(&mut count => *mut u32)),
        SUCCESS,
        "initialised twice, shut down once"
    );
    assert_eq!(count, 1);
    let mut device: Handle = 0;
    assert_eq!(
        call!(nvml, nvmlDeviceGetHandleByIndex_v2(1 => u32, &mut device => *mut Handle)),
        INVALID_ARGUMENT
    );
    assert_eq!(
        call!(nvml, nvmlDeviceGetHandleByIndex_v2(0 => u32, &mut device => *mut Handle)),
        SUCCESS
    );

    // Without a device, its memory is free, it has no processes, and a query starts none.
    let alone = memory(nvml, device);
    assert_eq!(alone[2], 0);
    assert!(processes(nvml, device).is_empty());
    assert!(!place.path().join("device.sock").exists());

    assert_eq!(call!(cuda, cuInit(0 => u32)), SUCCESS);
    let mut context: Handle = 0;
    assert_eq!(
        call!(cuda, cuDevicePrimaryCtxRetain(&mut context => *mut Handle, 0 => i32)),
        SUCCESS
    );
    assert_eq!(call!(cuda, cuCtxSetCurrent(context => Handle)), SUCCESS);

    let (mut ours, mut theirs) = ([0u8; 96], [0u8; 96]);
    assert_eq!(
        call!(nvml, nvmlDeviceGetName(device => Handle, ours.as_mut_ptr() => *mut u8, 96 => u32)),
        SUCCESS
    );
    assert_eq!(
        call!(cuda, cuDeviceGetName(theirs.as_mut_ptr() => *mut u8, 96 => i32, 0 => i32)),
        SUCCESS
    );
    assert_eq!(text(&ours), text(&theirs));
    let short = call!(nvml, nvmlDeviceGetName(device => Handle, ours.as_mut_ptr() => *mut u8, 5 => u32));
    assert_eq!(short, INSUFFICIENT_SIZE);

    let mut uuid = [0u8; 16];
    assert_eq!(
        call!(nvml, nvmlDeviceGetUUID(device => Handle, ours.as_mut_ptr() => *mut u8, 96 => u32)),
        SUCCESS
    );
    assert_eq!(
        call!(cuda, cuDeviceGetUuid(&mut uuid => *mut [u8; 16], 0 => i32)),
        SUCCESS
    );
    let digits: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(text(&ours).replace("GPU-", "").replace('-', ""), digits);
    let name = CString::new(text(&ours)).unwrap();
    let mut again: Handle = 0;
    assert_eq!(
        call!(nvml, nvmlDeviceGetHandleByUUID(name.as_ptr() => *const c_char, &mut again => *mut Handle)),
        SUCCESS
    );
    assert_eq!(again, device);
    let other = c"GPU-00000000-0000-0000-0000-000000000000";
    assert_eq!(
        call!(nvml, nvmlDeviceGetHandleByUUID(other.as_ptr() => *const c_char, &mut again => *mut Handle)),
        NOT_FOUND
    );

    let mut pci = PciInfo::default();
    assert_eq!(
        call!(nvml, nvmlDeviceGetPciInfo_v3(device => Handle, &mut pci => *mut PciInfo)),
        SUCCESS
    );
    assert_eq!(
        call!(cuda, cuDeviceGetPCIBusId(theirs.as_mut_ptr() => *mut u8, 96 => i32, 0 => i32)),
        SUCCESS
    );
    assert_eq!(text(&pci.legacy), text(&theirs));
    assert_eq!(text(&pci.text), format!("0000{}", text(&theirs)));
    for bus_id in [text(&pci.legacy), text(&pci.text)] {
        let bus_id = CString::new(bus_id).unwrap();
        let result =
            call!(nvml, nvmlDeviceGetHandleByPciBusId_v2(bus_id.as_ptr() => *const c_char, &mut again => *mut Handle));
        assert_eq!((result, again), (SUCCESS, device));
    }

    let (mut major, mut minor, mut version) = (0i32, 0i32, 0i32);
    let result = call!(nvml, nvmlDeviceGetCudaComputeCapability(device => Handle, &mut major => *mut i32, &mut minor => *mut i32));
    assert_eq!((result, major, minor), (SUCCESS, 8, 0));
    assert_eq!(
        call!(nvml, nvmlSystemGetCudaDriverVersion_v2(&mut version => *mut i32)),
        SUCCESS
    );
    let mut driver = 0i32;
    assert_eq!(call!(cuda, cuDriverGetVersion(&mut driver => *mut i32)), SUCCESS);
    assert_eq!(version, driver);

    // Memory and processes follow the device.
    let bytes = 64usize << 20;
    let before = memory(nvml, device);
    let (mut at, mut free, mut total) = (0u64, 0usize, 0usize);
    assert_eq!(call!(cuda, cuMemAlloc_v2(&mut at => *mut u64, bytes => usize)), SUCCESS);
    assert_eq!(
        call!(cuda, cuMemGetInfo_v2(&mut free => *mut usize, &mut total => *mut usize)),
        SUCCESS
    );
    let after = memory(nvml, device);
    assert_eq!(after[2] - before[2], bytes as u64);
    assert_eq!((after[0], after[1]), (total as u64, free as u64));
    assert_eq!(
        alone[0], after[0],
        "the configured memory was told before the device ran"
    );
    let found = processes(nvml, device);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].pid, std::process::id());
    assert!(found[0].memory >= bytes as u64);
    assert_eq!(found[0].instances, [u32::MAX; 2]);
    let mut none = 0u32;
    let list = std::ptr::null_mut();
    let result = call!(nvml, nvmlDeviceGetComputeRunningProcesses_v3(device => Handle, &mut none => *mut u32, list => *mut Process));
    assert_eq!((result, none), (INSUFFICIENT_SIZE, 1));
    let mut rates = [999u32; 2];
    assert_eq!(
        call!(nvml, nvmlDeviceGetUtilizationRates(device => Handle, &mut rates => *mut [u32; 2])),
        SUCCESS
    );
    assert!(rates.iter().all(|rate| *rate <= 100), "{rates:?}");

    // Each field is answered by itself; a field that the device lacks has its own result.
    let mut field = [0u8; 40];
    assert_eq!(
        call!(nvml, nvmlDeviceGetFieldValues(device => Handle, 1 => i32, &mut field => *mut [u8; 40])),
        SUCCESS
    );
    assert_eq!(field[28], 3);
    assert_eq!(
        call!(nvml, nvmlDeviceGetPowerUsage(device => Handle, &mut count => *mut u32)),
        NOT_SUPPORTED
    );
    assert_eq!(
        call!(nvml, nvmlDeviceGetNvLinkState(device => Handle, 0 => u32, &mut count => *mut u32)),
        NOT_SUPPORTED
    );
    let said = call!(nvml, nvmlErrorString(3 => u32) -> *const c_char);
    // SAFETY: a constant of the library's.
    assert_eq!(unsafe { CStr::from_ptr(said) }, c"Not Supported");
    assert_eq!(
        call!(nvml, nvmlDeviceGetName(device + 1 => Handle, ours.as_mut_ptr() => *mut u8, 96 => u32)),
        INVALID_ARGUMENT
    );
    assert_eq!(call!(nvml, nvmlShutdown()), SUCCESS);
    assert_eq!(call!(nvml, nvmlShutdown()), UNINITIALIZED);
}

#[test]
fn every_name_of_the_header_is_exported() {
    let libraries = libraries();
    // SAFETY: the library under test, whose constructors do nothing.
    let nvml = unsafe { Library::new(libraries.join("libsimnvml.so")) }.unwrap();
    let names = include_str!("../names.txt");
    for name in names.lines() {
        // SAFETY: looked up only.
        let found = unsafe { nvml.get::<unsafe extern "C" fn()>(format!("{name}\0").as_bytes()) };
        assert!(found.is_ok(), "{name}");
    }
    assert!(names.lines().count() > 400);
}
