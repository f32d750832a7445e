// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine's clock: `CLOCK_MONOTONIC` outside of all time namespaces, so that processes can
//! compare times.
//!
//! A process in a time namespace (restored by CRIU, in LXC or sysbox) reads a clock of its own, at
//! a constant distance. The kernel reports the distance in `/proc/self/timens_offsets`. Without
//! /proc the distance counts as 0.
#![forbid(unsafe_code)]

use std::fs;

use rustix::time::{ClockId, clock_gettime};

use crate::Ns;

/// `CLOCK_MONOTONIC` as this process reads it, ns.
pub fn own() -> Ns {
    let time = clock_gettime(ClockId::Monotonic);
    // Never negative by definition.
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}

/// Time that [`own`] is ahead of the machine's clock, ns, modulo 2^64. Reads a file.
pub fn ahead() -> Ns {
    let namespace = |name| fs::read_link(format!("/proc/self/ns/{name}")).ok();
    // The file is about the children's namespace, which a process may have changed for them.
    if namespace("time") != namespace("time_for_children") {
        return 0;
    }
    fs::read_to_string("/proc/self/timens_offsets")
        .ok()
        .and_then(|text| offset(&text))
        .unwrap_or(0)
}

/// The monotonic clock's offset, ns: seconds, which may be negative, and ns.
fn offset(text: &str) -> Option<Ns> {
    let line = text.lines().find(|line| line.starts_with("monotonic"))?;
    let mut words = line.split_whitespace().skip(1);
    let seconds: i64 = words.next()?.parse().ok()?;
    let ns: i64 = words.next()?.parse().ok()?;
    Some(seconds.wrapping_mul(1_000_000_000).wrapping_add(ns) as Ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_table_has_the_offset() {
        let table = |seconds, ns| format!("monotonic {seconds:>11} {ns:>9}\nboottime            7         8\n");
        assert_eq!(offset(&table(0, 0)), Some(0));
        assert_eq!(offset(&table(300, 5)), Some(300_000_000_005));
        assert_eq!(offset(&table(-5, 1)), Some(0u64.wrapping_sub(4_999_999_999)));
        assert_eq!(offset(""), None);
        assert_eq!(offset("monotonic x 0"), None);
    }
}
