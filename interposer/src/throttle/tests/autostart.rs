// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of a broker's start. A script in its place reports how it was started.
#![allow(unsafe_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::until;
use crate::client::autostart;

const SCRIPT: &str = r#"#!/bin/sh
here=$(dirname "$0")
{
    echo "arguments $*"
    echo "preload ${LD_PRELOAD-none}"
    echo "socket $WEFT_SOCKET"
    echo "pid $$"
    echo "session $(cut -d' ' -f6 /proc/$$/stat)"
    echo "blocked $(grep SigBlk /proc/$$/status)"
    for fd in /proc/$$/fd/*; do echo "fd ${fd##*/} $(readlink $fd)"; done
} > "$here/told.new"
mv "$here/told.new" "$here/told"
exit 3
"#;

fn line<'a>(told: &'a str, name: &str) -> &'a str {
    let found = told.lines().find_map(|line| line.strip_prefix(name));
    found.unwrap_or_else(|| panic!("no {name} in {told}")).trim()
}

#[test]
fn the_broker_gets_nothing_of_the_jobs_and_the_job_never_hears_of_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = folder.path().join("weft");
    fs::write(&program, SCRIPT).expect("written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("chmod");
    let pipe = std::io::pipe().expect("a pipe");
    // A descriptor that survives an exec, as pipes of a job's children do.
    // SAFETY: the descriptor is open.
    assert!(unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&pipe.1), libc::F_SETFD, 0) } == 0);
    let socket = folder.path().join("broker.sock");
    autostart::launch(&program, &socket).expect("started");
    let file = folder.path().join("told");
    until("the script tells", || file.exists());
    let told = fs::read_to_string(&file).expect("read");
    assert_eq!(line(&told, "arguments"), "broker --background --quiet --idle-exit 30");
    assert_eq!(line(&told, "preload"), "none");
    assert_eq!(Path::new(line(&told, "socket")), socket);
    assert_eq!(line(&told, "session"), line(&told, "pid"));
    assert_eq!(line(&told, "blocked"), "SigBlk:\t0000000000000000");
    // The script itself redirects descriptor 1.
    for standard in [0, 2] {
        assert_eq!(line(&told, &format!("fd {standard} ")), "/dev/null");
    }
    let ours = fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&pipe.1))).expect("a link");
    let ours = ours.to_str().expect("text");
    assert!(ours.starts_with("pipe:") && !told.contains(ours), "{told}");
    // The broker is not a child of this process.
    let pid: libc::id_t = line(&told, "pid").parse().expect("a number");
    let mut facts = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::__WALL;
    // SAFETY: the pointer is to a local.
    let seen = unsafe { libc::waitid(libc::P_PID, pid, facts.as_mut_ptr(), options) };
    assert_eq!(seen, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ECHILD));
    drop(pipe);
}
