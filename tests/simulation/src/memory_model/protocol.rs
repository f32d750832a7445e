//! The broker's `protocol`, once more, with a small ring.

use super::atomic;

#[path = "../../../../broker/protocol/src/board.rs"]
pub mod board;
#[path = "../../../../broker/protocol/src/credit.rs"]
pub mod credit;
#[path = "../../../../broker/protocol/src/errands.rs"]
pub mod errands;
#[path = "../../../../broker/protocol/src/lane/mod.rs"]
pub mod lane;
#[path = "../../../../broker/protocol/src/seat.rs"]
pub mod seat;

pub const VERSION: u32 = 1;
pub const PRIORITIES: usize = 2;
/// A lap of the ring is two records.
pub const RECORDS: usize = 2;
pub const ERRANDS: usize = 2;
pub type Ns = u64;
