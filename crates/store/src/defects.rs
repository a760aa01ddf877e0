//! Orderings and checks that a test can take away, to see that the crash explorer objects.

/// Each switch breaks one rule on purpose. For tests only; the default breaks none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defects {
    /// A record is not flushed when it is written into the ring.
    pub skip_record_flush: bool,
    /// An operation answers without the fence that makes its record persistent.
    pub skip_record_fence: bool,
    /// Out-of-line data of a record is not made persistent before the record.
    pub skip_data_fence: bool,
    /// The image changes before the record is persistent.
    pub apply_before_commit: bool,
    /// Recovery takes a record without checking its checksum.
    pub skip_record_checksum: bool,
    /// Recovery takes records of an earlier epoch.
    pub skip_epoch_check: bool,
    /// Ring space is reused although the image lines of its records were not flushed.
    pub reclaim_without_flush: bool,
    /// Ring space is reused although another thread's stores around the caches may not have arrived.
    pub reclaim_unfenced: bool,
    /// Blocks freed by a record can be filled before that record is persistent.
    pub reuse_before_commit: bool,
    /// Recovery writes old data over blocks that a later record names.
    pub replay_over_references: bool,
    /// A file's last link goes without a note that its inode is to be reclaimed.
    pub forget_orphans: bool,
    /// Data is read without checking its checksum.
    pub skip_data_checksum: bool,
    /// A block that other files have too is overwritten in place.
    pub overwrite_shared: bool,
    /// A copy does not count the further owner that its blocks have.
    pub forget_owners: bool,
    /// A block that a small write starts is not cleared first.
    pub skip_clearing: bool,
    /// A member that takes over gives time stamps of its own clock, though another one's was ahead.
    pub stamp_by_own_clock: bool,
}
