//! What a job asks of the device itself, beside what the broker decides: variables that the driver
//! reads at `cuInit`.
//!
//! Source: NVIDIA's guide to MPS, "Client Priority Level Control" and "Volta MPS Execution Resource
//! Provisioning". Both variables mean something under MPS alone; else the driver ignores them.
//!
//! * `CUDA_MPS_CLIENT_PRIORITY`: 0 is normal, 1 below normal. It maps all of a client's stream
//!   priorities to another range. The guide calls it a hint. It is silent on what "below" is worth.
//! * `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`: the part of the SMs that the client may use.
//!
//! Stream priorities are left as the job asks for them. In CUDA 0 is the default and the least: a
//! stream that asks for nothing has no lower one. The client's priority moves all of them at once.
#![forbid(unsafe_code)]

use std::ffi::OsString;

/// Whether the device is told which jobs matter less: `on` (default) or `off`.
pub const SWITCH: &str = "WEFT_DEVICE_PRIORITIES";

/// Priority of a client of MPS, as the driver reads it.
const CLIENT_PRIORITY: &str = "CUDA_MPS_CLIENT_PRIORITY";

/// Part of the SMs of a client of MPS, per cent.
const ACTIVE_THREADS: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

const BELOW_NORMAL: &str = "1";

/// From this priority on a job is below normal: that of a job which asks for none.
const FIRST_BELOW_NORMAL: u8 = 5;

/// Priority of a job whose variable is mistyped, as in `libweft.so`.
const PRIORITY_OF_A_MISTAKE: u8 = 9;

/// Part of the SMs that a job may use, per cent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmShare(u8);

impl SmShare {
    /// Parses `25%`.
    pub fn parse(text: &str) -> Result<SmShare, String> {
        let percent = text.trim().strip_suffix('%').map(str::trim_end);
        let percent = percent.and_then(|figure| figure.parse().ok());
        let percent = percent.filter(|percent| (1..=100).contains(percent));
        percent
            .map(SmShare)
            .ok_or_else(|| format!("{text} is no part of the SMs: write 25%, a whole number from 1% to 100%"))
    }
}

/// Checks [`SWITCH`].
pub fn check(current: &dyn Fn(&str) -> OsString) -> Result<(), String> {
    match current(SWITCH).to_string_lossy().trim() {
        "" | "on" | "off" => Ok(()),
        other => Err(format!("{SWITCH}={other} is neither on nor off")),
    }
}

/// The variables of a job with this `--priority` and `--sm-share`; `current` is its environment.
/// A client priority that the user set stays.
pub fn variables(
    priority: Option<u8>,
    sm_share: Option<SmShare>,
    current: &dyn Fn(&str) -> OsString,
) -> Vec<(&'static str, OsString)> {
    let mut set = Vec::new();
    let wanted = current(SWITCH).to_string_lossy().trim() != "off";
    let below = priority.unwrap_or_else(|| asked(current)) >= FIRST_BELOW_NORMAL;
    if wanted && below && current(CLIENT_PRIORITY).is_empty() {
        set.push((CLIENT_PRIORITY, BELOW_NORMAL.into()));
    }
    if let Some(SmShare(percent)) = sm_share {
        set.push((ACTIVE_THREADS, percent.to_string().into()));
    }
    set
}

/// The priority that `WEFT_PRIORITY` gives.
fn asked(current: &dyn Fn(&str) -> OsString) -> u8 {
    match current("WEFT_PRIORITY").to_string_lossy().trim() {
        "" => FIRST_BELOW_NORMAL,
        text => text.parse().unwrap_or(PRIORITY_OF_A_MISTAKE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(priority: Option<u8>, share: Option<&str>, environment: &[(&str, &str)]) -> Vec<String> {
        let current = |name: &str| {
            let found = environment.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| OsString::from(value)).unwrap_or_default()
        };
        let share = share.map(|text| SmShare::parse(text).expect("a share"));
        let set = variables(priority, share, &current);
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
        assert_eq!(shown(None, None, &[("WEFT_PRIORITY", "high")]), [BELOW]);
        assert_eq!(shown(Some(9), None, &[("WEFT_PRIORITY", "0")]), [BELOW]);
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
        for wrong in ["25", "0%", "101%", "-1%", "2.5%", "0.25", "a%", "%", ""] {
            assert!(SmShare::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_switch_is_on_or_off() {
        for (value, fine) in [("", true), ("on", true), ("off", true), ("0", false)] {
            assert_eq!(check(&|_| value.into()).is_ok(), fine, "{value}");
        }
    }
}
