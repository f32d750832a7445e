//! The simulated device process.
fn main() {}
