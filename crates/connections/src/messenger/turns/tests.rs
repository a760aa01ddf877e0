//! Turns, also where a link ends.

use super::*;

/// Links with so many reads to begin. Those with none at all end at their turns.
struct Links {
    waiting: VecDeque<usize>,
    reads: Vec<Option<u32>>,
    turns: Vec<usize>,
}

impl Links {
    fn run(reads: &[Option<u32>]) -> Links {
        let mut links = Links {
            waiting: (0..reads.len()).collect(),
            reads: reads.to_vec(),
            turns: Vec::new(),
        };
        take_turns(
            &mut links,
            |it| &mut it.waiting,
            |it, slot| {
                it.turns.push(slot);
                match &mut it.reads[slot] {
                    Some(0) => false,
                    Some(left) => {
                        *left -= 1;
                        true
                    }
                    None => {
                        it.waiting.retain(|&other| other != slot);
                        false
                    }
                }
            },
        );
        links
    }
}

#[test]
fn each_link_begins_one_read_in_its_turn() {
    let links = Links::run(&[Some(1), Some(3), Some(2)]);
    assert_eq!(links.turns[..8], [0, 1, 2, 0, 1, 2, 0, 1]);
    assert_eq!(links.reads, [Some(0); 3]);
    assert_eq!(links.turns.len(), 11, "each is asked once in vain");
}

#[test]
fn a_link_that_ends_takes_no_turn_of_another() {
    let links = Links::run(&[Some(0), None, Some(2)]);
    assert_eq!(links.turns, [0, 1, 2, 0, 2, 0, 2]);
    assert_eq!(links.reads[2], Some(0));
    assert_eq!(links.waiting.len(), 2);
    let links = Links::run(&[None, None]);
    assert_eq!(links.turns, [0, 1]);
    assert!(links.waiting.is_empty());
}
