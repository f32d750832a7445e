//! Two jobs on managed memory: what the page ledger of the simulated GPU and the planner of working sets need to know.
#![forbid(unsafe_code)]
