//! The simulated memory: which images a crash may leave, case by case.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::{Fault, Kind, LINE, Moment, Region, Simulation};

/// Words that are not zero: (index, value).
type Words = Vec<(usize, u64)>;

fn words(image: &[u8]) -> Words {
    let words = image.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    });
    words.enumerate().filter(|&(_, value)| value != 0).collect()
}

/// All images of a moment that has few; their number is as reported.
fn all_images(moment: &Moment) -> BTreeSet<Words> {
    let images: Vec<Words> = moment
        .images(10_000, 1)
        .map(|image| words(&image))
        .collect();
    let distinct: BTreeSet<Words> = images.iter().cloned().collect();
    assert_eq!(images.len(), distinct.len(), "duplicates");
    assert_eq!(images.len() as u128, moment.images_total());
    distinct
}

fn in_another_thread(action: impl FnOnce() + Send) {
    thread::scope(|scope| scope.spawn(action).join().unwrap());
}

/// Two lines are words 0 to 7 and 8 to 15.
type Script = fn(&Region);
type Images = &'static [&'static [(usize, u64)]];

const CASES: &[(&str, Script, Images)] = &[
    ("nothing happened", |_| (), &[&[]]),
    ("stored only", |r| r.store(0, 1), &[&[], &[(0, 1)]]),
    (
        "a fence without a flush does nothing",
        |r| {
            r.store(0, 1);
            r.fence();
            r.fence_everywhere();
        },
        &[&[], &[(0, 1)]],
    ),
    (
        "a flush without a fence proves nothing",
        |r| {
            r.store(0, 1);
            r.flush(0, 8);
        },
        &[&[], &[(0, 1)]],
    ),
    (
        "flushed and fenced",
        |r| {
            r.store(0, 1);
            r.flush(0, 8);
            r.fence();
        },
        &[&[(0, 1)]],
    ),
    (
        "a fence before the flush is too early",
        |r| {
            r.store(0, 1);
            r.fence();
            r.flush(0, 8);
        },
        &[&[], &[(0, 1)]],
    ),
    (
        "any byte's flush is its line's",
        |r| {
            r.store(0, 1);
            r.flush(63, 1);
            r.fence();
        },
        &[&[(0, 1)]],
    ),
    (
        "an empty flush is none",
        |r| {
            r.store(0, 1);
            r.flush(0, 0);
            r.fence();
        },
        &[&[], &[(0, 1)]],
    ),
    (
        "another line's flush is none",
        |r| {
            r.store(0, 1);
            r.store(64, 2);
            r.flush(64, 64);
            r.fence();
        },
        &[&[(8, 2)], &[(0, 1), (8, 2)]],
    ),
    (
        "a store after the flush waits for the next",
        |r| {
            r.store(0, 1);
            r.flush(0, 8);
            r.store(0, 2);
            r.fence();
        },
        &[&[(0, 1)], &[(0, 2)]],
    ),
    (
        "a line keeps program order",
        |r| {
            r.store(8, 1);
            r.store(0, 2);
            r.store(8, 3);
        },
        &[&[], &[(1, 1)], &[(0, 2), (1, 1)], &[(0, 2), (1, 3)]],
    ),
    (
        "lines are independent",
        |r| {
            r.store(0, 1);
            r.store(64, 2);
        },
        &[&[], &[(0, 1)], &[(8, 2)], &[(0, 1), (8, 2)]],
    ),
    (
        "a store is torn between words",
        |r| r.write(48, &[1_u64, 2, 3].map(u64::to_ne_bytes).concat()),
        &[
            &[],
            &[(6, 1)],
            &[(6, 1), (7, 2)],
            &[(8, 3)],
            &[(6, 1), (8, 3)],
            &[(6, 1), (7, 2), (8, 3)],
        ],
    ),
    (
        "an unaligned store is torn between aligned parts of words",
        |r| r.write(3, &[1; 6]),
        &[
            &[],
            &[(0, 0x0000_0000_0100_0000)],
            &[(0, 0x0101_0101_0100_0000)],
            &[(0, 0x0101_0101_0100_0000), (1, 1)],
        ],
    ),
    (
        "half a word is whole",
        |r| r.store_u32(4, 1),
        &[&[], &[(0, 1 << 32)]],
    ),
    (
        "written flushed, not fenced",
        |r| r.write_flushed(0, &1_u64.to_ne_bytes()),
        &[&[], &[(0, 1)]],
    ),
    (
        "written flushed and fenced",
        |r| {
            r.write_flushed(56, &[1_u64, 2].map(u64::to_ne_bytes).concat());
            r.fence();
        },
        &[&[(7, 1), (8, 2)]],
    ),
    (
        "zeroed, not fenced",
        |r| {
            r.write_flushed(0, &[1_u64, 2].map(u64::to_ne_bytes).concat());
            r.fence();
            r.zero_flushed(0, 16);
        },
        &[&[(0, 1), (1, 2)], &[(1, 2)], &[]],
    ),
    (
        "written flushed takes along what was on the line",
        |r| {
            r.store(0, 1);
            r.write_flushed(8, &2_u64.to_ne_bytes());
            r.fence();
        },
        &[&[(0, 1), (1, 2)]],
    ),
    (
        "the same value again makes no difference",
        |r| {
            r.write_flushed(0, &1_u64.to_ne_bytes());
            r.fence();
            r.store(0, 1);
        },
        &[&[(0, 1)]],
    ),
    (
        "there and back again is one image less",
        |r| {
            r.store(0, 1);
            r.store(0, 0);
        },
        &[&[], &[(0, 1)]],
    ),
    (
        "a fence is its thread's own",
        |r| {
            r.store(0, 1);
            in_another_thread(|| r.flush(0, 8));
            r.fence();
        },
        &[&[], &[(0, 1)]],
    ),
    (
        "a fence everywhere is for all threads",
        |r| {
            r.store(0, 1);
            in_another_thread(|| r.flush(0, 8));
            r.fence_everywhere();
        },
        &[&[(0, 1)]],
    ),
    (
        "a thread may flush another's stores",
        |r| {
            r.store(0, 1);
            in_another_thread(|| {
                r.flush(0, 8);
                r.fence();
            });
        },
        &[&[(0, 1)]],
    ),
    (
        "two threads, one line: each fence settles what its flush saw",
        |r| {
            r.store(0, 1);
            r.flush(0, 8);
            in_another_thread(|| {
                r.store(8, 2);
                r.flush(8, 8);
            });
            r.store(0, 3);
            r.fence();
        },
        &[&[(0, 1)], &[(0, 1), (1, 2)], &[(0, 3), (1, 2)]],
    ),
    (
        "an older flush settles nothing again",
        |r| {
            r.store(0, 1);
            r.flush(0, 8);
            in_another_thread(|| {
                r.store(0, 2);
                r.flush(0, 8);
                r.fence();
            });
            r.fence();
        },
        &[&[(0, 2)]],
    ),
];

#[test]
fn crashes_leave_exactly_the_images_that_hardware_allows() {
    for (name, script, expected) in CASES {
        let simulation = Simulation::new(2 * LINE as u64);
        script(&simulation.region());
        let expected: BTreeSet<Words> = expected.iter().map(|words| words.to_vec()).collect();
        assert_eq!(all_images(&simulation.moment()), expected, "{name}");
    }
}

#[test]
fn faults_leave_stores_pending() {
    let cases: [(Fault, &[u64]); 7] = [
        (Fault::None, &[]),
        (Fault::IgnoreFlushes, &[1, 2, 3]),
        (Fault::IgnoreFences, &[1, 2, 3]),
        (Fault::IgnoreNthFlush(0), &[1]),
        (Fault::IgnoreNthFlush(2), &[3]),
        (Fault::IgnoreNthFence(2), &[3]),
        // The next fence makes up for this one.
        (Fault::IgnoreNthFence(0), &[]),
    ];
    for (fault, pending) in cases {
        let simulation = Simulation::new(1024);
        let region = simulation.region();
        region.zero_flushed(0, 8);
        region.fence();
        simulation.break_flushes(fault);
        region.store(64, 1);
        region.flush(64, 8);
        region.fence();
        region.write_flushed(128, &[1; 8]);
        region.fence_everywhere();
        region.store(192, 1);
        region.flush(192, 1);
        region.fence();
        let certain = simulation.moment().images(1, 0).next().unwrap();
        let lost: Vec<u64> = (1..=3)
            .filter(|line| certain[*line as usize * LINE] == 0)
            .collect();
        assert_eq!(lost, pending, "{fault:?}");
        assert_eq!(
            simulation.moment().pending_lines(),
            pending.len(),
            "{fault:?}"
        );
        assert_eq!(simulation.fences(), 4);
    }
}

/// Ten lines, each overwritten whole: 9 to the tenth prefixes.
fn many_pending() -> Simulation {
    let simulation = Simulation::new(1024);
    simulation.region().write(0, &[0xff; 10 * LINE]);
    simulation
}

#[test]
fn too_many_images_are_sampled() {
    let simulation = many_pending();
    let moment = simulation.moment();
    assert_eq!(moment.images_total(), 9_u128.pow(10));
    assert_eq!(moment.pending_lines(), 10);
    let images: Vec<Vec<u8>> = moment.images(60, 7).collect();
    assert_eq!(images.len(), 60);
    let arrived = |image: &[u8], line: usize| {
        image[line * LINE..][..LINE]
            .iter()
            .all(|&byte| byte == 0xff)
    };
    let counts: Vec<usize> = images
        .iter()
        .map(|image| (0..10).filter(|&line| arrived(image, line)).count())
        .collect();
    assert_eq!(counts[..2], [0, 10]);
    for line in 0..10 {
        let alone = |image: &Vec<u8>| (0..16).all(|other| arrived(image, other) == (other == line));
        let missing =
            |image: &Vec<u8>| (0..10).all(|other| arrived(image, other) != (other == line));
        assert!(
            images[2..22].iter().any(alone) && images[2..22].iter().any(missing),
            "line {line}"
        );
    }
    let distinct: BTreeSet<&Vec<u8>> = images.iter().collect();
    assert_eq!(distinct.len(), 60);
    let again: Vec<Vec<u8>> = moment.images(60, 7).collect();
    assert!(images == again, "the seed decides");
    let other: Vec<Vec<u8>> = moment.images(60, 8).collect();
    assert!(images[..2] == other[..2] && images != other);
}

#[test]
fn small_bounds_are_kept() {
    let simulation = many_pending();
    for bound in 0..30 {
        assert_eq!(simulation.moment().images(bound, 3).count(), bound);
    }
    let quiet = Simulation::new(64).moment();
    assert_eq!(
        (quiet.images(0, 0).count(), quiet.images(5, 0).count()),
        (0, 1)
    );
}

#[test]
fn sampled_stores_are_torn_in_any_order() {
    let simulation = Simulation::new(64);
    let region = simulation.region();
    region.store(0, 1);
    region.write(8, &[1; 16]);
    region.store(24, 1);
    let (mut first, mut second) = (false, false);
    for image in (0..50).flat_map(|seed| simulation.moment().images(4, seed).collect::<Vec<_>>()) {
        let word = |index: usize| image[index * 8] == 1;
        assert!(word(0) || !(word(1) || word(2)), "order of stores");
        assert!((word(1) && word(2)) || !word(3), "order of stores");
        first |= word(1) && !word(2);
        second |= word(2) && !word(1);
    }
    assert!(first && second);
}

#[test]
fn an_astronomic_number_of_images_saturates() {
    let simulation = Simulation::new(64 * 100);
    simulation.region().write(0, &[1; 6400]);
    assert_eq!(simulation.moment().images_total(), u128::MAX);
}

#[test]
fn observers_see_the_moment_before_each_fence() {
    let simulation = Simulation::new(128);
    let region = simulation.region();
    let elsewhere = Simulation::new(64);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (log, other) = (Arc::clone(&seen), elsewhere.region());
    simulation.observe_fences(Some(Box::new(move |moment| {
        other.write_flushed(0, &[1; 8]);
        other.fence_everywhere();
        log.lock().unwrap().push(all_images(moment).len());
    })));
    region.write_flushed(0, &[1; 8]);
    region.fence();
    region.write_flushed(64, &[1; 16]);
    region.fence_everywhere();
    region.fence();
    simulation.observe_fences(None);
    region.fence();
    assert_eq!(*seen.lock().unwrap(), [2, 3, 1]);
    assert_eq!((simulation.fences(), elsewhere.fences()), (4, 3));
    assert_eq!(elsewhere.region().load(0), u64::from_ne_bytes([1; 8]));
}

#[test]
fn an_observer_may_panic() {
    let simulation = Simulation::new(128);
    let region = simulation.region();
    region.write_flushed(0, &[1; 8]);
    simulation.observe_fences(Some(Box::new(|_| panic!("an assertion"))));
    let fence = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| region.fence()));
    assert!(fence.is_err());
    assert_eq!(
        (simulation.moment().pending_lines(), simulation.fences()),
        (1, 0)
    );
    simulation.observe_fences(None);
    region.fence();
    assert_eq!(simulation.moment().pending_lines(), 0);
}

#[test]
fn a_kept_moment_does_not_change() {
    let simulation = Simulation::new(128);
    let region = simulation.region();
    region.store(0, 1);
    let moment = simulation.moment();
    region.store(8, 2);
    region.flush(0, 64);
    region.fence();
    assert_eq!(all_images(&moment), BTreeSet::from([vec![], vec![(0, 1)]]));
    assert_eq!(
        all_images(&simulation.moment()),
        BTreeSet::from([vec![(0, 1), (1, 2)]])
    );
}

#[test]
fn a_crash_image_starts_a_new_memory() {
    let image: Vec<u8> = (0..100).collect();
    let simulation = Simulation::from_image(image.clone());
    let region = simulation.region();
    assert_eq!((region.length(), region.kind()), (100, Kind::Simulated));
    let mut read = vec![0; 100];
    region.read(0, &mut read);
    assert_eq!(read, image);
    // The last line is a short one.
    region.write(90, &[7; 10]);
    let images: BTreeSet<Vec<u8>> = simulation.moment().images(10, 0).collect();
    assert_eq!(images.len(), 4);
    assert!(
        images
            .iter()
            .all(|after| after.len() == 100 && after[..90] == image[..90])
    );
    region.flush(0, 100);
    region.fence();
    assert_eq!(simulation.moment().images_total(), 1);
}

#[test]
fn random_programs_keep_what_was_fenced_and_invent_nothing() {
    let mut state = 1_u64;
    let mut random = move |bound: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    for _ in 0..50 {
        let simulation = Simulation::new(1024);
        let region = simulation.region();
        // Every word only grows, so an image must lie between the last fence and now.
        let (mut certain, mut now) = (vec![0; 128], vec![0_u64; 128]);
        for step in 1..100 {
            let word = random(128) as usize;
            now[word] = step;
            region.store(word as u64 * 8, step);
            if random(10) == 0 {
                region.flush(0, 1024);
                region.fence();
                certain.clone_from(&now);
            }
            for image in simulation.moment().images(8, step) {
                for (index, word) in image.chunks_exact(8).enumerate() {
                    let value = u64::from_ne_bytes(word.try_into().unwrap());
                    assert!(
                        (certain[index]..=now[index]).contains(&value),
                        "word {index}: {value}"
                    );
                }
            }
        }
    }
}

#[test]
fn threads_share_a_simulation() {
    let simulation = Simulation::new(1 << 16);
    let fences = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&fences);
    simulation.observe_fences(Some(Box::new(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    })));
    thread::scope(|scope| {
        for worker in 0..4_u64 {
            let region = simulation.region();
            scope.spawn(move || {
                for round in 0..100 {
                    region.write_flushed(worker * 16_384 + round * 128, &[1; 100]);
                    region.fence();
                }
            });
        }
    });
    assert_eq!(
        (fences.load(Ordering::Relaxed), simulation.fences()),
        (400, 400)
    );
    assert_eq!(simulation.moment().pending_lines(), 0);
}
