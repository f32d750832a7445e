// SPDX-License-Identifier: MIT OR Apache-2.0
//! A store with stable keys. A key carries the generation of its place, so a stale key never names
//! something newer.

/// Name of a place and of the generation of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlabKey {
    pub(crate) index: u32,
    generation: u32,
}

impl SlabKey {
    /// The key of nothing in any store: generations begin at 1.
    pub(crate) const NOTHING: SlabKey = SlabKey {
        index: u32::MAX,
        generation: 0,
    };
}

#[derive(Debug, Clone)]
struct SlabPlace<T> {
    generation: u32,
    value: Option<T>,
}

/// The store.
#[derive(Debug, Clone)]
pub(crate) struct Slab<T> {
    places: Vec<SlabPlace<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Slab<T> {
        Slab {
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn insert(&mut self, value: T) -> SlabKey {
        if let Some(index) = self.free.pop() {
            let place = &mut self.places[index as usize];
            place.value = Some(value);
            return SlabKey {
                index,
                generation: place.generation,
            };
        }
        // 2^32 places are more memory than any machine has.
        let index = self.places.len() as u32;
        self.places.push(SlabPlace {
            generation: 1,
            value: Some(value),
        });
        SlabKey { index, generation: 1 }
    }

    pub(crate) fn remove(&mut self, key: SlabKey) -> Option<T> {
        let place = self.places.get_mut(key.index as usize)?;
        if place.generation != key.generation {
            return None;
        }
        let value = place.value.take()?;
        // Skips 0 at the wrap, so that `SlabKey::NOTHING` stays nothing.
        place.generation = place.generation.wrapping_add(1).max(1);
        self.free.push(key.index);
        Some(value)
    }

    pub(crate) fn get(&self, key: SlabKey) -> Option<&T> {
        let place = self.places.get(key.index as usize)?;
        if place.generation != key.generation {
            return None;
        }
        place.value.as_ref()
    }

    pub(crate) fn get_mut(&mut self, key: SlabKey) -> Option<&mut T> {
        let place = self.places.get_mut(key.index as usize)?;
        if place.generation != key.generation {
            return None;
        }
        place.value.as_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_key_names_nothing() {
        let mut slab = Slab::new();
        let old = slab.insert('a');
        assert_eq!(slab.remove(old), Some('a'));
        let new = slab.insert('b');
        assert_eq!(new.index, old.index);
        assert_eq!(slab.get(old), None);
        assert_eq!(slab.remove(old), None);
        assert_eq!(slab.get(new), Some(&'b'));
        assert_eq!(slab.get(SlabKey::NOTHING), None);
        assert_eq!(slab.len(), 1);
    }
}
