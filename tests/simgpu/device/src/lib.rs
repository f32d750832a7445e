//! The simulated GPU's device process and the link clients use.
