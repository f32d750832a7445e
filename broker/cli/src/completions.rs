//! `weft completions` and `weft man`: what shells and `man` know of the command line, made from the
//! command line itself.
#![forbid(unsafe_code)]

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap_complete::{Shell, generate};

/// Print a shell's completions of this command
#[derive(Debug, clap::Args)]
#[command(after_help = "  weft completions bash > ~/.local/share/bash-completion/completions/weft")]
pub struct CompletionsArgs {
    /// For which shell
    pub shell: Shell,
}

/// Write the manual pages, one a subcommand
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// The folder that they are written to
    pub folder: PathBuf,
}

/// Prints the completions.
pub fn completions(args: CompletionsArgs, mut command: clap::Command) -> Result<ExitCode> {
    let mut text = Vec::new();
    generate(args.shell, &mut command, "weft", &mut text);
    // A closed pipe (`| head`) is no error.
    let _ = std::io::stdout().write_all(&text);
    Ok(ExitCode::SUCCESS)
}

/// Writes the pages.
pub fn man(args: ManArgs, command: clap::Command) -> Result<ExitCode> {
    let written = || {
        std::fs::create_dir_all(&args.folder)?;
        clap_mangen::generate_to(command, &args.folder)
    };
    written().with_context(|| format!("cannot write manual pages to {}", args.folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
