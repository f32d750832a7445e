// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clock of all weft processes.
#![forbid(unsafe_code)]

use std::sync::LazyLock;

use weft_protocol::{Ns, machine_clock};

/// The machine's clock now, ns; one clock for all processes.
pub fn now() -> Ns {
    /// A running process's time namespace does not change.
    static AHEAD: LazyLock<Ns> = LazyLock::new(machine_clock::ahead);
    machine_clock::own().wrapping_sub(*AHEAD)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("the sources").flatten() {
            let path = entry.path();
            match path.is_dir() {
                true => sources(&path, found),
                false => found.push(path),
            }
        }
    }

    /// The wall clock can be set, so no decision depends on it. A profile's date and a log's
    /// lines do.
    #[test]
    fn nothing_that_decides_reads_the_clock_on_the_wall() {
        let broker = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .expect("the broker's crates");
        let mut all = Vec::new();
        for part in ["admission", "api", "daemon", "paging", "protocol", "scheduler"] {
            sources(&broker.join(part).join("src"), &mut all);
        }
        assert!(all.len() > 50, "{} files", all.len());
        // Assembled, so that this file does not contain them.
        let names = [
            ["System", "Time"].concat(),
            ["Clock", "Id::Real"].concat(),
            ["CLOCK_", "REAL"].concat(),
        ];
        for path in all {
            let text = fs::read_to_string(&path).expect("a source");
            let dates = path.ends_with("profiles/writer.rs") || path.ends_with("log_file.rs");
            let named = names.iter().find(|name| text.contains(name.as_str()));
            assert!(dates || named.is_none(), "{}: {named:?}", path.display());
        }
    }
}
