// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shares, the units that the kubelet counts and hands out. Pure.
//!
//! A share's id is `GPU-UUID::NUMBER`. All shares of a GPU are alike. They count containers and do
//! not partition the GPU. The node's broker decides which job's kernel runs.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail, ensure};

/// The longest id that the kubelet accepts, characters.
const LONGEST_ID: usize = 63;

/// The most shares of a GPU. The kubelet keeps a message in memory for each.
pub const MOST_SHARES: u32 = 1024;

/// The id of a share.
pub fn id(uuid: &str, number: u32) -> String {
    let id = format!("{uuid}::{number}");
    debug_assert!(id.len() <= LONGEST_ID, "{id}");
    id
}

/// All shares of this node: `each` of every GPU.
#[derive(Debug, Clone)]
pub struct SharePool {
    uuids: BTreeSet<String>,
    each: u32,
    several: bool,
}

impl SharePool {
    /// A pool with `each` shares of each GPU.
    pub fn new(uuids: impl IntoIterator<Item = String>, each: u32) -> Self {
        let uuids = uuids.into_iter().collect();
        Self {
            uuids,
            each: each.clamp(1, MOST_SHARES),
            several: false,
        }
    }

    /// With `several`, each share of a container is of another GPU. Otherwise all are of one GPU.
    pub fn of_several(self, several: bool) -> Self {
        Self { several, ..self }
    }

    /// The ids of all shares of a GPU.
    pub fn ids<'a>(&'a self, uuid: &'a str) -> impl Iterator<Item = String> + 'a {
        (0..self.each).map(move |number| id(uuid, number))
    }

    /// The GPU of a share. An error if this plugin never offered the share.
    pub fn gpu_of(&self, share: &str) -> Result<&str> {
        let known = share.split_once("::").and_then(|(uuid, number)| {
            let plain = number.parse::<u32>().ok().filter(|one| one.to_string() == number)?;
            self.uuids.get(uuid).filter(|_| plain < self.each)
        });
        match known {
            Some(uuid) => Ok(uuid),
            None => bail!("{share} is not a share of a GPU of this node"),
        }
    }

    /// The GPUs of all shares of a container, each once.
    pub fn gpus_of_all(&self, shares: &[String]) -> Result<BTreeSet<&str>> {
        let gpus = shares
            .iter()
            .map(|share| self.gpu_of(share))
            .collect::<Result<BTreeSet<_>>>()?;
        let (count, many) = (shares.len(), gpus.len());
        match (self.several, many) {
            (_, 0) => bail!("a container without a share"),
            (false, 1) => Ok(gpus),
            (true, _) if many == count => Ok(gpus),
            (false, _) => bail!(
                "{count} shares of {many} GPUs: a container's shares must be of one GPU, and no GPU has enough left"
            ),
            (true, _) => bail!(
                "{count} shares of {many} GPUs: each share must be of another GPU, and too few GPUs have one left"
            ),
        }
    }

    /// The best shares for a container: `size` of those available, including all of `must`.
    ///
    /// They are of one GPU if any GPU has `size` left. If several have, the one with the fewest
    /// left is chosen. So a GPU in use fills up first, and unused GPUs stay free for containers
    /// that need a whole one. With [`SharePool::of_several`] they are of the `size` GPUs with the
    /// fewest left.
    pub fn preferred(&self, available: &[String], must: &[String], size: usize) -> Result<Vec<String>> {
        ensure!(must.len() <= size, "{} shares must be among {size}", must.len());
        let mut free: BTreeMap<&str, BTreeSet<&String>> = BTreeMap::new();
        for share in available.iter().chain(must) {
            free.entry(self.gpu_of(share)?).or_default().insert(share);
        }
        let mut chosen: BTreeSet<&String> = must.iter().collect();
        let of_must: BTreeSet<&str> = must.iter().map(|share| self.gpu_of(share)).collect::<Result<_>>()?;
        let mut order: Vec<(&str, &BTreeSet<&String>)> = free.iter().map(|(gpu, ids)| (*gpu, ids)).collect();
        // First the GPUs with a share of `must`, then those with room for all shares.
        let room = if self.several { 1 } else { size };
        order.sort_by_key(|(gpu, ids)| (!of_must.contains(gpu), ids.len() < room, ids.len(), *gpu));
        let mut shares = Vec::new();
        for (gpu, ids) in order {
            let left = by_number(ids).into_iter().filter(|share| !chosen.contains(*share));
            let taken = usize::from(of_must.contains(gpu));
            // With several GPUs: the first share of each GPU, then the second ones, which Allocate
            // refuses.
            let round = |place: usize| if self.several { place + taken } else { 0 };
            shares.extend(left.enumerate().map(|(place, share)| (round(place), share)));
        }
        shares.sort_by_key(|(round, _)| *round);
        let wanted = size.saturating_sub(chosen.len());
        ensure!(
            shares.len() >= wanted,
            "{size} shares of {} that are available",
            chosen.len() + shares.len()
        );
        chosen.extend(shares.into_iter().take(wanted).map(|(_, share)| share));
        Ok(chosen.into_iter().cloned().collect())
    }
}

/// Shares of a GPU, sorted by number. Sorted as text, 10 would come before 2.
fn by_number<'a>(ids: &BTreeSet<&'a String>) -> Vec<&'a String> {
    let mut sorted: Vec<&String> = ids.iter().copied().collect();
    sorted.sort_by_key(|id| (id.len(), id.as_str()));
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "GPU-aaaaaaaa-0000-0000-0000-000000000000";
    const B: &str = "GPU-bbbbbbbb-0000-0000-0000-000000000000";

    fn pool() -> SharePool {
        SharePool::new([A.to_string(), B.to_string()], 4)
    }

    fn ids(uuid: &str, numbers: &[u32]) -> Vec<String> {
        numbers.iter().map(|number| id(uuid, *number)).collect()
    }

    fn all() -> Vec<String> {
        [ids(A, &[0, 1, 2, 3]), ids(B, &[0, 1, 2, 3])].concat()
    }

    #[test]
    fn an_id_names_its_gpu_and_fits() {
        assert_eq!(pool().gpu_of(&id(A, 3)).unwrap(), A);
        assert!(id(A, MOST_SHARES).len() <= LONGEST_ID);
        for wrong in ["", A, &id(A, 4), &format!("{A}::01"), &format!("{A}::-1"), "GPU-c::0"] {
            let said = pool().gpu_of(wrong).unwrap_err().to_string();
            assert!(said.contains("not a share"), "{said}");
        }
    }

    #[test]
    fn shares_of_two_gpus_are_refused() {
        assert_eq!(pool().gpus_of_all(&ids(B, &[0, 3])).unwrap(), [B].into());
        let both = [ids(A, &[0]), ids(B, &[0])].concat();
        assert!(pool().gpus_of_all(&both).unwrap_err().to_string().contains("one GPU"));
        assert!(pool().gpus_of_all(&[]).is_err());
    }

    #[test]
    fn a_gpu_in_use_is_filled_before_another_is_begun() {
        let pool = pool();
        let left =
            |taken: &[String]| -> Vec<String> { all().into_iter().filter(|share| !taken.contains(share)).collect() };
        // No share is taken: the first GPU. A share of B is taken: B, until it is full.
        assert_eq!(pool.preferred(&all(), &[], 1).unwrap(), ids(A, &[0]));
        let mut taken = ids(B, &[2]);
        for _ in 0..3 {
            let more = pool.preferred(&left(&taken), &[], 1).unwrap();
            assert_eq!(pool.gpus_of_all(&more).unwrap(), [B].into());
            taken.extend(more);
        }
        let next = pool.preferred(&left(&taken), &[], 1).unwrap();
        assert_eq!(pool.gpus_of_all(&next).unwrap(), [A].into());
    }

    #[test]
    fn several_shares_are_of_one_gpu_where_one_has_room() {
        let pool = pool();
        // B is fuller, but has too few left for three.
        let available = [ids(A, &[0, 1, 2, 3]), ids(B, &[0, 1])].concat();
        assert_eq!(pool.preferred(&available, &[], 3).unwrap(), ids(A, &[0, 1, 2]));
        assert_eq!(pool.preferred(&available, &[], 2).unwrap(), ids(B, &[0, 1]));
        // No GPU has room: it still returns two shares, and Allocate refuses them.
        let few = [ids(A, &[0]), ids(B, &[0])].concat();
        assert_eq!(pool.preferred(&few, &[], 2).unwrap().len(), 2);
    }

    #[test]
    fn what_must_be_in_is_in() {
        let pool = pool();
        let available = [ids(A, &[0, 1, 2, 3]), ids(B, &[3])].concat();
        let got = pool.preferred(&available, &ids(A, &[2]), 2).unwrap();
        assert!(got.contains(&id(A, 2)));
        assert_eq!(pool.gpus_of_all(&got).unwrap(), [A].into());
        assert!(pool.preferred(&available, &ids(A, &[0, 1]), 1).is_err());
    }

    #[test]
    fn more_than_there_are_is_an_error_and_so_is_a_stranger() {
        assert!(pool().preferred(&ids(A, &[0]), &[], 2).is_err());
        assert!(pool().preferred(&["GPU-c::0".to_string()], &[], 1).is_err());
    }

    #[test]
    fn each_share_is_of_another_gpu_where_containers_may_have_several() {
        let pool = pool().of_several(true);
        let both = pool.preferred(&all(), &[], 2).unwrap();
        assert_eq!(both, [ids(A, &[0]), ids(B, &[0])].concat());
        assert_eq!(pool.gpus_of_all(&both).unwrap(), [A, B].into());
        // One share: the GPU in use.
        let used = [ids(A, &[0, 1, 2, 3]), ids(B, &[1, 2])].concat();
        assert_eq!(pool.preferred(&used, &[], 1).unwrap(), ids(B, &[1]));
        assert_eq!(
            pool.preferred(&used, &ids(A, &[2]), 2).unwrap(),
            [ids(A, &[2]), ids(B, &[1])].concat()
        );
        // Too few GPUs: it still returns as many as asked, and Allocate refuses them.
        let three = pool.preferred(&used, &[], 3).unwrap();
        assert_eq!(three.len(), 3);
        assert!(
            pool.gpus_of_all(&three)
                .unwrap_err()
                .to_string()
                .contains("another GPU")
        );
        assert!(pool.preferred(&used, &[], 7).is_err());
        assert!(pool.gpus_of_all(&[]).is_err());
    }

    #[test]
    fn ten_comes_after_two() {
        let pool = SharePool::new([A.to_string()], 12);
        let available = ids(A, &[10, 11, 2]);
        assert_eq!(pool.preferred(&available, &[], 1).unwrap(), ids(A, &[2]));
    }
}
