// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of weft's environment variables, and words that were probably meant by mistyped ones.
#![forbid(unsafe_code)]

/// The begin of each variable's name.
const PREFIX: &str = "WEFT_";

/// Fewest letters of a word that stands for one that begins so: `WEFT_MEM`.
const SHORTEST_BEGIN: usize = 3;

/// The rest of the names of all variables that weft reads or sets.
const NAMES: [&str; 37] = [
    "AT_LEAST",
    "AUTOSTART",
    "BACKING",
    "CONFIG",
    "CONTAINER_LOGS",
    "CUDA_LIBRARY",
    "CUDA_LIBRARY_HINT",
    "DEVICE_PRIORITIES",
    "DURATION",
    "EVICT_IDLE",
    "EVIDENCE",
    "EVIDENCE_FROM",
    "FUZZ",
    "FUZZ_SEEDS",
    "GANG",
    "GPU",
    "LIBRARY",
    "LOG",
    "LONGEST_EVICTED",
    "MEMORY",
    "MODE",
    "NAME",
    "NODE",
    "OUTCOME",
    "PRIORITY",
    "PROFILE",
    "PROFILE_DIR",
    "QUEUE",
    "SLO",
    "SLOWDOWN",
    "SLURM_JOB",
    "SOCKET",
    "STATE_DIR",
    "TEST_PANIC",
    "TRACE",
    "USER",
    "WAIT",
];

/// The fault of a variable whose name is probably a mistyped one; `None` for any other, which may
/// be the user's own.
pub fn mistyped(variable: &str) -> Option<String> {
    let name = variable.strip_prefix(PREFIX)?;
    let near = near(name, NAMES).filter(|near| *near != name)?;
    Some(format!(
        "no variable of weft, so without effect; did you mean {PREFIX}{near}?"
    ))
}

/// The known word that was probably meant: one that begins so, or has nearly the same letters.
pub fn near<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let begins = |other: &str| word.len() >= SHORTEST_BEGIN && word != other && other.starts_with(word);
    let far = |other: &&str| if begins(other) { 1 } else { distance(word, other) };
    let best = known.into_iter().min_by_key(far)?;
    // Two wrong letters in a word of five letters, more in a longer one.
    (far(&best) <= 1 + word.len() / 5).then_some(best)
}

/// Number of letters to insert, remove or replace (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, letter) in one.chars().enumerate() {
        let mut corner = above;
        let mut left = above + 1;
        let mut next = vec![left];
        for (column, same) in other.iter().enumerate() {
            let up = row.get(column + 1).copied().unwrap_or(usize::MAX);
            left = (up + 1).min(left + 1).min(corner + usize::from(letter != *same));
            corner = up;
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn words_are_near_by_their_letters() {
        assert_eq!(distance("policy", "polcy"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        let known = ["slowdown", "slo"];
        assert_eq!(near("slowdwon", known), Some("slowdown"));
        assert_eq!(near("memory", known), None);
    }

    #[test]
    fn a_mistyped_name_has_a_line_and_a_users_own_has_none() {
        for (wrong, meant) in [
            ("WEFT_PRIORTY", "WEFT_PRIORITY"),
            ("WEFT_MOD", "WEFT_MODE"),
            ("WEFT_SOKCET", "WEFT_SOCKET"),
            ("WEFT_PROFILES", "WEFT_PROFILE"),
            ("WEFT_GPUS", "WEFT_GPU"),
            ("WEFT_PRIO", "WEFT_PRIORITY"),
            ("WEFT_MEM", "WEFT_MEMORY"),
        ] {
            let line = mistyped(wrong).expect("a line");
            assert!(line.ends_with(&format!(" {meant}?")), "{line}");
        }
        // A service `weft` of Kubernetes sets some of these in each pod of its namespace.
        for own in [
            "WEFT_HOME",
            "WEFT_PORT",
            "WEFT_SERVICE_HOST",
            "WEFT_PORT_9431_TCP",
            "PRIORTY",
            "WEFT_",
        ] {
            assert_eq!(mistyped(own), None);
        }
        assert!(NAMES.iter().all(|name| mistyped(&format!("{PREFIX}{name}")).is_none()));
    }

    #[test]
    fn the_document_names_the_variables() {
        let page = include_str!("../../../docs/configuration.md");
        let cells = page
            .lines()
            .filter_map(|line| line.strip_prefix('|')?.split('|').next());
        let names = cells
            .flat_map(|cell| cell.split('`'))
            .filter_map(|word| word.strip_prefix(PREFIX));
        assert_eq!(names.collect::<BTreeSet<_>>(), NAMES.into_iter().collect());
    }
}
