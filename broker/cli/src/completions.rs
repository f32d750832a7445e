// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft completions` and `weft man`: shell completions and manual pages, generated from the
//! definition of the command line.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap_complete::{Shell, generate};

use super::text;

/// Sections at the end of the page `weft(1)` that are not part of the help.
const SECTIONS: &str = "\
.SH ENVIRONMENT
\\fBWEFT_PRIORITY\\fR, \\fBWEFT_PROFILE\\fR, \\fBWEFT_MEMORY\\fR and the other options of a job:
\\fBweft run\\fR sets them; a job under a plain preload has only these.
\\fBWEFT_SOCKET\\fR is the broker's socket, \\fBWEFT_CONFIG\\fR one file of settings instead of the
usual ones, \\fBWEFT_LOG\\fR the log level.
.SH FILES
.TP
\\fI/etc/weft/weft.toml\\fR, \\fI~/.config/weft/weft.toml\\fR
Settings of the machine and of a user. \\fBweft config show\\fR prints the values in force.
.TP
\\fI/run/weft/broker.sock\\fR, \\fI$XDG_RUNTIME_DIR/weft/broker.sock\\fR
Sockets of the shared broker, and of a user's own.
.TP
\\fI~/.local/share/weft/profiles\\fR
Profiles.
.TP
\\fI~/.local/state/weft\\fR, \\fI/var/lib/weft\\fR
History of ended jobs.
.SH EXIT STATUS
0: done. 1: failed; one line on stderr gives the reason. 2: the command line, a variable or a file
of settings is wrong. 73: \\fBweft profile\\fR made no profile. 75: no memory was free for a job with
\\fB\\-\\-no\\-wait\\fR. 126, 127: the job's program cannot be executed or was not found. All other
codes are the job's own.
.SH SEE ALSO
\\fBnvidia\\-smi\\fR(1), \\fBsystemctl\\fR(1), \\fI/usr/share/doc/weft/docs\\fR
";

/// Print shell completions for this command
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  weft completions bash > ~/.local/share/bash-completion/completions/weft")]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// Write the manual pages, one per subcommand
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Folder to write to
    pub folder: PathBuf,
}

/// Prints the completions.
pub fn completions(args: CompletionsArgs, mut command: clap::Command) -> Result<ExitCode> {
    let mut page = Vec::new();
    generate(args.shell, &mut command, "weft", &mut page);
    text::put(&page);
    Ok(ExitCode::SUCCESS)
}

/// Writes the pages.
pub fn man(args: ManArgs, command: clap::Command) -> Result<ExitCode> {
    let written = || {
        std::fs::create_dir_all(&args.folder)?;
        clap_mangen::generate_to(command, &args.folder)?;
        let mut page = File::options().append(true).open(args.folder.join("weft.1"))?;
        page.write_all(SECTIONS.as_bytes())
    };
    written().with_context(|| format!("cannot write manual pages to {}", args.folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
