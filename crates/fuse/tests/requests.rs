//! Requests of any bytes: decoded, and executed. `scripts/fuzz.sh` searches for more.

use std::fs;
use std::path::Path;

/// The highest code of a request, and some more.
const CODES: u64 = 58;
/// Values for fields of 8 bytes: small numbers, ends of ranges, bits.
const WORDS: [u64; 12] = [
    0,
    1,
    2,
    3,
    100,
    4096,
    4097,
    1 << 20,
    (1 << 32) | 0o644,
    1 << 62,
    i64::MAX as u64,
    u64::MAX,
];
const NAMES: [&[u8]; 8] = [
    b"a\0",
    b"b\0",
    b"a\0b\0",
    b"user.x\0value",
    b"system.posix_acl_access\0",
    b"..\0",
    b"x/y\0",
    b"no end",
];

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let entries = fs::read_dir(directory).unwrap();
    entries
        .map(|entry| fs::read(entry.unwrap().path()).unwrap())
        .collect()
}

/// Bytes of a simple generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % end
    }

    fn argument(&mut self) -> Vec<u8> {
        let words = self.below(12);
        (0..words)
            .flat_map(|_| WORDS[self.below(WORDS.len() as u64) as usize].to_ne_bytes())
            .collect()
    }

    fn payload(&mut self) -> Vec<u8> {
        match self.below(3) {
            0 => vec![self.below(256) as u8; self.below(200) as usize],
            _ => NAMES[self.below(NAMES.len() as u64) as usize].to_vec(),
        }
    }
}

#[test]
fn any_bytes_are_decoded_or_refused() {
    let seeds = corpus("request");
    assert!(!seeds.is_empty());
    seeds.iter().for_each(|seed| fuse::fuzzing::request(seed));
    let mut random = Random(1);
    for _ in 0..200_000 {
        let argument = random.argument();
        let mut bytes = vec![random.below(CODES) as u8, argument.len() as u8];
        bytes.extend(argument);
        bytes.extend(random.payload());
        bytes.truncate(bytes.len() - random.below(3).min(bytes.len() as u64) as usize);
        fuse::fuzzing::request(&bytes);
    }
}

#[test]
fn any_requests_are_answered() {
    let seeds = corpus("requests");
    assert!(!seeds.is_empty());
    seeds.iter().for_each(|seed| fuse::fuzzing::requests(seed));
    for seed in 0..300 {
        let mut random = Random(seed);
        let mut script = Vec::new();
        for _ in 0..100 {
            let (argument, payload) = (random.argument(), random.payload());
            let node = 1 + random.below(6) as u8;
            script.extend([
                random.below(CODES) as u8,
                node,
                argument.len() as u8,
                payload.len() as u8,
            ]);
            script.extend(argument);
            script.extend(payload);
        }
        fuse::fuzzing::requests(&script);
    }
}
