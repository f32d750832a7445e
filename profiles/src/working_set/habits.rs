//! What the order of launches says about memory: what is never written once it is filled, and what is dead between two launches.
//!
//! A job repeats itself: a training step, a decoded token. From the regions of one period in their order follows for every piece of memory which launch reads it
//! and which one overwrites it. From a piece's last read until it is overwritten its content is dead; a piece that is only read is as good as its copy on the host.
//!
//! Memory moves in granules, and a granule holds pieces of many tensors: it is dead only where all of it is ([`Habits::granules`]).
#![forbid(unsafe_code)]

use super::{Access, Region, Touched};

/// Pieces that are kept of one period at most. Beyond it later launches are left out, and everything counts as read and written.
const MAX_TOUCHES: usize = 1 << 20;

/// The launches of one period with what they touch.
#[derive(Debug, Clone, Default)]
pub struct Habits {
    /// Launch, and what it touches.
    touches: Vec<(u32, Touched)>,
    launches: u32,
    /// Some launches were left out.
    cut: bool,
}

/// A piece of memory through one period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lifetime {
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Launches that touch it, by order.
    pub touches: Vec<(u32, Access)>,
}

impl Lifetime {
    /// Nothing writes it.
    pub fn unwritten(&self) -> bool {
        self.touches.iter().all(|(_, access)| !access.writes())
    }

    /// Launch after which it is dead, and launch that overwrites it; the second may be in the next period (then it is not greater than the first).
    pub fn dead(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        (0..self.touches.len()).filter_map(|at| {
            let next = (at + 1) % self.touches.len();
            let (launch, access) = self.touches[next];
            (access == Access::Write).then_some((self.touches[at].0, launch))
        })
    }
}

/// Neighbouring granules that launches use in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GranuleUse {
    /// By which launch.
    pub launch: u32,
    /// Number of the first: its address over the granule's size.
    pub first: u64,
    /// How many.
    pub count: u32,
    /// [`Access::Write`] only if nothing of what the granules held before this launch is read again.
    pub access: Access,
}

impl Habits {
    /// Of no launch yet.
    pub fn new() -> Habits {
        Habits::default()
    }

    /// The next launch of the period.
    pub fn launch(&mut self, regions: &[Region]) {
        let number = self.launches;
        self.launches += 1;
        for region in regions {
            // A region of very many chunks is looked at as a whole; then nothing says that all of it is overwritten.
            if region.chunks > 4096 {
                let whole = Touched {
                    address: region.address,
                    bytes: region.end() - region.address,
                    access: region.access.and(Access::Read),
                };
                self.touches.push((number, whole));
            } else {
                self.touches.extend(region.parts().map(|part| (number, part)));
            }
        }
        if self.touches.len() > MAX_TOUCHES {
            self.touches.truncate(MAX_TOUCHES);
            self.cut = true;
        }
    }

    /// Launches so far.
    pub fn launches(&self) -> u32 {
        self.launches
    }

    /// Every piece that is touched, by address, neighbours with the same life as one.
    pub fn lifetimes(&self) -> Vec<Lifetime> {
        // Where some launch's region begins or ends, a piece does.
        let mut edges: Vec<u64> = self
            .touches
            .iter()
            .filter(|(_, touched)| touched.bytes > 0)
            .flat_map(|(_, touched)| [touched.address, touched.end()])
            .collect();
        edges.sort_unstable();
        edges.dedup();
        let mut pieces: Vec<Vec<(u32, Access)>> = vec![Vec::new(); edges.len()];
        for (launch, touched) in self.touches.iter().filter(|(_, touched)| touched.bytes > 0) {
            let from = edges.partition_point(|edge| *edge < touched.address);
            let until = edges.partition_point(|edge| *edge < touched.end());
            for piece in &mut pieces[from..until] {
                let access = if self.cut { Access::ReadWrite } else { touched.access };
                match piece.last_mut() {
                    Some((last, before)) if last == launch => *before = before.and(access),
                    _ => piece.push((*launch, access)),
                }
            }
        }
        let mut lives: Vec<Lifetime> = Vec::new();
        for (at, touches) in pieces.into_iter().enumerate() {
            if touches.is_empty() {
                continue;
            }
            let (address, end) = (edges[at], edges[at + 1]);
            match lives.last_mut() {
                Some(last) if last.address + last.bytes == address && last.touches == touches => {
                    last.bytes += end - address
                }
                _ => lives.push(Lifetime {
                    address,
                    bytes: end - address,
                    touches,
                }),
            }
        }
        lives
    }

    /// Which granules of `granule` bytes each launch uses, in the order of launches: what a planner is told.
    ///
    /// It is what one period showed. Whoever drops a granule because it is dead here must know that the period goes on as it did: a launch that was never seen may
    /// read it. Bytes that no launch of the period touches are never taken for dead.
    pub fn granules(&self, granule: u64) -> Vec<GranuleUse> {
        let granule = granule.max(1);
        let lives = self.lifetimes();
        let mut uses: Vec<GranuleUse> = Vec::new();
        // Pieces of one granule: which life, how many bytes of it.
        let mut inside: Vec<(&Lifetime, u64)> = Vec::new();
        let mut number = 0;
        for life in &lives {
            let end = life.address.saturating_add(life.bytes);
            let mut at = life.address;
            while at < end {
                if at / granule != number {
                    granule_uses(&inside, number, granule, &mut uses);
                    inside.clear();
                    number = at / granule;
                }
                let until = end.min((number + 1).saturating_mul(granule));
                inside.push((life, until - at));
                at = until;
            }
        }
        granule_uses(&inside, number, granule, &mut uses);
        uses.sort_by_key(|one| (one.launch, one.first));
        let mut joined: Vec<GranuleUse> = Vec::new();
        for one in uses {
            match joined.last_mut() {
                Some(last)
                    if last.launch == one.launch
                        && last.access == one.access
                        && last.first + u64::from(last.count) == one.first =>
                {
                    last.count += 1;
                }
                _ => joined.push(one),
            }
        }
        joined
    }
}

/// How launches use one granule with these pieces in it.
fn granule_uses(inside: &[(&Lifetime, u64)], number: u64, granule: u64, uses: &mut Vec<GranuleUse>) {
    let covered = inside.iter().map(|(_, bytes)| bytes).sum::<u64>() == granule;
    let mut launches: Vec<u32> = inside
        .iter()
        .flat_map(|(life, _)| life.touches.iter().map(|(launch, _)| *launch))
        .collect();
    launches.sort_unstable();
    launches.dedup();
    for launch in launches {
        let next = |life: &Lifetime| {
            let touches = &life.touches;
            let at = touches.partition_point(|(other, _)| *other < launch) % touches.len();
            touches[at]
        };
        let dead = covered && inside.iter().all(|(life, _)| next(life).1 == Access::Write);
        let written = inside
            .iter()
            .any(|(life, _)| next(life).0 == launch && next(life).1.writes());
        let access = match (dead, written) {
            (true, _) => Access::Write,
            (false, true) => Access::ReadWrite,
            (false, false) => Access::Read,
        };
        uses.push(GranuleUse {
            launch,
            first: number,
            count: 1,
            access,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(address: u64, bytes: u64, access: Access) -> Region {
        Region::contiguous(address, bytes, access)
    }

    #[test]
    fn weights_are_unwritten_and_activations_die() {
        let mut habits = Habits::new();
        // x (100..200) is read; h (300..400) is written, then read; the optimiser's state (500..600) is read and written.
        habits.launch(&[region(100, 100, Access::Read), region(300, 100, Access::Write)]);
        habits.launch(&[region(300, 50, Access::Read), region(350, 50, Access::Read)]);
        habits.launch(&[region(500, 100, Access::ReadWrite)]);
        let lives = habits.lifetimes();
        assert_eq!(
            lives.iter().map(|life| (life.address, life.bytes)).collect::<Vec<_>>(),
            [(100, 100), (300, 100), (500, 100)]
        );
        assert!(lives[0].unwritten() && !lives[1].unwritten() && !lives[2].unwritten());
        assert_eq!(
            lives[1].dead().collect::<Vec<_>>(),
            [(1, 0)],
            "from its last read to the next period's write"
        );
        assert_eq!(lives[0].dead().count() + lives[2].dead().count(), 0);
    }

    #[test]
    fn a_granule_is_dead_only_where_all_of_it_is() {
        let mut habits = Habits::new();
        let used = |first: u64, launch, count, access| GranuleUse {
            launch,
            first,
            count,
            access,
        };
        // Granules of 100: two activations share number 1, one fills 2 and 3, weights lie in 5, half of 6 is written and the rest never touched.
        habits.launch(&[region(100, 60, Access::Write), region(500, 100, Access::Read)]);
        habits.launch(&[
            region(160, 40, Access::Write),
            region(200, 200, Access::Write),
            region(600, 50, Access::Write),
        ]);
        habits.launch(&[region(100, 300, Access::Read)]);
        let uses = habits.granules(100);
        assert_eq!(
            uses,
            [
                used(1, 0, 1, Access::Write),
                used(5, 0, 1, Access::Read),
                // What launch 0 put there is read by launch 2.
                used(1, 1, 1, Access::ReadWrite),
                used(2, 1, 2, Access::Write),
                used(6, 1, 1, Access::ReadWrite),
                used(1, 2, 3, Access::Read),
            ]
        );
    }

    #[test]
    fn a_matrix_of_rows_is_many_pieces() {
        let mut habits = Habits::new();
        let rows = Region {
            address: 1000,
            bytes: 10,
            stride: 100,
            chunks: 3,
            access: Access::Read,
        };
        habits.launch(&[rows]);
        assert_eq!(habits.lifetimes().len(), 3);
        assert_eq!(
            habits.granules(100).iter().map(|one| one.first).collect::<Vec<_>>(),
            [10]
        );
        assert_eq!(habits.granules(100)[0].count, 3);
        assert!(Habits::new().granules(100).is_empty());
    }
}
