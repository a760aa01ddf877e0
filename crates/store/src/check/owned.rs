//! Number of extents that refer to each block with possibly several owners.

/// Counts of all groups; those of a group without any take no memory.
pub struct Owned {
    per_group: u64,
    groups: Vec<Vec<u32>>,
}

impl Owned {
    /// Makes counts without any owner.
    pub fn new(groups: u64, per_group: u64) -> Owned {
        Owned {
            per_group,
            groups: vec![Vec::new(); groups as usize],
        }
    }

    /// Returns the number of extents found that refer to a block.
    pub fn get(&self, block: u64) -> u32 {
        let group = &self.groups[(block / self.per_group) as usize];
        let count = group.get((block % self.per_group) as usize);
        count.copied().unwrap_or_default()
    }

    /// Counts one more owner of a block.
    pub fn add(&mut self, block: u64) {
        let group = &mut self.groups[(block / self.per_group) as usize];
        group.resize(self.per_group as usize, 0);
        let count = &mut group[(block % self.per_group) as usize];
        *count = count.saturating_add(1);
    }

    /// Returns the number of owners besides the first, for each block of a group.
    pub fn others(&self, group: u64) -> impl Iterator<Item = u32> {
        let first = group * self.per_group;
        (first..first + self.per_group).map(|block| self.get(block).saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_counted() {
        let mut owned = Owned::new(2, 512);
        for block in [600, 600, 1023, 600] {
            owned.add(block);
        }
        assert_eq!([88, 600, 601, 1023].map(|it| owned.get(it)), [0, 3, 0, 1]);
        assert_eq!(owned.others(0).sum::<u32>(), 0);
        assert_eq!(owned.others(1).position(|count| count == 2), Some(88));
    }
}
