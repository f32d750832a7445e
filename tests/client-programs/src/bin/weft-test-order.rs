// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does any call overtake launches? For every stream-ordered entry point of the driver: LAUNCHES
//! launches, then that call. The null driver counts the launches that had arrived when the call
//! did.
//!
//! `weft-test-order NULL_DRIVER RESULT.json [LAUNCHES [GO]]`, with the null driver as
//! `libcuda.so.1`, weft preloaded or not. The calls get arguments that no real driver would take
//! (zeros, except the stream): the null driver looks at none of them. With GO it launches once. The
//! rest follows when the file GO exists: by then the test has seen that the program has its role.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libloading::Library;
use weft_client_programs::launcher::Launcher;
use weft_symbols::{Class, Entry};

type Called = unsafe extern "C" fn(*const c_char) -> u64;
type Launches = unsafe extern "C" fn() -> u64;
/// Any entry point: the longest takes 11 words, and a callee ignores words that it does not take.
type Any = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize, usize, usize, usize, usize) -> c_int;

/// Launches before each call, by default.
const LAUNCHES: u32 = 1000;

/// How long it waits for GO.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, counting, result, rest @ ..] = arguments.as_slice() else {
        anyhow::bail!("usage: weft-test-order NULL_DRIVER RESULT.json [LAUNCHES [GO]]");
    };
    let launches: u32 = rest
        .first()
        .map_or(Ok(LAUNCHES), |text| text.parse())
        .context("LAUNCHES")?;
    let launcher = Launcher::open()?;
    // SAFETY: the file that serves as libcuda.so.1 already, under its own name, so that nothing is
    // put in between.
    let counting = unsafe { Library::new(counting) }.context("the null driver")?;
    // SAFETY: the null driver declares it so.
    let called = unsafe { counting.get::<Called>(b"nullcuda_called") }.context("not the null driver")?;
    // SAFETY: as above.
    let arrived = unsafe { counting.get::<Launches>(b"nullcuda_launches") }.context("not the null driver")?;

    if let Some(go) = rest.get(1) {
        launcher.burst(1)?;
        let since = Instant::now();
        while !Path::new(go).exists() {
            ensure!(since.elapsed() < PATIENCE, "{go}: nobody made it within {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    // A few words that stand for any structure a hook may look into.
    let zeros = [0usize; 512];
    let mut overtook = BTreeMap::new();
    let mut tried = 0;
    for entry in weft_symbols::table().map_err(|error| anyhow::anyhow!("{error}"))? {
        if !entry.class.is_ordered() && entry.class != Class::Sync {
            continue;
        }
        let call: Any = launcher.symbol(entry.symbol)?;
        // SAFETY: the function takes nothing.
        let before = unsafe { arrived() };
        launcher.burst(launches)?;
        let words = words(&entry, launcher.stream(), zeros.as_ptr() as usize);
        let [a, b, c, d, e, f, g, h, i, j, k] = words;
        // SAFETY: the null driver reads no argument of these; weft's hooks read structures of zeros
        // at most.
        unsafe { call(a, b, c, d, e, f, g, h, i, j, k) };
        tried += 1;
        // SAFETY: the function takes nothing.
        let now = unsafe { arrived() } - before;
        if is_launch(&entry) {
            // The call itself is a launch that counts, whether it was first or last; the others
            // must be there.
            if now != u64::from(launches) + 1 {
                overtook.insert(
                    entry.symbol,
                    format!("{now} launches arrived instead of {}", launches + 1),
                );
            }
            continue;
        }
        let name = CString::new(entry.symbol)?;
        // SAFETY: a C string.
        let at = unsafe { called(name.as_ptr()) };
        if at != before + u64::from(launches) + 1 {
            let seen = at
                .checked_sub(before + 1)
                .map_or("never".to_string(), |n| format!("after {n} launches"));
            overtook.insert(entry.symbol, format!("arrived {seen} instead of after {launches}"));
        }
    }
    let line =
        serde_json::json!({"ok": overtook.is_empty(), "tried": tried, "launches_each": launches, "overtook": overtook});
    std::fs::write(result, format!("{line}\n")).context("cannot write the result")?;
    ensure!(overtook.is_empty(), "out of order: {overtook:#?}");
    Ok(())
}

/// Launches that the null driver counts itself.
fn is_launch(entry: &Entry<'_>) -> bool {
    entry.base == "cuLaunchKernel" || entry.base == "cuLaunchKernelEx"
}

/// Arguments: zeros, except the stream, and a structure if the call reads one.
fn words(entry: &Entry<'_>, stream: *mut c_void, structure: usize) -> [usize; 11] {
    let mut words = [0usize; 11];
    let takes_structure = ["cuMemcpy2D", "cuMemcpy3D", "cuLaunchKernelEx"]
        .iter()
        .any(|start| entry.base.starts_with(start));
    if takes_structure && !entry.base.contains("Batch") {
        words[0] = structure;
    }
    if let Some(word) = entry.stream.and_then(|at| words.get_mut(usize::from(at))) {
        *word = stream as usize;
    }
    words
}
