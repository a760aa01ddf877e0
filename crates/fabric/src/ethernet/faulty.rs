//! Frames that something happens to on purpose, for tests.

use pmem::Random;

use super::FrameFaults;

/// Faults that tests ask for.
pub struct Faulty {
    faults: FrameFaults,
    random: Random,
    /// A frame that others overtake.
    held: Option<Vec<u8>>,
}

impl Faulty {
    pub fn new(faults: FrameFaults) -> Option<Faulty> {
        faults.are_some().then(|| Faulty {
            random: Random::new(faults.seed),
            faults,
            held: None,
        })
    }

    fn happens(&mut self, permille: u32) -> bool {
        self.random.below(1000) < permille as usize
    }

    /// Whether the next frame is lost, if nothing else ever happens to frames: then they need not be copied.
    pub fn loses(&mut self) -> Option<bool> {
        let loss = FrameFaults {
            loss_permille: self.faults.loss_permille,
            seed: self.faults.seed,
            ..FrameFaults::default()
        };
        (self.faults == loss).then(|| self.happens(loss.loss_permille))
    }

    /// Arriving copies of a frame, in order.
    pub fn treat(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        let faults = self.faults;
        let mut arrive = Vec::new();
        if self.happens(faults.loss_permille) {
            return arrive;
        }
        let mut frame = frame.to_vec();
        if self.happens(faults.duplication_permille) {
            arrive.push(frame.clone());
        }
        if self.happens(faults.corruption_permille) {
            let bit = self.random.below(frame.len() * 8);
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        let before = self.held.take();
        if self.happens(faults.reorder_permille) {
            self.held = Some(frame);
        } else {
            arrive.push(frame);
        }
        arrive.extend(before);
        arrive
    }
}
