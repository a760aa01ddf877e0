//! One bit for each block or inode of an image.

/// Bitset of all groups. Each group begins at a separate word.
pub struct Bitset {
    per_group: u64,
    stride: usize,
    words: Vec<u64>,
}

impl Bitset {
    /// Makes a set without any bit set.
    pub fn new(groups: u64, per_group: u64) -> Bitset {
        let stride = per_group.div_ceil(64) as usize;
        Bitset {
            per_group,
            stride,
            words: vec![0; groups as usize * stride],
        }
    }

    fn place(&self, number: u64) -> (usize, u32) {
        let bit = number % self.per_group;
        (
            (number / self.per_group) as usize * self.stride + bit as usize / 64,
            bit as u32 % 64,
        )
    }

    /// Whether a bit is set.
    pub fn get(&self, number: u64) -> bool {
        let (word, bit) = self.place(number);
        self.words[word] >> bit & 1 != 0
    }

    /// The words of a group.
    pub fn group(&self, group: u64) -> &[u64] {
        &self.words[group as usize * self.stride..][..self.stride]
    }

    /// The words of a group, to fill them.
    pub fn group_mut(&mut self, group: u64) -> &mut [u64] {
        &mut self.words[group as usize * self.stride..][..self.stride]
    }

    /// Sets the bits of a run within one group. False when one of them was set before.
    pub fn claim(&mut self, start: u64, length: u64) -> bool {
        let (mut word, mut bit) = self.place(start);
        let (mut left, mut fresh) = (length, true);
        while left > 0 {
            let count = left.min(64 - u64::from(bit));
            let mask = (u64::MAX >> (64 - count)) << bit;
            fresh &= self.words[word] & mask == 0;
            self.words[word] |= mask;
            (word, bit, left) = (word + 1, 0, left - count);
        }
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_claimed_once() {
        let mut bits = Bitset::new(2, 512);
        assert!(
            bits.claim(60, 10) && bits.claim(70, 130) && bits.claim(200, 312) && bits.claim(512, 1)
        );
        assert!(!bits.claim(511, 1) && !bits.claim(50, 11) && !bits.claim(100, 1));
        assert!(!bits.get(49) && bits.get(50) && bits.get(511) && bits.get(512) && !bits.get(513));
        assert_eq!(bits.group(1)[0], 1);
    }

    #[test]
    fn groups_of_odd_sizes_stay_apart() {
        let mut bits = Bitset::new(3, 48);
        bits.group_mut(1)[0] = 1 << 47;
        assert!(bits.get(95) && !bits.get(94) && !bits.get(96));
    }
}
