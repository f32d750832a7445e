//! The clock of all weft's processes.
#![forbid(unsafe_code)]

use rustix::time::{ClockId, clock_gettime};

use weft_protocol::Ns;

/// `CLOCK_MONOTONIC` now. The same in every process of the machine.
pub fn now() -> Ns {
    let time = clock_gettime(ClockId::Monotonic);
    // Never negative by its definition.
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
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

    /// The clock on the wall is set, by people and by time servers. What the broker decides hangs
    /// on it nowhere: only the date that a profile bears comes from it.
    #[test]
    fn nothing_that_decides_reads_the_clock_on_the_wall() {
        let broker = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .expect("the broker's crates");
        let mut all = Vec::new();
        for part in ["admission", "daemon", "paging", "protocol", "scheduler"] {
            sources(&broker.join(part).join("src"), &mut all);
        }
        assert!(all.len() > 50, "{} files", all.len());
        // Put together here, so that this file does not name them.
        let names = [
            ["System", "Time"].concat(),
            ["Clock", "Id::Real"].concat(),
            ["CLOCK_", "REAL"].concat(),
        ];
        for path in all {
            let text = fs::read_to_string(&path).expect("a source");
            let dates = path.ends_with("profile_writer.rs");
            let named = names.iter().find(|name| text.contains(name.as_str()));
            assert!(dates || named.is_none(), "{}: {named:?}", path.display());
        }
    }
}
