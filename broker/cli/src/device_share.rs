// SPDX-License-Identifier: MIT OR Apache-2.0
//! The variables with which a job requests priorities and SMs from the device itself. The driver
//! reads them at `cuInit`, and ignores them unless the job runs under MPS.
//!
//! [`weft_protocol::device_share`] decides, and documents the driver's behaviour. `libweft.so`
//! handles stream priorities.
#![forbid(unsafe_code)]

use std::ffi::OsString;

pub use weft_protocol::device_share::SmShare;
use weft_protocol::device_share::{
    ACTIVE_THREADS, BELOW_NORMAL, CLIENT_PRIORITY, FIRST_BELOW_NORMAL, SWITCH, SmLimit, SmOffer, begins_below_normal,
    parse_switch, sm_limit,
};
use weft_protocol::priority;
use weft_protocol::slowdown::is_part;

/// Priority of a job whose variable is invalid, as in `libweft.so`.
const PRIORITY_OF_A_MISTAKE: u8 = 9;

/// Whether weft sets device priorities, or the error in [`SWITCH`].
pub fn check(current: &dyn Fn(&str) -> OsString) -> Result<bool, String> {
    parse_switch(&current(SWITCH).to_string_lossy())
}

/// The variables of a job with this `--priority` and `--sm-share`; `current` is its environment.
/// A client priority that the user set stays. `most_important`: see [`begins_below_normal`]. A job
/// with a part of the GPU's time (`at_least`) is not below normal: the device would hold it back.
pub fn variables(
    priority: Option<u8>,
    at_least: Option<u32>,
    sm_share: Option<SmShare>,
    most_important: Option<u8>,
    current: &dyn Fn(&str) -> OsString,
) -> Vec<(&'static str, OsString)> {
    let mut set = Vec::new();
    let said = || is_part(&current("WEFT_AT_LEAST").to_string_lossy());
    let has_part = at_least.map_or_else(said, |part| part > 0);
    let wanted = check(current).unwrap_or(true) && !has_part;
    let below = begins_below_normal(priority.unwrap_or_else(|| asked(current)), most_important);
    if wanted && below && current(CLIENT_PRIORITY).is_empty() {
        set.push((CLIENT_PRIORITY, BELOW_NORMAL.into()));
    }
    // The driver is not known yet. The job's own process warns if the limit has no effect.
    if let SmLimit::ActiveThreads(share) = sm_limit(SmOffer::default(), sm_share) {
        set.push((ACTIVE_THREADS, share.percent().to_string().into()));
    }
    set
}

/// The priority that `WEFT_PRIORITY` gives.
fn asked(current: &dyn Fn(&str) -> OsString) -> u8 {
    match current("WEFT_PRIORITY").to_string_lossy().trim() {
        "" => FIRST_BELOW_NORMAL,
        text => priority::parse(text).unwrap_or(PRIORITY_OF_A_MISTAKE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(priority: Option<u8>, share: Option<&str>, environment: &[(&str, &str)]) -> Vec<String> {
        beside(None, priority, share, environment)
    }

    fn beside(
        most_important: Option<u8>,
        priority: Option<u8>,
        share: Option<&str>,
        environment: &[(&str, &str)],
    ) -> Vec<String> {
        let current = |name: &str| {
            let found = environment.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| OsString::from(value)).unwrap_or_default()
        };
        let share = share.map(|text| SmShare::parse(text).expect("a share"));
        let set = variables(priority, None, share, most_important, &current);
        set.into_iter()
            .map(|(name, value)| format!("{name}={}", value.display()))
            .collect()
    }

    const BELOW: &str = "CUDA_MPS_CLIENT_PRIORITY=1";

    #[test]
    fn jobs_that_matter_less_say_so_to_the_device() {
        let nothing: [&str; 0] = [];
        assert_eq!(shown(Some(0), None, &[]), nothing);
        assert_eq!(shown(Some(4), None, &[]), nothing);
        assert_eq!(shown(Some(5), None, &[]), [BELOW]);
        assert_eq!(shown(None, None, &[]), [BELOW], "who asks for nothing has 5");
        assert_eq!(shown(None, None, &[("WEFT_PRIORITY", "0")]), nothing);
        assert_eq!(shown(None, None, &[("WEFT_PRIORITY", "high")]), nothing);
        assert_eq!(shown(None, None, &[("WEFT_PRIORITY", "hgih")]), [BELOW]);
        assert_eq!(shown(Some(9), None, &[("WEFT_PRIORITY", "0")]), [BELOW]);
        assert_eq!(shown(Some(9), None, &[("WEFT_AT_LEAST", "30%")]), nothing);
        assert_eq!(shown(Some(9), None, &[("WEFT_AT_LEAST", "0")]), [BELOW]);
    }

    #[test]
    fn a_job_is_below_normal_beside_a_more_important_one() {
        let nothing: [&str; 0] = [];
        assert_eq!(beside(Some(0), Some(4), None, &[]), [BELOW]);
        assert_eq!(beside(Some(3), None, None, &[("WEFT_PRIORITY", "4")]), [BELOW]);
        assert_eq!(beside(Some(4), Some(4), None, &[]), nothing, "as important");
        assert_eq!(beside(Some(7), Some(4), None, &[]), nothing, "more important");
        assert_eq!(beside(Some(9), Some(5), None, &[]), [BELOW], "another may come");
        assert_eq!(
            beside(Some(0), Some(4), None, &[("CUDA_MPS_CLIENT_PRIORITY", "0")]),
            nothing
        );
    }

    #[test]
    fn what_the_user_said_stays() {
        let nothing: [&str; 0] = [];
        for said in ["0", "1"] {
            let said = [("CUDA_MPS_CLIENT_PRIORITY", said)];
            assert_eq!(shown(Some(9), None, &said), nothing);
        }
        assert_eq!(shown(Some(9), None, &[(SWITCH, "off")]), nothing);
        assert_eq!(shown(Some(9), None, &[(SWITCH, "on")]), [BELOW]);
    }

    #[test]
    fn a_share_of_the_sms_is_asked_of_the_driver() {
        let share = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25";
        assert_eq!(shown(Some(0), Some("25%"), &[]), [share]);
        assert_eq!(shown(Some(9), Some("25 %"), &[(SWITCH, "off")]), [share]);
    }

    #[test]
    fn the_switch_is_on_or_off() {
        for (value, fine) in [("", true), ("on", true), ("off", true), ("0", false)] {
            assert_eq!(check(&|_| value.into()).is_ok(), fine, "{value}");
        }
    }
}
