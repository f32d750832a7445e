// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client of the driver for tests: each test runs in a process of its own, on a device of its
//! own.
//!
//! [`isolated`] starts the test program again for one test, so that a test can fork, be killed, set
//! variables and find an unused driver. [`Role`]s are further processes on the same device.
#![allow(dead_code, reason = "each test program uses its part")]
#![allow(non_snake_case, reason = "the API's own names")]
#![allow(missing_docs, reason = "the API's own names")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use libloading::Library;

pub type Handle = usize;

pub const SUCCESS: u32 = 0;
pub const INVALID_VALUE: u32 = 1;
pub const OUT_OF_MEMORY: u32 = 2;
pub const NOT_INITIALIZED: u32 = 3;
pub const NO_DEVICE: u32 = 100;
pub const INVALID_CONTEXT: u32 = 201;
pub const INVALID_HANDLE: u32 = 400;
pub const NOT_FOUND: u32 = 500;
pub const NOT_READY: u32 = 600;
pub const LAUNCH_FAILED: u32 = 719;

/// `CUipcMemHandle`, which goes by value.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct IpcHandle(pub [u64; 8]);

macro_rules! api {
    ($(fn $name:ident($($arg:ident: $ty:ty),*);)*) => {
        /// The entry points that the tests call.
        pub struct Api { $($name: unsafe extern "C" fn($($ty),*) -> u32,)* library: Library }

        impl Api {
            fn load(path: &Path) -> Api {
                // SAFETY: the library under test, whose constructors do nothing.
                let library = unsafe { Library::new(path) }.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                $(
                    let symbol = concat!(stringify!($name), "\0").as_bytes();
                    // SAFETY: the type is that of the public header.
                    let $name = *unsafe { library.get(symbol) }.expect(stringify!($name));
                )*
                Api { $($name,)* library }
            }

            $(
                #[allow(clippy::too_many_arguments)]
                pub fn $name(&self, $($arg: $ty),*) -> u32 {
                    // SAFETY: the tests hand over pointers to their own locals, or null.
                    unsafe { (self.$name)($($arg),*) }
                }
            )*
        }
    };
}

api! {
    fn cuInit(flags: u32);
    fn cuDriverGetVersion(version: *mut i32);
    fn cuGetProcAddress_v2(name: *const u8, address: *mut usize, version: i32, flags: u64, status: *mut u32);
    fn cuDeviceGetCount(count: *mut i32);
    fn cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32);
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: i32);
    fn cuDevicePrimaryCtxRelease_v2(device: i32);
    fn cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32);
    fn cuCtxCreate_v2(context: *mut Handle, flags: u32, device: i32);
    fn cuCtxDestroy_v2(context: Handle);
    fn cuCtxSetCurrent(context: Handle);
    fn cuCtxGetCurrent(context: *mut Handle);
    fn cuCtxPushCurrent_v2(context: Handle);
    fn cuCtxPopCurrent_v2(context: *mut Handle);
    fn cuCtxSynchronize();
    fn cuMemAlloc_v2(at: *mut u64, bytes: usize);
    fn cuMemAllocPitch_v2(at: *mut u64, pitch: *mut usize, width: usize, height: usize, element: u32);
    fn cuMemAllocManaged(at: *mut u64, bytes: usize, flags: u32);
    fn cuMemPrefetchAsync(at: u64, bytes: usize, device: i32, stream: Handle);
    fn cuMemPrefetchAsync_v2(at: u64, bytes: usize, place: u64, flags: u32, stream: Handle);
    fn cuMemPrefetchBatchAsync(at: *const u64, sizes: *const usize, count: usize, places: *const u64, starts: *const usize, place_count: usize, flags: u64, stream: Handle);
    fn cuMemDiscardBatchAsync(at: *const u64, sizes: *const usize, count: usize, flags: u64, stream: Handle);
    fn cuMemDiscardAndPrefetchBatchAsync(at: *const u64, sizes: *const usize, count: usize, places: *const u64, starts: *const usize, place_count: usize, flags: u64, stream: Handle);
    fn cuMemAdvise(at: u64, bytes: usize, advice: u32, device: i32);
    fn cuMemRangeGetAttribute(data: *mut i32, size: usize, attribute: u32, at: u64, bytes: usize);
    fn cuMemFree_v2(at: u64);
    fn cuMemHostAlloc(at: *mut u64, bytes: usize, flags: u32);
    fn cuMemFreeHost(at: u64);
    fn cuMemHostRegister_v2(at: u64, bytes: usize, flags: u32);
    fn cuMemHostUnregister(at: u64);
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemGetAddressRange_v2(base: *mut u64, size: *mut usize, at: u64);
    fn cuPointerGetAttribute(data: *mut u64, attribute: u32, at: u64);
    fn cuMemAllocAsync(at: *mut u64, bytes: usize, stream: Handle);
    fn cuMemFreeAsync(at: u64, stream: Handle);
    fn cuDeviceGetDefaultMemPool(pool: *mut Handle, device: i32);
    fn cuMemPoolGetAttribute(pool: Handle, attribute: u32, value: *mut u64);
    fn cuMemPoolSetAttribute(pool: Handle, attribute: u32, value: *const u64);
    fn cuMemPoolTrimTo(pool: Handle, keep: usize);
    fn cuMemAddressReserve(at: *mut u64, size: usize, align: usize, wanted: u64, flags: u64);
    fn cuMemAddressFree(at: u64, size: usize);
    fn cuMemCreate(handle: *mut Handle, size: usize, properties: *const [u32; 8], flags: u64);
    fn cuMemRelease(handle: Handle);
    fn cuMemMap(at: u64, size: usize, offset: usize, handle: Handle, flags: u64);
    fn cuMemUnmap(at: u64, size: usize);
    fn cuMemSetAccess(at: u64, size: usize, access: *const [u32; 3], count: usize);
    fn cuMemExportToShareableHandle(out: *mut i32, handle: Handle, kind: u32, flags: u64);
    fn cuMemImportFromShareableHandle(out: *mut Handle, file: usize, kind: u32);
    fn cuIpcGetMemHandle(handle: *mut [u64; 8], at: u64);
    fn cuIpcOpenMemHandle_v2(at: *mut u64, handle: IpcHandle, flags: u32);
    fn cuIpcCloseMemHandle(at: u64);
    fn cuMemcpyHtoD_v2(to: u64, from: *const u8, bytes: usize);
    fn cuMemcpyDtoH_v2(to: *mut u8, from: u64, bytes: usize);
    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize);
    fn cuMemcpy(to: u64, from: u64, bytes: usize);
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const u8, bytes: usize, stream: Handle);
    fn cuMemcpyDtoHAsync_v2(to: *mut u8, from: u64, bytes: usize, stream: Handle);
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle);
    fn cuMemcpy2D_v2(copy: *const [u64; 16]);
    fn cuMemcpy3D_v2(copy: *const [u64; 25]);
    fn cuMemsetD8_v2(at: u64, value: u8, count: usize);
    fn cuMemsetD16_v2(at: u64, value: u16, count: usize);
    fn cuMemsetD32_v2(at: u64, value: u32, count: usize);
    fn cuMemsetD2D32_v2(at: u64, pitch: usize, value: u32, width: usize, height: usize);
    fn cuMemsetD32Async(at: u64, value: u32, count: usize, stream: Handle);
    fn cuMemsetD32Async_ptsz(at: u64, value: u32, count: usize, stream: Handle);
    fn cuModuleLoadData(module: *mut Handle, image: *const u8);
    fn cuModuleUnload(module: Handle);
    fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const u8);
    fn cuLibraryLoadData(library: *mut Handle, code: *const u8, jit: *const u32, jit_values: *const usize, jit_count: u32, options: *const u32, values: *const usize, count: u32);
    fn cuLibraryGetKernel(kernel: *mut Handle, library: Handle, name: *const u8);
    fn cuKernelGetFunction(function: *mut Handle, kernel: Handle);
    fn cuFuncGetAttribute(value: *mut i32, attribute: u32, function: Handle);
    fn cuFuncSetAttribute(function: Handle, attribute: u32, value: i32);
    fn cuFuncGetName(name: *mut *const std::ffi::c_char, function: Handle);
    fn cuFuncGetParamInfo(function: Handle, at: usize, offset: *mut usize, size: *mut usize);
    fn cuOccupancyAvailableDynamicSMemPerBlock(bytes: *mut usize, function: Handle, blocks: i32, threads: i32);
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut i32, function: Handle, threads: i32, shared: usize);
    fn cuLaunchKernel(function: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Handle, params: *const *const u8, extra: *const usize);
    fn cuLaunchKernelEx(config: *const Config, function: Handle, params: *const *const u8, extra: *const usize);
    fn cuLaunchCooperativeKernel(function: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Handle, params: *const *const u8);
    fn cuFuncSetBlockShape(function: Handle, x: i32, y: i32, z: i32);
    fn cuParamSetv(function: Handle, offset: i32, bytes: *const u8, count: u32);
    fn cuParamSetSize(function: Handle, bytes: u32);
    fn cuLaunchGridAsync(function: Handle, width: i32, height: i32, stream: Handle);
    fn cuLaunchHostFunc(stream: Handle, function: extern "C" fn(usize), data: usize);
    fn cuStreamAddCallback(stream: Handle, function: extern "C" fn(Handle, u32, usize), data: usize, flags: u32);
    fn cuStreamCreate(stream: *mut Handle, flags: u32);
    fn cuStreamCreateWithPriority(stream: *mut Handle, flags: u32, priority: i32);
    fn cuStreamGetPriority(stream: Handle, priority: *mut i32);
    fn cuStreamGetAttribute(stream: Handle, attribute: u32, value: *mut [i32; 16]);
    fn cuStreamSetAttribute(stream: Handle, attribute: u32, value: *const [i32; 16]);
    fn cuStreamCopyAttributes(target: Handle, source: Handle);
    fn cuStreamDestroy_v2(stream: Handle);
    fn cuStreamSynchronize(stream: Handle);
    fn cuStreamQuery(stream: Handle);
    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: u32);
    fn cuStreamWriteValue32_v2(stream: Handle, at: u64, value: u32, flags: u32);
    fn cuStreamWaitValue32_v2(stream: Handle, at: u64, value: u32, flags: u32);
    fn cuEventCreate(event: *mut Handle, flags: u32);
    fn cuEventDestroy_v2(event: Handle);
    fn cuEventRecord(event: Handle, stream: Handle);
    fn cuEventQuery(event: Handle);
    fn cuEventSynchronize(event: Handle);
    fn cuEventElapsedTime_v2(milliseconds: *mut f32, from: Handle, to: Handle);
    fn cuGetErrorName(result: u32, text: *mut *const std::ffi::c_char);
    fn cuGetExportTable(table: *mut *const usize, id: *const [u8; 16]);
    fn cuTensorMapEncodeTiled(map: *mut u64, kind: u32, rank: u32, at: u64, sizes: *const u64, strides: *const u64, boxes: *const u32, steps: *const u32, interleave: u32, swizzle: u32, promotion: u32, fill: u32);
}

/// `CUlaunchConfig`.
#[repr(C)]
pub struct Config {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub stream: Handle,
    pub attributes: *const u8,
    pub count: u32,
}

/// The variable with the name of the test that a process runs.
const TEST: &str = "SIMGPU_TEST";
/// The variable with the role of a further process.
const ROLE: &str = "SIMGPU_TEST_ROLE";
/// The variable with the file that a test leaves to show that it ran.
const BEGUN: &str = "SIMGPU_TEST_BEGUN";
/// Longest a test may take: far more than any needs on a busy machine.
const BOUND: Duration = Duration::from_secs(120);

/// The library under test. Cargo builds no `cdylib` for a test program, so it is asked to, and to
/// build the device's program too. If both are up to date, cargo only checks some files.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(build)
}

fn build() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let profile = program.parent().and_then(|deps| deps.parent()).expect("cargo's layout");
    // scripts/test has built all of it, with the features of the whole workspace.
    if std::env::var_os("WEFT_TEST_BUILT").is_none() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "-q", "-p", "simgpu-driver", "-p", "simgpu-device"]);
        build.args(["--features", "simgpu-driver/cuda-runtime"]);
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success(), "the driver builds");
    }
    profile.join("libsimcuda.so")
}

/// Starts this test program again for one test.
fn again(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(TEST, test)
        .stdin(Stdio::null());
    command
}

fn wait(mut child: Child, what: &str) {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{what}: {status}");
            return;
        }
        if begin.elapsed() > BOUND {
            let _ = child.kill();
            panic!("{what}: still running after {BOUND:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a test in a process of its own on a device of its own, with these variables set. In a
/// further process of the test ([`Role::start`]) `body` gets its role; in the first one the role is
/// empty.
///
/// A test's module is a file of its name.
#[track_caller]
pub fn isolated(test: &str, variables: &[(&str, &str)], body: impl FnOnce(&Cuda, &str)) {
    let module = Path::new(std::panic::Location::caller().file()).file_stem().unwrap();
    let test = &format!("{}::{test}", module.display());
    if std::env::var(TEST).as_ref() == Ok(test) {
        let role = std::env::var(ROLE).unwrap_or_default();
        if role.is_empty() {
            std::fs::write(std::env::var_os(BEGUN).unwrap(), "").unwrap();
        }
        let path = std::env::var_os("SIMGPU_TEST_LIBRARY").unwrap();
        let api = Api::load(Path::new(&path));
        body(
            &Cuda {
                api,
                module: OnceLock::new(),
            },
            &role,
        );
        return;
    }
    let directory = tempfile::Builder::new().prefix("simgpu").tempdir().unwrap();
    let mut command = again(test);
    command
        .env("SIMGPU_SOCKET", directory.path().join("device.sock"))
        .env("SIMGPU_TEST_LIBRARY", library())
        .env(BEGUN, directory.path().join("begun"));
    // A developer's settings must not decide a test.
    for variable in [
        "SIMGPU_CONFIG",
        "SIMGPU_CALIBRATION",
        "SIMGPU_MEMORY",
        "SIMGPU_DILATION",
        "SIMGPU_MODE",
        "SIMGPU_MODEL",
        "CUDA_VISIBLE_DEVICES",
    ] {
        command.env_remove(variable);
    }
    command.envs(variables.iter().copied());
    wait(command.spawn().unwrap(), test);
    // A name that no test has is no failure to the harness: it runs none.
    assert!(directory.path().join("begun").exists(), "{test}: no test of this name");
}

/// A further process of the running test.
pub struct Role(Child);

impl Role {
    /// Starts the test again in this role, on the same device. Its standard input and output are
    /// pipes.
    pub fn start(role: &str) -> Role {
        let test = std::env::var(TEST).unwrap();
        let child = again(&test)
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Role(child)
    }

    /// Waits for the next line that begins with `say:` and returns the rest of it.
    pub fn hear(&mut self) -> String {
        use std::io::Read;
        let out = self.0.stdout.as_mut().unwrap();
        let mut line = Vec::new();
        loop {
            let mut byte = [0];
            assert_eq!(
                out.read(&mut byte).unwrap(),
                1,
                "the other process ended instead of speaking"
            );
            if byte != *b"\n" {
                line.push(byte[0]);
                continue;
            }
            let text = String::from_utf8(std::mem::take(&mut line)).unwrap();
            // The test harness writes to the same pipe, on the same line perhaps.
            if let Some((_, said)) = text.split_once("say:") {
                return said.to_string();
            }
        }
    }

    /// Sends a line.
    pub fn tell(&mut self, line: &str) {
        use std::io::Write;
        writeln!(self.0.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Kills it as the kernel does.
    pub fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits for its good end.
    pub fn join(mut self) {
        drop(self.0.stdin.take());
        // Whatever it still writes must not stop it.
        let mut rest = self.0.stdout.take().unwrap();
        std::thread::spawn(move || std::io::copy(&mut rest, &mut std::io::sink()));
        wait(self.0, "a further process");
    }
}

/// Exit status and stderr of a further process of the running test that gets no input and ends by
/// itself.
pub fn ends(role: &str) -> (std::process::ExitStatus, String) {
    let test = std::env::var(TEST).unwrap();
    let mut command = again(&test);
    let child = command
        .env(ROLE, role)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let done = child.wait_with_output().unwrap();
    (done.status, String::from_utf8_lossy(&done.stderr).into_owned())
}

/// Sends a line from a further process to the first.
pub fn say(line: &str) {
    println!("say:{line}");
}

/// Reads a line from the first process, in a further one.
pub fn listen() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_string()
}

/// Waits until a condition holds.
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is() {
        assert!(begin.elapsed() < BOUND / 4, "{what}: not so after {:?}", BOUND / 4);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The loaded driver.
pub struct Cuda {
    pub api: Api,
    module: OnceLock<Handle>,
}

impl std::ops::Deref for Cuda {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

/// `assert_eq!` with success, with the call's text.
#[macro_export]
macro_rules! ok {
    ($call:expr) => {
        assert_eq!($call, $crate::client::SUCCESS, "{}", stringify!($call))
    };
}

impl Api {
    /// The library itself.
    pub fn library(&self) -> &Library {
        &self.library
    }
}

impl Cuda {
    /// Initialises and makes the primary context current.
    pub fn start(&self) -> Handle {
        ok!(self.cuInit(0));
        let mut context = 0;
        ok!(self.cuDevicePrimaryCtxRetain(&mut context, 0));
        ok!(self.cuCtxSetCurrent(context));
        context
    }

    pub fn alloc(&self, bytes: usize) -> u64 {
        let mut at = 0;
        ok!(self.cuMemAlloc_v2(&mut at, bytes));
        at
    }

    pub fn pinned(&self, bytes: usize) -> u64 {
        let mut at = 0;
        ok!(self.cuMemHostAlloc(&mut at, bytes, 0));
        at
    }

    pub fn free_memory(&self) -> usize {
        let (mut free, mut total) = (0, 0);
        ok!(self.cuMemGetInfo_v2(&mut free, &mut total));
        free
    }

    pub fn put(&self, at: u64, bytes: &[u8]) {
        ok!(self.cuMemcpyHtoD_v2(at, bytes.as_ptr(), bytes.len()));
    }

    pub fn bytes(&self, at: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0xa5; count];
        ok!(self.cuMemcpyDtoH_v2(bytes.as_mut_ptr(), at, count));
        bytes
    }

    pub fn words(&self, at: u64, count: usize) -> Vec<u32> {
        let bytes = self.bytes(at, 4 * count);
        bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| u32::from_le_bytes(*word))
            .collect()
    }

    /// 0 is a blocking stream, 1 a non-blocking one.
    pub fn stream(&self, flags: u32) -> Handle {
        let mut stream = 0;
        ok!(self.cuStreamCreate(&mut stream, flags));
        stream
    }

    pub fn event(&self) -> Handle {
        let mut event = 0;
        ok!(self.cuEventCreate(&mut event, 0));
        event
    }

    pub fn module(&self) -> Handle {
        *self.module.get_or_init(|| {
            let ptx = concat!(include_str!("../../../src/kernels/simgpu.ptx"), "\0");
            let mut module = 0;
            ok!(self.cuModuleLoadData(&mut module, ptx.as_ptr()));
            module
        })
    }

    /// One of the executed test kernels; the name ends with a zero.
    pub fn function(&self, name: &str) -> Handle {
        let mut function = 0;
        ok!(self.cuModuleGetFunction(&mut function, self.module(), name.as_ptr()));
        function
    }

    /// Launches one block with these parameters, each up to eight bytes.
    pub fn launch(&self, function: Handle, values: &[u64], stream: Handle) -> u32 {
        let params: Vec<*const u8> = values.iter().map(|value| std::ptr::from_ref(value).cast()).collect();
        self.cuLaunchKernel(
            function,
            1,
            1,
            1,
            32,
            1,
            1,
            0,
            stream,
            params.as_ptr(),
            std::ptr::null(),
        )
    }

    /// [`Cuda::launch`] by `cuLaunchKernelEx` with these attributes: number, and value.
    pub fn launch_with(&self, of: Handle, values: &[u64], on: Handle, with: &[[u64; 9]]) -> u32 {
        let address = |value: &u64| std::ptr::from_ref(value).cast();
        let params: Vec<*const u8> = values.iter().map(address).collect();
        let config = Config {
            grid: [1; 3],
            block: [32, 1, 1],
            shared: 0,
            stream: on,
            attributes: with.as_ptr().cast(),
            count: with.len() as u32,
        };
        self.cuLaunchKernelEx(&config, of, params.as_ptr(), std::ptr::null())
    }

    /// `simgpu_fill`.
    pub fn fill(&self, at: u64, value: u32, count: u64, stream: Handle) {
        ok!(self.launch(self.function("simgpu_fill\0"), &[at, value.into(), count], stream));
    }

    /// A stream that stands still until [`Gate::open`].
    pub fn gate(&self, stream: Handle) -> Gate<'_> {
        let word = self.pinned(4);
        ok!(self.cuStreamWaitValue32_v2(stream, word, 1, 1));
        Gate { cuda: self, word }
    }
}

/// Holds a stream up.
pub struct Gate<'a> {
    cuda: &'a Cuda,
    word: u64,
}

impl Gate<'_> {
    pub fn open(&self) {
        let stream = self.open_soon();
        ok!(self.cuda.cuStreamSynchronize(stream));
    }

    /// Opens it without waiting, for work that may break the context at once; returns the stream
    /// that opens it.
    pub fn open_soon(&self) -> Handle {
        // A stream of its own, so that nothing orders it behind the work that it opens.
        let stream = self.cuda.stream(1);
        ok!(self.cuda.cuStreamWriteValue32_v2(stream, self.word, 1, 0));
        stream
    }
}

/// Writes a word as the host's other threads do.
pub fn store(at: u64, value: u32) {
    // SAFETY: the tests pass aligned words of memory that they hold.
    unsafe { std::sync::atomic::AtomicU32::from_ptr(at as *mut u32) }
        .store(value, std::sync::atomic::Ordering::Release);
}

/// Reads a word that the device may be writing.
pub fn load(at: u64) -> u32 {
    // SAFETY: as in `store`.
    unsafe { std::sync::atomic::AtomicU32::from_ptr(at as *mut u32) }.load(std::sync::atomic::Ordering::Acquire)
}
