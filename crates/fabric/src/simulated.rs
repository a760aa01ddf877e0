//! A network in memory, with a clock of its own and seeded faults: the same seed and the same calls give the same run.
//!
//! Time goes on only while somebody polls, a little, or sleeps, to the next thing that happens. Endpoints lose nothing
//! and keep their order, as connections do; groups lose, repeat and reorder. A cut between two nodes holds everything
//! up, and ends their endpoints if it lasts too long.

mod device;
mod world;

use std::sync::Arc;

use parking_lot::Mutex;

use self::device::SimulatedDevice;
use self::world::World;
use crate::Device;

/// How the network treats what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkOptions {
    /// Shortest and longest delay.
    pub delay_ns: (u64, u64),
    /// How many of a thousand messages to groups are lost, for each member.
    pub loss_permille: u32,
    /// How many of a thousand arrive twice.
    pub duplication_permille: u32,
    /// After how long without an answer an endpoint is lost.
    pub dead_after_ns: u64,
}

impl Default for NetworkOptions {
    fn default() -> NetworkOptions {
        NetworkOptions {
            delay_ns: (1_000, 50_000),
            loss_permille: 20,
            duplication_permille: 20,
            dead_after_ns: 1_000_000_000,
        }
    }
}

/// The network and its nodes.
#[derive(Clone)]
pub struct Network(Arc<Mutex<World>>);

impl Network {
    /// A network without nodes.
    pub fn new(seed: u64, options: NetworkOptions) -> Network {
        Network(Arc::new(Mutex::new(World::new(seed, options))))
    }

    /// A new node's transport.
    pub fn device(&self) -> Arc<dyn Device> {
        Arc::new(SimulatedDevice::new(self.0.clone()))
    }

    /// From now on nothing arrives between these two nodes (in the order in which they were made), or does again.
    pub fn cut(&self, one: usize, other: usize, is_cut: bool) {
        self.0.lock().cut(one, other, is_cut);
    }

    /// The node's process ends: its memory cannot be reached any more.
    pub fn kill(&self, node: usize) {
        self.0.lock().kill(node);
    }

    /// Nanoseconds since the network was made.
    pub fn now_ns(&self) -> u64 {
        self.0.lock().now_ns()
    }
}
