//! Data that a client has read ahead of the reads of its programs.

use crate::defects::{Defect, Defects};

/// Whether data that was read ahead may be used. `read` is the version that the file had before the data was requested, and
/// `leased` the version that it has now, after the data has arrived, if the client has a lease of the file's attributes.
pub fn is_current(read: u64, leased: Option<u64>, defects: &Defects) -> bool {
    match leased {
        Some(version) => version == read || defects.has(Defect::UseOldWindow),
        None => defects.has(Defect::UseWindowAfterLease),
    }
}
