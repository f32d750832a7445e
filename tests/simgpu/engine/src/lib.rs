//! The simulated GPU's engine, in virtual time.
