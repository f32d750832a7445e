// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nice values that give jobs the order of a policy. Pure.
//!
//! Slurm starts jobs by descending priority, and subtracts a job's nice value from its priority. So
//! a job's *base*, priority plus nice, is its priority without a nice value. The largest set of
//! jobs whose priorities already descend in the policy's order keep their values. The others get
//! values between them; if there is no room, all values are set anew.
//!
//! No job gets a priority below the lowest base while there is room above it. A job submitted next
//! has a base about that low, so it waits behind the others until weft has seen it.

/// Largest priority that is used. Slurm gives the largest 32-bit numbers other meanings.
const TOP: i64 = 4_294_967_000;
/// Smallest priority that is used: 0 is a held job, and 1 is Slurm's lower limit.
const BOTTOM: i64 = 2;
/// Largest distance between two jobs. Priorities also change with a job's age.
const STEP: i64 = 1_000;
/// Largest absolute nice value of Slurm.
const MOST_NICE: i64 = 2_147_483_645;

/// A waiting job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranked {
    pub priority: u32,
    pub nice: i64,
}

impl Ranked {
    fn base(&self) -> i64 {
        i64::from(self.priority) + self.nice
    }
}

/// Nice values to change, by index. `jobs` are in the order in which they should start.
pub fn changes(jobs: &[Ranked]) -> Vec<(usize, i64)> {
    let floor = jobs.iter().map(Ranked::base).min().unwrap_or(0).max(BOTTOM);
    let kept = longest_descent(jobs);
    if kept.len() == jobs.len() {
        return Vec::new();
    }
    let targets = between(jobs, &kept, floor).unwrap_or_else(|| anew(jobs.len(), floor));
    let nice = |(at, target): (usize, i64)| (at, (jobs[at].base() - target).clamp(-MOST_NICE, MOST_NICE));
    let changed = targets.into_iter().map(nice);
    changed.filter(|(at, nice)| jobs[*at].nice != *nice).collect()
}

/// Indexes of the longest subsequence of jobs whose priorities descend strictly.
fn longest_descent(jobs: &[Ranked]) -> Vec<usize> {
    // For each length of a descent, the end of the descent that ends highest.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(jobs.len());
    for (at, job) in jobs.iter().enumerate() {
        let length = ends.partition_point(|end| jobs[*end].priority > job.priority);
        before.push(length.checked_sub(1).map(|length| ends[length]));
        if length == ends.len() {
            ends.push(at);
        } else {
            ends[length] = at;
        }
    }
    let mut kept: Vec<usize> = std::iter::successors(ends.last().copied(), |at| before[*at]).collect();
    kept.reverse();
    kept
}

/// Priorities for the jobs not in `kept`, between those in `kept`; `None` if there is no room.
fn between(jobs: &[Ranked], kept: &[usize], floor: i64) -> Option<Vec<(usize, i64)>> {
    let mut targets = Vec::new();
    let (mut first, mut above) = (0, None);
    let ends = kept.iter().copied().map(Some).chain([None]);
    for end in ends {
        let until = end.unwrap_or(jobs.len());
        let count = (until - first) as i64;
        let below = end.map_or(floor - 1, |at| i64::from(jobs[at].priority));
        if count > 0 {
            // All the room above is free before the first kept job.
            let above = above.unwrap_or((below + (count + 1) * STEP).min(TOP + 1));
            let step = (above - below) / (count + 1);
            // Kept jobs may be below the floor, because of their users' nice values.
            if step < 1 {
                return None;
            }
            let step = step.min(STEP);
            // Close to the job below, so that the remaining room adds to the large room above.
            targets.extend((0..count).map(|place| (first + place as usize, below + (count - place) * step)));
        }
        above = end.map(|at| i64::from(jobs[at].priority));
        first = until + 1;
    }
    Some(targets)
}

/// Priorities for all `count` jobs, above the floor if there is room.
fn anew(count: usize, floor: i64) -> Vec<(usize, i64)> {
    let many = count as i64;
    let floor = floor.min(TOP - many).max(BOTTOM);
    let step = ((TOP - floor) / many.max(1)).clamp(1, STEP);
    (0..count).map(|at| (at, floor + (many - at as i64) * step)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(priority: u32) -> Ranked {
        Ranked { priority, nice: 0 }
    }

    /// The jobs after Slurm has applied the changes.
    fn applied(jobs: &[Ranked]) -> Vec<Ranked> {
        let mut after = jobs.to_vec();
        for (at, nice) in changes(jobs) {
            let priority = (after[at].base() - nice).max(1);
            after[at] = Ranked {
                priority: u32::try_from(priority).expect("a priority of Slurm's"),
                nice,
            };
        }
        after
    }

    fn descends(jobs: &[Ranked]) -> bool {
        jobs.windows(2).all(|two| two[0].priority > two[1].priority)
    }

    #[test]
    fn an_order_that_is_there_costs_nothing() {
        let jobs: Vec<Ranked> = (0..300).map(|number| job(4_294_901_759 - number)).collect();
        assert!(changes(&jobs).is_empty());
        assert!(changes(&[]).is_empty());
        assert!(changes(&jobs[..1]).is_empty());
    }

    #[test]
    fn a_job_that_moves_to_the_front_costs_one_change() {
        let mut jobs: Vec<Ranked> = (0..300).map(|number| job(4_294_901_759 - number)).collect();
        let last = jobs.pop().unwrap();
        jobs.insert(0, last);
        assert_eq!(changes(&jobs).len(), 1);
        assert!(descends(&applied(&jobs)));
    }

    #[test]
    fn any_order_of_priorities_of_either_plugin_comes_about() {
        // By arrival from the top, by weights, and all at Slurm's lower limit of 1.
        for (first, step) in [(4_294_901_759u32, 1u32), (90_000, 37), (1, 0)] {
            for count in [2u32, 3, 40, 300, 1_000] {
                let jobs: Vec<Ranked> = (0..count)
                    .map(|number| {
                        let drawn = u64::from(number) * 7_919 % u64::from(count);
                        job(first - step * drawn as u32)
                    })
                    .collect();
                let after = applied(&jobs);
                assert!(descends(&after), "{first} {count}");
                assert!(changes(&after).is_empty(), "{first} {count}");
                // A job submitted now has a lower base, so it is last.
                let lowest = jobs.iter().map(|job| job.priority).min().unwrap();
                assert!(after.iter().all(|job| job.priority >= lowest), "{first} {count}");
                // The reversed order, on top of that.
                let mut turned = after;
                turned.reverse();
                assert!(descends(&applied(&turned)), "{first} {count}");
            }
        }
    }

    #[test]
    fn nice_values_that_users_gave_are_no_bar() {
        for count in [2u32, 3, 8, 40, 300] {
            let jobs: Vec<Ranked> = (0..count)
                .map(|number| {
                    let nice = number * 7_919 % 5_000;
                    Ranked {
                        priority: 4_294_901_759 - number - nice,
                        nice: i64::from(nice),
                    }
                })
                .collect();
            let after = applied(&jobs);
            assert!(descends(&after), "{count}: {after:?}");
            assert!(changes(&after).is_empty(), "{count}");
        }
    }

    #[test]
    fn where_there_is_no_room_above_all_go_lower() {
        let jobs: Vec<Ranked> = (0..70_000u32).rev().map(|number| job(4_294_901_759 - number)).collect();
        assert!(descends(&applied(&jobs)));
    }

    #[test]
    fn most_jobs_keep_their_value() {
        let jobs = [5, 9, 8, 3, 7, 6, 1].map(job);
        assert_eq!(longest_descent(&jobs), [1, 2, 4, 5, 6]);
    }
}
