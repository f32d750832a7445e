// SPDX-License-Identifier: MIT OR Apache-2.0
//! This process's requests to the device itself, and their effect. Pure, except that it looks for
//! the folder of the MPS server.
//!
//! The driver reads the variables at `cuInit`, before weft's own settings: weft only reads them
//! too.
#![forbid(unsafe_code)]

use weft_protocol::device_share::{
    ACTIVE_THREADS, BELOW_NORMAL, CLIENT_PRIORITY, DEFAULT_PIPES, FIRST_BELOW_NORMAL, PIPES, SWITCH, SmLimit, SmOffer,
    SmShare, mps_server, parse_switch, sm_limit,
};
use weft_protocol::slowdown::is_part;

/// The environment's requests to the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceShare {
    /// `CUDA_MPS_CLIENT_PRIORITY=1`.
    pub below_normal: bool,
    /// Whether priorities of the job's streams are lowered under MPS: the job matters less, and no
    /// variable forbids it.
    pub lowers_streams: bool,
    /// `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`, if a whole number below 100.
    pub sm_share: Option<SmShare>,
    /// The MPS server that the driver finds at `cuInit`.
    pub mps_server: Option<u64>,
}

impl DeviceShare {
    /// Reads the variables of a job of this priority that `serves`. A wrong variable is a
    /// complaint.
    pub fn read(
        variable: impl Fn(&str) -> Option<String>,
        priority: u8,
        serves: bool,
    ) -> (DeviceShare, Option<String>) {
        let client_priority = variable(CLIENT_PRIORITY);
        let (wanted, complaint) = match parse_switch(variable(SWITCH).as_deref().unwrap_or_default()) {
            Ok(wanted) => (wanted, None),
            Err(wrong) => (true, Some(format!("{wrong}; using on"))),
        };
        // Another client priority is the user's decision that the job is a normal client.
        let others = client_priority.as_deref().is_some_and(|said| said != BELOW_NORMAL);
        // The device would hold back a job that has a part of its time.
        let has_part = variable("WEFT_AT_LEAST").is_some_and(|text| is_part(&text));
        let share = DeviceShare {
            below_normal: client_priority.as_deref() == Some(BELOW_NORMAL),
            lowers_streams: wanted && serves && !others && !has_part && priority >= FIRST_BELOW_NORMAL,
            sm_share: variable(ACTIVE_THREADS)
                .and_then(|text| SmShare::from_percentage(&text))
                .filter(|share| share.percent() < 100),
            mps_server: mps_server(variable(PIPES).as_deref().unwrap_or(DEFAULT_PIPES).as_ref()),
        };
        (share, complaint)
    }

    /// A line for people about the job's state on the device. `mps`: as in
    /// [`crate::driver::device::Device`].
    pub fn note(self, mps: Option<bool>) -> Option<String> {
        let mut parts = Vec::new();
        if mps == Some(true) {
            if self.below_normal {
                parts.push(format!(
                    "its priority is below normal ({CLIENT_PRIORITY}={BELOW_NORMAL})"
                ));
            }
            if self.lowers_streams {
                parts.push("its streams' priorities are lowered as far as their order allows".to_string());
            }
        }
        match self.limit(mps) {
            // Before CUDA 12.4 the effect is unknown.
            SmLimit::ActiveThreads(share) if mps.is_some() => {
                parts.push(format!("it may use {} % of the SMs", share.percent()));
            }
            _ => {}
        }
        (!parts.is_empty()).then(|| format!("on the device, under MPS: {}", parts.join("; ")))
    }

    /// A line for people if the requested share has no effect.
    pub fn warning(self, mps: Option<bool>) -> Option<String> {
        match self.limit(mps) {
            SmLimit::Nothing(share) => Some(format!(
                "{ACTIVE_THREADS}={} (--sm-share) does nothing here: this job does not share its device under MPS",
                share.percent()
            )),
            SmLimit::Whole | SmLimit::ActiveThreads(_) => None,
        }
    }

    fn limit(self, mps: Option<bool>) -> SmLimit {
        let offer = SmOffer {
            mps,
            ..SmOffer::default()
        };
        sm_limit(offer, self.sm_share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(priority: u8, serves: bool, variables: &[(&str, &str)]) -> (DeviceShare, Option<String>) {
        let find = |name: &str| {
            let found = variables.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| value.to_string())
        };
        DeviceShare::read(find, priority, serves)
    }

    #[test]
    fn streams_of_a_job_that_matters_less_are_lowered_unless_somebody_said_otherwise() {
        let lowers = |priority, serves, variables: &[_]| read(priority, serves, variables).0.lowers_streams;
        assert!(lowers(5, true, &[]) && lowers(9, true, &[]));
        assert!(!lowers(4, true, &[]) && !lowers(0, true, &[]));
        assert!(!lowers(9, false, &[]), "it is studied");
        assert!(lowers(9, true, &[(CLIENT_PRIORITY, "1"), (SWITCH, "on")]));
        assert!(!lowers(9, true, &[(CLIENT_PRIORITY, "0")]));
        assert!(!lowers(9, true, &[(SWITCH, "off")]));
        assert!(!lowers(9, true, &[(SWITCH, "off"), (CLIENT_PRIORITY, "1")]));
        let (share, complaint) = read(9, true, &[(SWITCH, "maybe")]);
        assert!(share.lowers_streams);
        let complaint = complaint.expect("a complaint");
        assert!(complaint.contains("WEFT_DEVICE_PRIORITIES=maybe"), "{complaint}");
    }

    #[test]
    fn what_the_device_knows_is_told_where_it_counts() {
        let (share, _) = read(9, true, &[(CLIENT_PRIORITY, "1"), (ACTIVE_THREADS, "25")]);
        let note = share.note(Some(true)).expect("a note");
        for part in ["below normal", "as far as their order allows", "25 % of the SMs"] {
            assert!(note.contains(part), "{part} is not in {note}");
        }
        assert_eq!(share.warning(Some(true)), None);
        assert_eq!(share.note(Some(false)), None);
        assert!(
            share
                .warning(Some(false))
                .expect("a warning")
                .contains("does nothing here")
        );
        assert_eq!((share.note(None), share.warning(None)), (None, None));
        let (normal, _) = read(0, true, &[]);
        assert_eq!((normal.note(Some(true)), normal.warning(Some(false))), (None, None));
        let (whole, _) = read(0, true, &[(ACTIVE_THREADS, "100")]);
        assert_eq!((whole.note(Some(true)), whole.warning(Some(false))), (None, None));
    }
}
