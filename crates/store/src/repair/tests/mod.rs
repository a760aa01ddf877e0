use super::*;
use crate::check::fuzzing::{Edit, Place, PoolBytes, SAMPLE_LENGTH, Sample, region_with, sample};

/// For [`PoolBytes::seal`]: all kinds of checksums.
const ALL: u8 = u8::MAX;

#[test]
fn a_whole_pool_is_only_recovered() {
    for which in Sample::ALL {
        let bytes = sample(which);
        let region = region_with(&bytes);
        let repaired = repair(&region).unwrap();
        assert_eq!((repaired.done, repaired.left.findings), (vec![], vec![]));
        let mut after = vec![0; SAMPLE_LENGTH as usize];
        region.read(0, &mut after);
        assert!(which == Sample::Crashed || which == Sample::Orphans || after == bytes);
    }
}
