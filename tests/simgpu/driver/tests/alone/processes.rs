// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several processes, and processes that fork: one device, and the effects of the end of one of
//! them.

use crate::client::{self, IpcHandle, Role, isolated, listen, say};

const MIB: usize = 1 << 20;
const SMALL: &[(&str, &str)] = &[("SIMGPU_MEMORY", "2147483648")];

#[test]
fn processes_share_the_devices_memory() {
    isolated("processes_share_the_devices_memory", SMALL, |cu, role| {
        if role == "other" {
            cu.start();
            cu.alloc(512 * MIB);
            say("taken");
            assert_eq!(listen(), "free");
            return;
        }
        cu.start();
        let before = cu.free_memory();
        let mut other = Role::start("other");
        assert_eq!(other.hear(), "taken");
        let now = cu.free_memory();
        assert!(before - now >= 512 * MIB, "{before} {now}");
        let mut at = 0;
        assert_eq!(cu.cuMemAlloc_v2(&mut at, now + MIB), client::OUT_OF_MEMORY);
        other.tell("free");
        other.join();
        client::until("the memory is back", || cu.free_memory() == before);
        let mut at = 0;
        ok!(cu.cuMemAlloc_v2(&mut at, now + MIB));
    });
}

#[test]
fn a_killed_process_leaves_nothing_behind() {
    isolated("a_killed_process_leaves_nothing_behind", SMALL, |cu, role| {
        if role == "victim" {
            cu.start();
            let a = cu.alloc(512 * MIB);
            // Work without end: the device has to stop it.
            let s = cu.stream(1);
            let word = cu.pinned(4);
            ok!(cu.launch(cu.function("simgpu_spin\0"), &[word, u64::MAX / 4], s));
            cu.fill(a, 1, 16, s);
            say("running");
            // Until it is killed, or the process that was to kill it is gone.
            listen();
            return;
        }
        cu.start();
        let before = cu.free_memory();
        for round in 0..5 {
            let mut victim = Role::start("victim");
            assert_eq!(victim.hear(), "running");
            assert!(before - cu.free_memory() >= 512 * MIB);
            victim.kill();
            client::until("the memory is back", || cu.free_memory() == before);
            let a = cu.alloc(4096);
            cu.fill(a, round, 16, 0);
            assert_eq!(cu.words(a, 16), [round; 16]);
            ok!(cu.cuMemFree_v2(a));
        }
    });
}

#[test]
fn another_process_maps_the_same_memory() {
    isolated("another_process_maps_the_same_memory", &[], |cu, role| {
        if role == "opener" {
            cu.start();
            let words: Vec<u64> = listen().split(' ').map(|word| word.parse().unwrap()).collect();
            let handle: [u64; 8] = words.try_into().unwrap();
            let mut at = 0;
            ok!(cu.cuIpcOpenMemHandle_v2(&mut at, IpcHandle(handle), 1));
            assert_eq!(cu.words(at, 4), [11; 4]);
            cu.fill(at, 22, 2, 0);
            ok!(cu.cuCtxSynchronize());
            ok!(cu.cuIpcCloseMemHandle(at));
            say("written");
            return;
        }
        cu.start();
        let _first = cu.alloc(1000);
        let a = cu.alloc(1000);
        cu.fill(a, 11, 4, 0);
        ok!(cu.cuCtxSynchronize());
        let mut handle = [0; 8];
        ok!(cu.cuIpcGetMemHandle(&mut handle, a));
        let mut own = 0;
        assert_ne!(
            cu.cuIpcOpenMemHandle_v2(&mut own, IpcHandle(handle), 1),
            client::SUCCESS
        );
        let mut opener = Role::start("opener");
        opener.tell(&handle.map(|word| word.to_string()).join(" "));
        assert_eq!(opener.hear(), "written");
        opener.join();
        assert_eq!(cu.words(a, 4), [22, 22, 11, 11]);
    });
}

/// Runs `body` in a forked child and returns what it answers.
fn in_child(body: impl FnOnce() -> u32) -> u32 {
    // SAFETY: the child only calls into the driver and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let code = body();
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(i32::try_from(code).unwrap()) };
    }
    let mut status = 0;
    // SAFETY: the child above.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "{status}");
    u32::try_from(libc::WEXITSTATUS(status)).unwrap()
}

#[test]
fn a_forked_child_is_not_initialised() {
    isolated("a_forked_child_is_not_initialised", &[], |cu, _| {
        // Before cuInit a fork changes nothing.
        assert_eq!(in_child(|| cu.cuInit(0)), client::SUCCESS);
        cu.start();
        let a = cu.alloc(64);
        cu.fill(a, 5, 16, 0);
        assert_eq!(in_child(|| cu.cuInit(0)), client::NOT_INITIALIZED);
        assert_eq!(in_child(|| cu.cuCtxSynchronize()), client::NOT_INITIALIZED);
        let mut at = 0;
        assert_eq!(in_child(|| cu.cuMemAlloc_v2(&mut at, 16)), client::NOT_INITIALIZED);
        assert_eq!(in_child(|| cu.cuMemsetD32Async(a, 1, 1, 0)), client::NOT_INITIALIZED);
        assert_eq!(cu.words(a, 16), [5; 16], "the parent goes on");
    });
}

#[test]
fn a_hidden_device_is_no_device() {
    isolated(
        "a_hidden_device_is_no_device",
        &[("CUDA_VISIBLE_DEVICES", "")],
        |cu, _| {
            assert_eq!(cu.cuInit(0), client::NO_DEVICE);
            let mut count = 9;
            assert_eq!(cu.cuDeviceGetCount(&mut count), client::NOT_INITIALIZED);
        },
    );
}

#[test]
fn a_device_that_dies_fails_its_clients_and_hangs_none() {
    isolated(
        "a_device_that_dies_fails_its_clients_and_hangs_none",
        &[],
        |cu, role| {
            if role == "client" {
                cu.start();
                let (s, word) = (cu.stream(1), cu.pinned(4));
                ok!(cu.launch(cu.function("simgpu_spin\0"), &[word, u64::MAX / 4], s));
                say("waiting");
                assert_eq!(cu.cuStreamSynchronize(s), client::LAUNCH_FAILED);
                assert_eq!(cu.cuCtxSynchronize(), client::LAUNCH_FAILED);
                say("failed");
                return;
            }
            let mut client = Role::start("client");
            assert_eq!(client.hear(), "waiting");
            let socket = std::env::var("SIMGPU_SOCKET").unwrap();
            let pid = device_of(&socket).expect("a device runs");
            // SAFETY: a process of this test's.
            assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
            assert_eq!(client.hear(), "failed");
            client.join();
            // The next client starts a new one.
            cu.start();
            let a = cu.alloc(16);
            cu.fill(a, 1, 4, 0);
            assert_eq!(cu.words(a, 4), [1; 4]);
        },
    );
}

/// The process whose environment names this socket and whose program is `simgpu-device`.
fn device_of(socket: &str) -> Option<i32> {
    let processes = std::fs::read_dir("/proc").ok()?;
    processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .find(|pid| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let names = |bytes: &[u8]| bytes.windows(socket.len()).any(|part| part == socket.as_bytes());
            name.starts_with("simgpu-device") && (names(&command) || names(&environment))
        })
}
