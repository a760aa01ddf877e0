//! A place in a unit's one order of records.

/// Epoch and number of a record; of a tail, the epoch of the last record and the position behind it. Where a pool was
/// opened for writing, or rewound, since its last record, the tail's epoch is that of this opening: nothing older follows.
///
/// Numbers order the records of one lineage. Where lineages may differ, the higher epoch counts first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence {
    /// Epoch in which the record was made.
    pub epoch: u32,
    /// Position of the record, or behind the last one.
    pub number: u64,
}
