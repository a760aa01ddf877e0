//! Recounts the table of costs in `docs/PROTOCOL.md`.
#![forbid(unsafe_code)]

const DOCUMENT: &str = include_str!("../../../docs/PROTOCOL.md");

#[test]
fn costs_are_as_listed() {
    let (_, rest) = DOCUMENT.split_once("<!-- costs -->\n").expect("a table");
    let (listed, _) = rest.split_once("<!-- end -->").expect("its end");
    let counted = lab::cluster::costs::table().expect("a unit without faults works");
    assert!(
        listed == counted,
        "docs/PROTOCOL.md is stale; the table between its marks must be\n{counted}"
    );
}

/// Half as long again on average, and no write waits for more than a few of the refill's answers.
#[test]
fn a_refill_does_not_hold_up_clients() {
    let measured = lab::cluster::costs::during_a_refill();
    let (before, during, took) = measured.expect("a unit without faults works");
    println!("{before:?}, during a refill {during:?}, which took {took} ns");
    assert!(2 * during.mean_ns <= 3 * before.mean_ns);
    assert!(during.most_ns <= 6 * before.most_ns);
    assert!(took < 30_000_000_000, "the refill stands still");
}

/// A call that takes a file from another client is three round trips at most, one after the other.
#[test]
fn taking_turns_on_a_file_takes_three_round_trips_at_most() {
    use operations::Acknowledge::{All, Primary};
    for (acknowledge, write_ways) in [(Primary, 4), (All, 6)] {
        let turns = lab::cluster::costs::of_turns(acknowledge);
        for (read, write) in turns.expect("a unit without faults works") {
            // Attributes and data; then the write, the recall, and with `ack=all` the record.
            assert_eq!((read.ways, write.ways), (4, write_ways));
            // The recall and its answer, beside what a write costs alone.
            assert_eq!((read.messages, write.messages), (4, 6 + 2));
        }
    }
}

/// The version word in the primary's memory is read only without a lease.
#[test]
fn a_one_sided_read_under_a_lease_is_one_round_trip() {
    let reads = lab::cluster::costs::of_leased_reads();
    let (without, under) = reads.expect("a unit without faults works");
    assert_eq!((without.ways, without.messages), (4, 4));
    assert_eq!((under.ways, under.messages), (2, 2));
}
