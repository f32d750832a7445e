// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signed numbers in groups of four bits, one group if small.
//!
//! A number is folded (0, -1, 1, -2, ...), so a sign costs nothing. Below 15 it is one nibble. A
//! nibble of 15 means that the rest above 15 follows in groups of three bits, least significant
//! first. The fourth bit is set if more groups follow.

#[derive(Debug, Default)]
pub(super) struct NibbleWriter {
    bytes: Vec<u8>,
    half: bool,
}

impl NibbleWriter {
    fn nibble(&mut self, value: u8) {
        match (self.half, self.bytes.last_mut()) {
            (true, Some(last)) => *last |= value << 4,
            _ => self.bytes.push(value & 15),
        }
        self.half = !self.half;
    }

    pub(super) fn push(&mut self, number: i32) {
        let folded = ((i64::from(number) << 1) ^ (i64::from(number) >> 63)) as u64;
        if folded < 15 {
            return self.nibble(folded as u8);
        }
        self.nibble(15);
        let mut rest = folded - 15;
        loop {
            let more = if rest > 7 { 8 } else { 0 };
            self.nibble((rest & 7) as u8 | more);
            rest >>= 3;
            if more == 0 {
                return;
            }
        }
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

#[derive(Debug)]
pub(super) struct NibbleReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> NibbleReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> NibbleReader<'a> {
        NibbleReader { bytes, at: 0 }
    }

    fn nibble(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at / 2)?;
        let value = if self.at.is_multiple_of(2) {
            byte & 15
        } else {
            byte >> 4
        };
        self.at += 1;
        Some(value)
    }

    /// Next number. `None` at the end, and for a code that no [`NibbleWriter`] writes.
    pub(super) fn next(&mut self) -> Option<i32> {
        let first = u64::from(self.nibble()?);
        let folded = if first < 15 {
            first
        } else {
            let mut rest = 0u64;
            // 33 bits in groups of three.
            for group in 0..11 {
                let bits = self.nibble()?;
                rest |= u64::from(bits & 7) << (3 * group);
                if bits & 8 == 0 {
                    break;
                }
            }
            rest + 15
        };
        let number = (folded >> 1) as i64 ^ -((folded & 1) as i64);
        i32::try_from(number).ok()
    }

    /// Whether everything was read, except the padding of the last byte.
    pub(super) fn finished(&self) -> bool {
        self.at.div_ceil(2) == self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_numbers_take_half_a_byte() {
        let mut writer = NibbleWriter::default();
        (-7..=7).for_each(|number| writer.push(number));
        assert_eq!(writer.finish().len(), 8);
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(
            numbers in prop::collection::vec(prop_oneof![any::<i32>(), -40i32..40, Just(i32::MIN), Just(i32::MAX)], 0..60),
        ) {
            let mut writer = NibbleWriter::default();
            numbers.iter().for_each(|number| writer.push(*number));
            let bytes = writer.finish();
            let mut reader = NibbleReader::new(&bytes);
            for number in &numbers {
                prop_assert_eq!(reader.next(), Some(*number));
            }
            prop_assert!(reader.finished());
        }
    }
}
