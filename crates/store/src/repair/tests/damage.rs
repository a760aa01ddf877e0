use super::*;

#[test]
fn smoke() {
    let length = |place| match place {
        Place::Superblock => 176,
        Place::RingState => 64,
        Place::Header => 832,
        Place::Bitmap => 256,
        Place::Inode => 256,
        _ => 4096,
    };
    let mut bad = 0;
    for which in Sample::ALL {
        for (place, indexes) in [
            (Place::Superblock, 2),
            (Place::RingState, 2),
            (Place::Header, 1),
            (Place::Bitmap, 3),
            (Place::Inode, 18),
            (Place::Node, 2),
            (Place::Leaf, 5),
            (Place::Xattrs, 2),
        ] {
            for index in 0..indexes {
                for offset in (0..length(place)).step_by(4) {
                    for value in [1u64 << 7, u64::MAX, 0x0101] {
                        for seals in [0, ALL] {
                            let mut pool = PoolBytes::new(sample_of(which));
                            let edit = Edit {
                                action: 4 | 2,
                                ..Edit::set(place, index, offset, 4, value)
                            };
                            pool.apply(&edit);
                            pool.seal(seals);
                            let region = region_with(&pool.bytes);
                            let Ok(repaired) = repair(&region) else {
                                println!("{place:?} {index} {offset} {value:x} {seals}: error");
                                continue;
                            };
                            let left: Vec<_> = repaired
                                .left
                                .findings
                                .iter()
                                .map(|f| f.to_string())
                                .collect();
                            let again = repair(&region).unwrap();
                            let hard = left.iter().any(|l| !l.contains("data does not match"));
                            if hard || !again.done.is_empty() {
                                bad += 1;
                                println!(
                                    "{which:?} {place:?} {index} {offset} {value:x} {seals}: {:?} \n   left {left:?}\n   again {:?}",
                                    repaired.done, again.done
                                );
                                if bad > 25 {
                                    panic!()
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    assert_eq!(bad, 0);
}

fn sample_of(which: Sample) -> Vec<u8> {
    thread_local! { static S: std::cell::RefCell<std::collections::HashMap<u8, Vec<u8>>> = Default::default(); }
    S.with_borrow_mut(|s| {
        s.entry(which as u8)
            .or_insert_with(|| sample(which))
            .clone()
    })
}
