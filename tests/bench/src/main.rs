//! The program that `scripts/bench launch` measures: launches kernels and says what one costs.
//!
//! It finds the driver as the CUDA runtime does (dlopen by name, one dlsym, the rest by `cuGetProcAddress`), so it measures what a
//! framework would see. It obeys lines on stdin and answers each with a line on stdout: `burst N` and `sync N` answer nanoseconds
//! a launch; `loop` starts a thread that launches until `stop`, which answers how many launches it made.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};

type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;
type Launch = unsafe extern "C" fn(
    usize,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    usize,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;
type OneHandle = unsafe extern "C" fn(usize) -> c_int;

/// The entry points and handles a launch loop needs.
#[derive(Clone, Copy)]
struct Client {
    launch: Launch,
    synchronize: OneHandle,
    set_current: OneHandle,
    context: usize,
    function: usize,
    stream: usize,
}

/// CUDA version whose entry points are asked for, as a runtime built with 12.6 would.
const VERSION: c_int = 12060;

fn check(what: &str, result: c_int) -> Result<()> {
    if result != 0 {
        bail!("{what} answered {result}");
    }
    Ok(())
}

impl Client {
    fn open() -> Result<Client> {
        // SAFETY: loading the driver runs its constructors, as any CUDA program does.
        let library = unsafe { libloading::Library::new("libcuda.so.1") }.context("dlopen libcuda.so.1")?;
        // SAFETY: the signature is that of cuGetProcAddress_v2 in cuda.h.
        let symbol = unsafe { library.get::<GetProcAddress>(c"cuGetProcAddress_v2") }?;
        let get = *symbol;
        std::mem::forget(library);
        let find = |name: &CStr| -> Result<*mut c_void> {
            let mut address = std::ptr::null_mut();
            let mut status = 0;
            // SAFETY: name is a C string, both out pointers are valid for the call.
            let result = unsafe { get(name.as_ptr(), &raw mut address, VERSION, 0, &raw mut status) };
            check(&name.to_string_lossy(), result)?;
            Ok(address)
        };
        /// Casts an address to the type of the function that cuda.h declares under that name.
        macro_rules! function {
            ($name:literal, $type:ty) => {{
                let address = find($name)?;
                // SAFETY: the driver answered this name with the address of a function of that type.
                unsafe { std::mem::transmute::<*mut c_void, $type>(address) }
            }};
        }
        let init = function!(c"cuInit", unsafe extern "C" fn(c_uint) -> c_int);
        let retain = function!(
            c"cuDevicePrimaryCtxRetain",
            unsafe extern "C" fn(*mut usize, c_int) -> c_int
        );
        let set_current = function!(c"cuCtxSetCurrent", OneHandle);
        let load = function!(
            c"cuModuleLoadData",
            unsafe extern "C" fn(*mut usize, *const c_void) -> c_int
        );
        let get_function = function!(
            c"cuModuleGetFunction",
            unsafe extern "C" fn(*mut usize, usize, *const c_char) -> c_int
        );
        let create = function!(c"cuStreamCreate", unsafe extern "C" fn(*mut usize, c_uint) -> c_int);
        let synchronize = function!(c"cuStreamSynchronize", OneHandle);
        let launch = function!(c"cuLaunchKernel", Launch);
        let (mut context, mut module, mut function, mut stream) = (0, 0, 0, 0);
        // SAFETY: signatures as in cuda.h, out pointers valid.
        check("cuInit", unsafe { init(0) })?;
        // SAFETY: as above.
        check("cuDevicePrimaryCtxRetain", unsafe { retain(&raw mut context, 0) })?;
        // SAFETY: the context was just retained.
        check("cuCtxSetCurrent", unsafe { set_current(context) })?;
        let image = c".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry counted() { ret; }\n";
        // SAFETY: the image is PTX text that ends with a null byte.
        check("cuModuleLoadData", unsafe {
            load(&raw mut module, image.as_ptr().cast())
        })?;
        // SAFETY: the module was just loaded and has that entry.
        check("cuModuleGetFunction", unsafe {
            get_function(&raw mut function, module, c"counted".as_ptr())
        })?;
        // SAFETY: out pointer valid; 1 = non-blocking.
        check("cuStreamCreate", unsafe { create(&raw mut stream, 1) })?;
        Ok(Client {
            launch,
            synchronize,
            set_current,
            context,
            function,
            stream,
        })
    }

    #[inline]
    fn launch(&self) -> c_int {
        let none = std::ptr::null_mut();
        // SAFETY: the function takes no parameters; handles came from the driver.
        unsafe { (self.launch)(self.function, 64, 1, 1, 128, 1, 1, 0, self.stream, none, none) }
    }

    fn synchronize(&self) -> c_int {
        // SAFETY: the stream came from the driver.
        unsafe { (self.synchronize)(self.stream) }
    }

    fn measure(&self, count: u64, sync_each: bool) -> Result<f64> {
        let begin = Instant::now();
        let mut bad = 0;
        for _ in 0..count {
            bad |= self.launch();
            if sync_each {
                bad |= self.synchronize();
            }
        }
        bad |= self.synchronize();
        let took = begin.elapsed();
        check("a launch or a sync", bad)?;
        Ok(took.as_nanos() as f64 / count as f64)
    }
}

/// A thread that launches until told to stop.
struct Looping {
    stop: Arc<AtomicBool>,
    launched: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<()>,
}

fn start_loop(client: Client) -> Looping {
    let stop = Arc::new(AtomicBool::new(false));
    let launched = Arc::new(AtomicU64::new(0));
    let thread = std::thread::spawn({
        let (stop, launched) = (stop.clone(), launched.clone());
        move || {
            // SAFETY: the context is retained for the life of the process.
            unsafe { (client.set_current)(client.context) };
            while !stop.load(Ordering::Relaxed) {
                client.launch();
                launched.fetch_add(1, Ordering::Relaxed);
            }
            client.synchronize();
        }
    });
    Looping { stop, launched, thread }
}

fn main() -> Result<()> {
    let client = Client::open()?;
    let mut looping: Option<Looping> = None;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready")?;
    out.flush()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        let verb = words.next().unwrap_or_default();
        let count: u64 = words.next().map_or(Ok(0), str::parse)?;
        match verb {
            "burst" => writeln!(out, "{:.2}", client.measure(count.max(1), false)?)?,
            "sync" => writeln!(out, "{:.2}", client.measure(count.max(1), true)?)?,
            "loop" => {
                looping = Some(start_loop(client));
                writeln!(out, "looping")?;
            }
            "stop" => {
                let Some(running) = looping.take() else {
                    bail!("stop without loop")
                };
                running.stop.store(true, Ordering::Relaxed);
                running
                    .thread
                    .join()
                    .map_err(|_| anyhow::anyhow!("the launching thread panicked"))?;
                writeln!(out, "{}", running.launched.load(Ordering::Relaxed))?;
            }
            other => bail!("unknown order {other:?}: burst N, sync N, loop, stop"),
        }
        out.flush()?;
    }
    Ok(())
}
