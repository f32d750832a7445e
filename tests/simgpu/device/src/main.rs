// SPDX-License-Identifier: MIT OR Apache-2.0
//! `simgpu-device`: the simulated GPU as a process.
//!
//! Clients start it themselves (`serve --detach`). For people there is `status`, and `serve`
//! without `--detach` keeps it in the foreground with errors on stderr.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use simgpu_calibration::Calibration;
use simgpu_device::{Config, server};

const USAGE: &str = "\
usage: simgpu-device serve [--detach] [--socket PATH]   serve until the last client leaves
       simgpu-device status [--socket PATH]             print the state of the running device as JSON
       simgpu-device config                             print the configuration in force as TOML
       simgpu-device calibration [NAME|PATH]            print a calibration's figures with their sources; without a name: which there are
";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("simgpu-device: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next().unwrap_or_default();
    let mut socket: Option<PathBuf> = None;
    let mut detach = false;
    if command == "calibration" {
        return calibration(arguments.next());
    }
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--socket" => socket = Some(arguments.next().context("--socket needs a path")?.into()),
            "--detach" => detach = true,
            _ => bail!("unknown argument {argument}\n{USAGE}"),
        }
    }
    let socket = socket.unwrap_or_else(simgpu_device::default_socket);
    match command.as_str() {
        "serve" => {
            let config = Config::from_environment()?;
            let started =
                server::prepare(&socket, detach).with_context(|| format!("cannot serve {}", socket.display()))?;
            match started {
                Some(started) => Ok(server::DeviceProcess::new(config, started)?.run()?),
                None if detach => Ok(()),
                None => bail!("another device serves {}", socket.display()),
            }
        }
        "status" => {
            let status =
                simgpu_device::status(&socket).with_context(|| format!("no device at {}", socket.display()))?;
            print(&format!("{status}\n"))
        }
        "config" => print(&toml::to_string(&Config::from_environment()?)?),
        "--help" | "-h" | "help" => print(USAGE),
        _ => bail!("{USAGE}"),
    }
}

fn calibration(name: Option<String>) -> anyhow::Result<()> {
    let Some(name) = name else {
        return print(&format!("{}\n", simgpu_calibration::names().join("\n")));
    };
    let calibration = Calibration::load(&name)?;
    calibration.figures()?;
    let mut text = format!("{}\n", calibration.gpu);
    for key in simgpu_calibration::keys() {
        if let Some(value) = calibration.value(&key.name) {
            let from = match calibration.own(&key.name) {
                Some(_) => "",
                None => " (from the base)",
            };
            writeln!(text, "{:34} {:>14}  {}{from}", key.name, value.value, value.source)?;
        }
    }
    print(&text)
}

/// Prints, until the reader has read enough.
fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
