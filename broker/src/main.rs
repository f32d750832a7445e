//! The `weft` command. Everything is in [`weft_broker::cli`].
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    weft_broker::cli::main()
}
