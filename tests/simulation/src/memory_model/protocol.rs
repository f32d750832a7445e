//! The broker's `protocol`, once more, with a small ring.

use super::atomic;

#[path = "../../../../broker/src/protocol/board.rs"]
pub mod board;
#[path = "../../../../broker/src/protocol/credit.rs"]
pub mod credit;
#[path = "../../../../broker/src/protocol/errands.rs"]
pub mod errands;
#[path = "../../../../broker/src/protocol/lane/mod.rs"]
pub mod lane;
#[path = "../../../../broker/src/protocol/seat.rs"]
pub mod seat;

pub const VERSION: u32 = 1;
pub const PRIORITIES: usize = 2;
/// A lap of the ring is two records.
pub const RECORDS: usize = 2;
pub const ERRANDS: usize = 2;
pub type Ns = u64;
