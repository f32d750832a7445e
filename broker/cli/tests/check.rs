// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft check`: its line and exit code. Cases with interception are in
//! `tests/regressions/test_pages.py`.

mod common;

use common::{Client, Home, hello, text};
use rustix::process::Signal;
use weft_api::admin;

/// Its exit code and its line.
fn check(home: &Home, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = home.weft();
    // A driver of this machine must not count.
    command.env("WEFT_CUDA_LIBRARY", "/nowhere/libcuda.so.1");
    let done = command.arg("check").args(arguments).output().expect("ran");
    let said = text(&done.stdout) + &text(&done.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    (done.status.code(), said)
}

/// Far above any wait on a busy machine.
const LONG: [&str; 2] = ["--timeout", "2m"];

#[test]
fn a_missing_and_a_stuck_broker_are_told_from_one_that_answers() {
    let home = Home::new();
    let (code, said) = check(&home, &LONG);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.starts_with("failed: no broker answers at "), "{said}");
    assert!(!admin::pings(&home.places()), "it starts none");
    let broker = home.broker(&[]);
    let _client = Client::attach(&home.socket(), hello(5));
    home.only_client();
    let (code, said) = check(&home, &["--broker", LONG[0], LONG[1]]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said, format!("ok: broker {} answers, 1 job\n", broker.pid()));
    // No driver, no interception.
    let (code, said) = check(&home, &LONG);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.starts_with("failed: driver: ") && said.ends_with("; see weft doctor\n"),
        "{said}"
    );
    broker.signal(Signal::STOP);
    let (code, said) = check(&home, &["--broker", "--timeout", "40ms"]);
    broker.signal(Signal::CONT);
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(said, "failed: the broker did not answer within 40ms\n");
    assert_eq!(check(&home, &["--timeout", "soon"]).0, Some(2));
    assert_eq!(check(&home, &["--brokr"]).0, Some(2));
}
