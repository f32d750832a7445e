// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client that finds the driver's functions in any way gets weft's, and every other lookup is as
//! without weft.

mod support;

use std::fs;
use std::os::unix::fs::symlink;

use support::{Said, bare, compile, run, stage, under_weft};

/// Checks every answer of a client that opened the driver in some way.
fn all_ours(said: &Said) {
    assert!(said.success, "{said:#?}");
    assert_eq!(said.get("init"), "0");
    for (key, symbol) in [
        ("cuInit", "cuInit"),
        ("v1_launch", "cuLaunchKernel"),
        ("v1_launch_ptsz", "cuLaunchKernel_ptsz"),
        ("v2_launch", "cuLaunchKernel"),
        ("v2_launch_ptsz", "cuLaunchKernel_ptsz"),
        ("v2_launch_legacy", "cuLaunchKernel"),
        ("v2_alloc_old", "cuMemAlloc"),
        ("v2_alloc", "cuMemAlloc_v2"),
        ("v2_self", "cuGetProcAddress_v2"),
        ("v2_self_old", "cuGetProcAddress"),
    ] {
        assert_eq!(said.get(key), format!("libweft.so {symbol}"), "{key} of {said:#?}");
    }
    // A driver's names have no versions: with a version they are found neither without weft nor
    // with it.
    assert_eq!(said.get("dlvsym"), "none");
    assert_eq!(said.get("absent"), "none");
    assert!(said.get("absent_error").contains("cuNoSuchThing"), "{said:#?}");
    // The probe of the CUDA runtime: not found, nothing written.
    assert_eq!(said.get("empty"), "500 1");
    assert_eq!(said.get("no_status"), "0");
    assert_eq!(said.number("called_cuInit"), 1);
    assert_eq!(said.number("counter_opened"), 1);
    assert_eq!(said.number("counter_unknown"), 0);
    assert_eq!(said.number("counter_troubles"), 0);
    assert!(said.number("counter_lookups") >= 11);
}

#[test]
fn by_name() {
    for name in ["libcuda.so.1", "libcuda.so"] {
        all_ours(&run(under_weft(&stage().client).args(["open", name])));
    }
}

#[test]
fn with_weft_off_it_is_found_all_the_same() {
    all_ours(&run(under_weft(&stage().client)
        .args(["open", "libcuda.so.1"])
        .env("WEFT_MODE", "off")));
}

#[test]
fn by_absolute_path() {
    for name in ["libcuda.so.1", "libcuda.so"] {
        all_ours(&run(under_weft(&stage().client)
            .arg("open")
            .arg(stage().driver.join(name))));
    }
}

#[test]
fn by_being_linked() {
    let said = run(&mut under_weft(&stage().linked));
    assert_eq!(said.get("cuInit"), "libweft.so cuInit");
    assert_eq!(said.get("init"), "0");
    assert_eq!(said.number("called_cuInit"), 1);
}

#[test]
fn as_the_library_itself() {
    // No preload: weft's folder comes first on the library path and has weft under both names, with
    // a copy under another inode next to it.
    let ours = stage().folder.join("ours");
    let copies = stage().folder.join("copies");
    for folder in [&ours, &copies] {
        fs::create_dir_all(folder).unwrap();
    }
    for name in ["libcuda.so.1", "libcuda.so"] {
        symlink(&stage().weft, ours.join(name)).unwrap();
        fs::copy(&stage().weft, copies.join(name)).unwrap();
    }
    let path = [&ours, &copies, &stage().driver]
        .map(|folder| folder.to_str().unwrap())
        .join(":");
    let said = run(bare(&stage().linked).env("LD_LIBRARY_PATH", &path));
    assert_eq!(said.get("init"), "0", "{said:#?}");
    assert!(
        said.get("cuInit").ends_with("cuInit") && said.get("cuInit").starts_with("libcuda.so.1"),
        "{said:#?}"
    );
    assert_eq!(said.number("called_cuInit"), 1);
    assert_eq!(said.number("counter_opened"), 1);
}

#[test]
fn the_variable_names_the_driver() {
    let said = run(under_weft(&stage().client)
        .args(["open", "libcuda.so.1"])
        .env_remove("LD_LIBRARY_PATH")
        .env("WEFT_CUDA_LIBRARY", stage().driver.join("libcuda.so.1")));
    all_ours(&said);
}

#[test]
fn without_a_driver_there_is_no_device_and_one_line() {
    let nowhere = stage().folder.join("nowhere");
    let said = run(under_weft(&stage().client)
        .args(["open", "libcuda.so.1"])
        .env("WEFT_CUDA_LIBRARY", nowhere.join("libcuda.so.1")));
    assert_eq!(said.get("init"), "100");
    assert_eq!(said.get("v2_launch"), "libweft.so cuLaunchKernel");
    assert_eq!(said.number("counter_opened"), 0);
    assert_eq!(said.stderr.lines().count(), 1, "{}", said.stderr);
    assert!(said.stderr.contains("CUDA_ERROR_NO_DEVICE"), "{}", said.stderr);
    // Weft named as the driver.
    let said = run(under_weft(&stage().client)
        .args(["open", "libcuda.so.1"])
        .env("WEFT_CUDA_LIBRARY", &stage().weft));
    assert_eq!(said.get("init"), "100");
    assert!(said.stderr.contains("weft itself"), "{}", said.stderr);
    // A driver file that is not a library.
    let broken = stage().folder.join("broken.so");
    fs::write(&broken, "not a library").unwrap();
    let said = run(under_weft(&stage().client)
        .args(["open", "libcuda.so.1"])
        .env("WEFT_CUDA_LIBRARY", &broken));
    assert_eq!(said.get("init"), "100");
    assert!(said.stderr.contains("broken.so"), "{}", said.stderr);
}

#[test]
fn a_process_without_a_driver_call_opens_nothing() {
    let said = run(under_weft(&stage().client).arg("idle"));
    for counter in [
        "counter_bound",
        "counter_lookups",
        "counter_opened",
        "called_cuInit",
        "driver_mapped",
    ] {
        assert_eq!(said.number(counter), 0, "{said:#?}");
    }
    assert_eq!(said.stderr, "");
    let shell = run(under_weft("/bin/sh".as_ref()).args(["-c", "env true; ls / >/dev/null; echo done"]));
    assert_eq!((shell.stdout.as_str(), shell.stderr.as_str()), ("done\n", ""));
}

#[test]
fn other_lookups_are_as_without_weft() {
    // A library that only the client's RUNPATH leads to: the linker takes it from the caller of
    // dlopen.
    let hidden = stage().folder.join("hidden");
    fs::create_dir_all(&hidden).unwrap();
    let source = stage().folder.join("other.c");
    fs::write(
        &source,
        "int cuda_like_name(void) { return 7; }\nint cuInit(unsigned x) { return 77; }\n",
    )
    .unwrap();
    let library = hidden.join("libother.so");
    compile(&[
        "-shared".as_ref(),
        "-fPIC".as_ref(),
        source.as_os_str(),
        "-o".as_ref(),
        library.as_os_str(),
    ]);
    let client = stage().folder.join("with-runpath");
    let main = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/client.c");
    let runpath = "-Wl,-rpath,$ORIGIN/hidden";
    compile(&[main.as_os_str(), "-o".as_ref(), client.as_os_str(), runpath.as_ref()]);
    let without = run(bare(&client).args(["other", "libother.so"]));
    let with = run(under_weft(&client).args(["other", "libother.so"]));
    assert_eq!(without.get("opened"), "1");
    for key in ["opened", "own", "getpid", "next", "nothing"] {
        assert_eq!(with.get(key), without.get(key), "{key}");
    }
    assert_eq!(with.number("counter_opened"), 0);
}

/// A driver from another time: without most functions, with one that the table does not know, and
/// with an address of its own for one function.
const OTHER_TIMES: &str = r#"
#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 99000; return 0; }
int cuFutureThing(void) { return 42; }
int cuGraphInstantiate_v2(void) { return 1; }
int cuGraphInstantiateWithFlags(void) { return 2; }
static int hidden_launch(void) { return 0; }
int cuLaunchKernel(void) { return 0; }
int cuMemAlloc_v2(void) { return 0; }
int cuMemAlloc_v3(void) { return 0; }
int cuGetProcAddress(const char *name, void **out, int version, unsigned long flags) {
    *out = !strcmp(name, "cuLaunchKernel") ? (void *)hidden_launch
         : !strcmp(name, "cuMemAlloc") ? (version >= 99000 ? (void *)cuMemAlloc_v3 : (void *)cuMemAlloc_v2)
         : !strcmp(name, "cuGraphInstantiate") ? (void *)cuGraphInstantiateWithFlags
         : !strcmp(name, "cuFutureThing") ? (void *)cuFutureThing
         : !strcmp(name, "cuGetProcAddress") ? (void *)cuGetProcAddress : 0;
    return *out ? 0 : 500;
}
int cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long flags, int *status) {
    if (!out) return 1;
    if (version == 13020 && !strcmp(name, "cuMemAlloc")) version = 99000;
    if (status) *status = 0;
    return cuGetProcAddress(name, out, version, flags);
}
"#;

#[test]
fn a_driver_of_another_time() {
    other_times("other-times", "-Wl,-Bsymbolic,-soname,libcuda.so.1");
}

#[test]
fn a_driver_whose_own_references_come_out_at_us() {
    other_times("not-symbolic", "-Wl,-soname,libcuda.so.1");
}

fn other_times(name: &str, link: &str) {
    let folder = stage().folder.join(name);
    fs::create_dir_all(&folder).unwrap();
    let source = folder.join("driver.c");
    fs::write(&source, OTHER_TIMES).unwrap();
    let library = folder.join("libcuda.so.1");
    compile(&[
        "-shared".as_ref(),
        "-fPIC".as_ref(),
        link.as_ref(),
        source.as_os_str(),
        "-o".as_ref(),
        library.as_os_str(),
    ]);
    let said = run(under_weft(&stage().client)
        .args(["open", "libcuda.so.1"])
        .env("LD_LIBRARY_PATH", &folder));
    assert!(said.success, "{said:#?}");
    // Weft exports this one, the driver does not have it.
    assert_eq!(said.get("lacking"), "none");
    // The table does not know this one: the driver's own, and counted.
    assert_eq!(said.get("unknown"), "libcuda.so.1 cuFutureThing");
    assert!(said.number("counter_unknown") >= 1);
    assert_eq!(said.get("beyond"), "cuFutureThing");
    assert_eq!(said.get("driver"), library.to_str().unwrap());
    // The driver returns an address of its own: the table shows whose it is.
    assert_eq!(said.get("v2_launch"), "libweft.so cuLaunchKernel");
    assert_eq!(said.get("v2_alloc_old"), "libweft.so cuMemAlloc_v2");
    // A name that means another function in newer versions.
    assert_eq!(said.get("v2_alias"), "libweft.so cuGraphInstantiateWithFlags");
    assert_eq!(said.number("counter_troubles"), 0);
}

/// A driver that takes its time to open, and a library whose constructor calls the driver: the
/// constructor runs under the linker's lock.
const SLOW_DRIVER: &str = r#"
#include <unistd.h>
__attribute__((constructor)) static void slow(void) { usleep(300000); }
int cuInit(unsigned flags) { return 0; }
"#;
const EAGER_LIBRARY: &str = r#"
extern int cuInit(unsigned);
int result = -1;
__attribute__((constructor)) static void eager(void) { result = cuInit(0); }
"#;
const TWO_THREADS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
extern int cuInit(unsigned);
static void *first(void *out) { *(int *)out = cuInit(0); return 0; }
int main(int count, char **words) {
    int mine = -1;
    pthread_t thread;
    pthread_create(&thread, 0, first, &mine);
    void *eager = dlopen(words[1], RTLD_NOW);
    pthread_join(thread, 0);
    printf("mine %d\ntheirs %d\n", mine, eager ? *(int *)dlsym(eager, "result") : -2);
    return 0;
}
"#;

#[test]
fn a_constructor_that_calls_the_driver_and_a_thread_do_not_wait_for_each_other() {
    let folder = stage().folder.join("constructors");
    fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, text: &str| {
        fs::write(folder.join(name), text).unwrap();
        folder.join(name)
    };
    let driver = folder.join("libcuda.so.1");
    let shared = ["-shared", "-fPIC"].map(std::ffi::OsStr::new);
    let soname = std::ffi::OsStr::new("-Wl,-soname,libcuda.so.1");
    let out = std::ffi::OsStr::new("-o");
    let source = write("driver.c", SLOW_DRIVER);
    compile(&[
        shared[0],
        shared[1],
        soname,
        source.as_os_str(),
        out,
        driver.as_os_str(),
    ]);
    let (source, eager) = (write("eager.c", EAGER_LIBRARY), folder.join("libeager.so"));
    compile(&[
        shared[0],
        shared[1],
        source.as_os_str(),
        out,
        eager.as_os_str(),
        driver.as_os_str(),
    ]);
    let (source, client) = (write("client.c", TWO_THREADS), folder.join("two-threads"));
    compile(&[
        source.as_os_str(),
        out,
        client.as_os_str(),
        driver.as_os_str(),
        "-lpthread".as_ref(),
    ]);
    for _ in 0..5 {
        let said = run(under_weft(&client).arg(&eager).env("LD_LIBRARY_PATH", &folder));
        assert_eq!((said.get("mine"), said.get("theirs")), ("0", "0"), "{said:#?}");
    }
}
