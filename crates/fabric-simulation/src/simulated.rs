//! A network in memory, with a separate clock and seeded faults: the same seed and the same calls give the same run.
//!
//! Time advances only while a thread polls, a little, or sleeps, to the next event. Endpoints lose nothing and keep
//! their order, as connections do; groups lose, repeat and reorder. A cut delays everything, and ends the endpoints if
//! it lasts too long. [`Links`] decide the fate of a message in flight: the simulation of a whole cluster sends through
//! the same.

mod device;
mod links;
mod world;

use std::sync::Arc;

use parking_lot::Mutex;

use self::device::SimulatedDevice;
use self::world::World;
use fabric::Device;

pub use self::links::{Count, Delivery, LinkOptions, Links};

/// How the network treats messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkOptions {
    /// The links. Messages to groups are lost, damaged or duplicated, separately for each member.
    pub links: LinkOptions,
    /// After how long without an answer an endpoint is lost.
    pub dead_after_ns: u64,
}

impl Default for NetworkOptions {
    fn default() -> NetworkOptions {
        NetworkOptions {
            links: LinkOptions {
                delay_ns: (1_000, 50_000),
                loss_permille: 20,
                duplication_permille: 20,
                ..LinkOptions::usual()
            },
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

    /// Makes links worse, or well again. Nodes count from 0 in the order in which they were made. `change` gets the present
    /// instant, too.
    pub fn change(&self, change: impl FnOnce(&mut Links, u64)) {
        self.0.lock().change(change);
    }

    /// The node's process ends: its memory cannot be accessed any more.
    pub fn kill(&self, node: usize) {
        self.0.lock().kill(node);
    }

    /// Nanoseconds since the network was made.
    pub fn now_ns(&self) -> u64 {
        self.0.lock().now_ns()
    }
}
