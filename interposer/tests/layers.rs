//! What may depend on what: the rooms of the interposer stand on floors, and none knows one above
//! it.

use std::fs;
use std::path::{Path, PathBuf};

/// The rooms, lowest floor first. Rooms of one floor may not know one another, but for the first
/// floor, which holds what every room uses.
const FLOORS: [&[&str]; 11] = [
    &["internal_error", "lock", "process", "report", "thread"],
    &["driver"],
    &["client", "kernels"],
    &["paging", "profiler", "trace"],
    &["admission"],
    &["throttle"],
    &["deferred"],
    &["lifecycle"],
    &["hooks"],
    &["trace/hooks.rs"],
    &["exports"],
];

/// Rooms above all of them.
const TOP: [&str; 2] = ["about", "lookup"];

fn floor(room: &str) -> usize {
    if TOP.contains(&room) {
        return FLOORS.len();
    }
    let floor = FLOORS.iter().position(|rooms| rooms.contains(&room));
    floor.unwrap_or_else(|| panic!("{room} stands on no floor"))
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the sources") {
        let path = entry.expect("an entry of it").path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// The rooms that a source names by `crate::`, without its tests and comments.
fn named(source: &str) -> Vec<String> {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    let code: String = lines.collect::<Vec<_>>().join(" ");
    let mut rooms = Vec::new();
    for path in code.split("crate::").skip(1) {
        let (list, name) = match path.strip_prefix('{') {
            Some(rest) => (rest.split_once("};").map_or(rest, |(list, _)| list), ""),
            None => ("", path),
        };
        let mut depth = 0;
        let mut outer = String::new();
        for letter in list.chars() {
            depth += i32::from(letter == '{') - i32::from(letter == '}');
            if depth == 0 {
                outer.push(letter);
            }
        }
        for part in outer.split(',').chain([name]) {
            let word = part.trim().split(|c: char| !c.is_alphanumeric() && c != '_').next();
            rooms.extend(word.filter(|word| !word.is_empty()).map(str::to_owned));
        }
    }
    rooms
}

#[test]
fn no_room_knows_one_above_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut seen = 0;
    let mut wrong = Vec::new();
    for path in files {
        let inside = path
            .strip_prefix(&root)
            .expect("below the root")
            .to_string_lossy()
            .into_owned();
        if inside == "lib.rs" || inside.contains("/tests/") {
            continue;
        }
        let room = inside.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        let own = if inside == "trace/hooks.rs" {
            floor(&inside)
        } else {
            floor(room)
        };
        let source = fs::read_to_string(&path).expect("a source");
        for other in named(&source) {
            seen += 1;
            let below = floor(&other) < own || own == 0 && floor(&other) == 0;
            if other != room && !below {
                wrong.push(format!("{inside} knows {other}"));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
    assert!(seen > 300, "{seen} dependencies were read");
}

#[test]
fn dependencies_are_read_in_every_form() {
    let source = "use crate::{driver::{abi, calls}, thread};\nuse crate::hooks::x; // crate::nothing\n$crate::table::y";
    assert_eq!(named(source), ["driver", "thread", "hooks", "table"]);
}
