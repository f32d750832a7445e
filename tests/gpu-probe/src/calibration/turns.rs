// SPDX-License-Identifier: MIT OR Apache-2.0
//! The times at which each of several processes had the device, from the stamps of their kernels.
//! Pure.
//!
//! Each process sends one kernel after another. A kernel records its begin, its end, and the two
//! readings of the device's clock around its longest pause. A preempted kernel paused; without
//! preemption no pause exceeds a few clock steps.

/// One kernel: first reading, last reading, the two around its longest pause.
pub type Stamp = [u64; 4];

/// Longest pause without preemption. The device's clock may step by 1 us; another process's turn
/// takes at least two switches.
const PAUSE_NS: u64 = 5_000;

/// A stretch of time in which a process's kernels ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    from: u64,
    to: u64,
    process: usize,
}

/// Findings.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SeenTurns {
    /// Times from one process's last instruction to the next one's first, nanoseconds.
    pub switches: Vec<f64>,
    /// Times from the first to the last instruction of a turn that was neither the first nor the
    /// last, nanoseconds.
    pub turns: Vec<f64>,
    /// The share of the time, while all had work, in which kernels of two processes ran at once.
    pub overlap: f64,
    /// Number of kernels that were preempted.
    pub preempted: usize,
}

/// The stretches of one process. `ns` is a kernel's own time: a kernel that took longer without a
/// pause was away at a time that it does not know.
fn pieces(stamps: &[Stamp], process: usize, ns: u64, preempted: &mut usize) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(stamps.len());
    for &[from, to, pause, resume] in stamps {
        let piece = |from, to| Piece { from, to, process };
        if resume.saturating_sub(pause) > PAUSE_NS {
            *preempted += 1;
            pieces.push(piece(from, pause));
            pieces.push(piece(resume, to));
        } else if to.saturating_sub(from) > ns + PAUSE_NS {
            *preempted += 1;
            pieces.push(piece(from, from));
            pieces.push(piece(to, to));
        } else {
            pieces.push(piece(from, to));
        }
    }
    pieces
}

/// Evaluates the time in which all processes had work: the stamps of each.
pub fn seen(stamps: &[Vec<Stamp>], ns: u64) -> SeenTurns {
    let mut seen = SeenTurns::default();
    let (mut all, mut from, mut to) = (Vec::new(), 0, u64::MAX);
    for (process, stamps) in stamps.iter().enumerate() {
        let pieces = pieces(stamps, process, ns, &mut seen.preempted);
        from = from.max(pieces.iter().map(|piece| piece.from).min().unwrap_or(u64::MAX));
        to = to.min(pieces.iter().map(|piece| piece.to).max().unwrap_or(0));
        all.extend(pieces);
    }
    all.retain(|piece: &Piece| piece.from >= from && piece.to <= to);
    all.sort_by_key(|piece| (piece.from, piece.to));

    let mut shared = 0;
    let mut ends = vec![0u64; stamps.len()];
    for piece in &all {
        for (process, end) in ends.iter_mut().enumerate() {
            if process == piece.process {
                *end = piece.to.max(*end);
            } else {
                shared += piece.to.min(*end).saturating_sub(piece.from);
            }
        }
    }
    if to > from {
        seen.overlap = shared as f64 / (to - from) as f64;
    }

    // Turns: stretches of one process without a piece of another between them.
    let mut turns: Vec<Piece> = Vec::new();
    for piece in all {
        match turns.last_mut() {
            Some(turn) if turn.process == piece.process => turn.to = turn.to.max(piece.to),
            _ => turns.push(piece),
        }
    }
    for pair in turns.windows(2) {
        if let [before, after] = pair
            && after.from >= before.to
        {
            seen.switches.push((after.from - before.to) as f64);
        }
    }
    if let [_, inner @ .., _] = turns.as_slice() {
        seen.turns.extend(inner.iter().map(|turn| (turn.to - turn.from) as f64));
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kernels of `ns` back to back.
    fn run(from: u64, count: u64, ns: u64) -> Vec<Stamp> {
        (0..count)
            .map(|at| [from + at * ns, from + (at + 1) * ns, from + at * ns, from + at * ns])
            .collect()
    }

    #[test]
    fn turns_and_switches_of_two_processes() {
        let first = [run(0, 10, 10_000), run(300_000, 10, 10_000), run(600_000, 1, 10_000)].concat();
        let second = [run(150_000, 10, 10_000), run(450_000, 10, 10_000)].concat();
        let seen = seen(&[first, second], 10_000);
        assert_eq!(seen.switches, [50_000.0, 50_000.0]);
        assert_eq!(seen.turns, [100_000.0]);
        assert_eq!((seen.overlap, seen.preempted), (0.0, 0));
    }

    #[test]
    fn a_preempted_kernel_says_when_it_paused() {
        // The first process: one long kernel, paused from 60 to 200 us.
        let first = vec![[0, 300_000, 60_000, 200_000], [300_000, 310_000, 300_000, 300_000]];
        let second = vec![[80_000, 150_000, 80_000, 80_000], [400_000, 410_000, 400_000, 400_000]];
        let seen = seen(&[first, second], 160_000);
        assert_eq!(seen.preempted, 1);
        // Before the second process's first kernel, only one had work.
        assert_eq!(seen.switches, [50_000.0]);
    }

    #[test]
    fn a_kernel_that_was_away_and_does_not_know_when_counts_at_its_ends() {
        let first = vec![
            [0, 5_000, 0, 0],
            [100_000, 310_000, 100_000, 100_000],
            [310_000, 320_000, 310_000, 310_000],
        ];
        let second = vec![
            [50_000, 60_000, 50_000, 50_000],
            [200_000, 210_000, 200_000, 200_000],
            [400_000, 410_000, 400_000, 400_000],
        ];
        let seen = seen(&[first, second], 10_000);
        assert_eq!(seen.preempted, 1);
        assert_eq!(seen.switches, [40_000.0, 100_000.0, 100_000.0]);
    }

    #[test]
    fn kernels_that_run_at_once_overlap() {
        let seen = seen(&[run(0, 10, 10_000), run(0, 10, 10_000)], 10_000);
        assert_eq!(seen.overlap, 1.0);
        assert_eq!(super::seen(&[vec![], run(0, 1, 5)], 5), SeenTurns::default());
    }

    #[test]
    fn three_processes_take_turns() {
        let turns = |from| [run(from, 5, 10_000), run(from + 300_000, 5, 10_000)].concat();
        let seen = seen(&[turns(0), turns(100_000), turns(200_000)], 10_000);
        // While all had work: from the third's first kernel to the first's last.
        assert_eq!(seen.switches, [50_000.0]);
        assert_eq!((seen.overlap, seen.preempted), (0.0, 0));
    }
}
