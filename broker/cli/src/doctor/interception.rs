// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows about weft's library: whether it exists, and whether a process reaches it on every way to
//! the driver.
#![forbid(unsafe_code)]

use std::process::Command;
use std::time::Duration;

use super::row::ReportRow;
use crate::environment::{self, Wishes};
use crate::libraries::{self, DriverLibrary};
use crate::probe::WaysReport;
use crate::probe_child;
use weft_api::paths::Places;

/// Adds the rows, after at most the time `within`. Without `init` the probe does not use the GPU.
pub fn rows(places: &Places, driver: Option<&DriverLibrary>, init: bool, within: Duration, rows: &mut Vec<ReportRow>) {
    let Some(weft) = libraries::find_weft() else {
        rows.push(ReportRow::fail(
            "libweft",
            "libweft.so is not next to the weft command",
            "put both in one folder, or set WEFT_LIBRARY to its path",
        ));
        return;
    };
    let glibc = libraries::glibc_of(&weft).map_or(String::new(), |(major, minor)| {
        format!(", for glibc {major}.{minor} or newer, in containers too")
    });
    rows.push(ReportRow::ok("libweft", format!("{}{glibc}", weft.display())));
    let Some(driver) = driver else {
        return;
    };
    let mut environment = match environment::assemble(places, &Wishes::default()) {
        Ok(environment) => environment,
        Err(error) => {
            rows.push(ReportRow::fail(
                "interception",
                format!("{error:#}"),
                "see the row sockets",
            ));
            return;
        }
    };
    // The probe is not a job: it does not attach and starts no broker.
    environment.set.push(("WEFT_AUTOSTART", "0".into()));
    environment.set.retain(|(name, _)| *name != "WEFT_SOCKET");
    environment
        .set
        .push(("WEFT_SOCKET", places.directory().join("no-broker-for-the-probe").into()));
    environment.set.push(("WEFT_LOG", "off".into()));
    let asked = std::fs::read_link("/proc/self/exe")
        .map_err(|error| error.to_string())
        .and_then(|program| {
            let mut command = Command::new(program);
            command
                .args(["probe", "--ways"])
                .arg(&driver.path)
                .args((!init).then_some("--no-init"))
                .envs(environment.set.iter().cloned());
            probe_child::run(&mut command, within)
        });
    environment.tidy();
    let ways: WaysReport = match asked {
        Ok(ways) => ways,
        Err(why) => {
            rows.push(ReportRow::fail(
                "interception",
                why,
                "run the job without weft, and report this",
            ));
            return;
        }
    };
    for way in &ways.ways {
        let what = format!("interception: {}", way.way);
        rows.push(match &way.library {
            Some(path) if libraries::same_file(path, &weft) => ReportRow::ok(&what, "reaches weft"),
            Some(path) => ReportRow::fail(
                &what,
                format!("reaches {} past weft", path.display()),
                "weft does not see launches on this way; check that LD_PRELOAD works (not for static or set-user-id programs)",
            ),
            None => ReportRow::fail(&what, "reaches nothing", "the function was not found on this way"),
        });
    }
    rows.extend(init.then(|| match ways.init {
        Some(0) => ReportRow::ok("cuInit through weft", "works"),
        Some(code) => ReportRow::fail(
            "cuInit through weft",
            format!("returns {code}"),
            "report this if cuInit works without weft (row driver version)",
        ),
        None => ReportRow::fail(
            "cuInit through weft",
            "not found",
            "libweft.so was not preloaded: check LD_PRELOAD",
        ),
    }));
    if let Some(beyond) = &ways.beyond {
        rows.push(if beyond.is_empty() {
            ReportRow::ok("symbol table", "knows every function of this driver")
        } else {
            let some: Vec<&str> = beyond.iter().take(5).map(String::as_str).collect();
            let more = if beyond.len() > some.len() { ", ..." } else { "" };
            ReportRow::warn(
                "symbol table",
                format!(
                    "lacks {} functions of this driver: {}{more}",
                    beyond.len(),
                    some.join(", ")
                ),
                "weft does not intercept calls of these functions: it would not see a launch through one of them",
            )
        });
    }
}
