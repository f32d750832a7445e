// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fit of a profile to its job: the part of the launched kernels that the profile knows.
#![forbid(unsafe_code)]

/// Launches before a profile is judged: a job may prepare with kernels that it launches only once.
pub const MIN_LAUNCHES: u64 = 512;

/// Numbers of kernels that a job launched and that its profile knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProfileFit {
    /// Launched kernels and graphs with times in the profile.
    pub known: u64,
    /// Kernels and graphs launched so far.
    pub seen: u64,
}

impl ProfileFit {
    /// `known < seen / 2`: another job's profile, or other batch sizes.
    pub fn is_poor(&self) -> bool {
        self.known.saturating_mul(2) < self.seen
    }

    /// Line for people; `profile` is its name.
    pub fn line(&self, profile: &str) -> String {
        let ProfileFit { known, seen } = self;
        let kernels = if *seen == 1 { "kernel" } else { "kernels" };
        let fits = format!("profile {profile} knows {known} of the {seen} {kernels} that this job has launched so far");
        match self.is_poor() {
            true => format!("{fits}: is it of another job? (weft profile --name {profile} -- COMMAND records it anew)"),
            false => fits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_than_half_is_poor() {
        for (known, seen, poor) in [
            (0, 0, false),
            (0, 1, true),
            (11, 22, false),
            (10, 22, true),
            (22, 22, false),
        ] {
            assert_eq!(ProfileFit { known, seen }.is_poor(), poor, "{known} of {seen}");
        }
        let line = ProfileFit { known: 0, seen: 22 }.line("resnet");
        assert!(line.starts_with("profile resnet knows 0 of the 22 kernels"), "{line}");
    }
}
