//! Hosts without arriving frames, though the kernel finds them on the link: a switch may drop the EtherTypes, a router may answer
//! for hosts behind it, or an adapter may deliver frames through another queue. Another transport is used for them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// After this time frames are tried again.
const KEPT: Duration = Duration::from_secs(60);

static UNREACHED: Mutex<Option<HashMap<IpAddr, Instant>>> = Mutex::new(None);

/// Frames of this host do not come.
pub fn add(host: IpAddr) {
    let mut unreached = UNREACHED.lock();
    let known = unreached.get_or_insert_default();
    known.retain(|_, since| since.elapsed() < KEPT);
    known.insert(host.to_canonical(), Instant::now());
}

/// Whether frames of this host did not come lately.
pub fn contains(host: IpAddr) -> bool {
    let unreached = UNREACHED.lock();
    let since = unreached
        .as_ref()
        .and_then(|known| known.get(&host.to_canonical()));
    since.is_some_and(|since| since.elapsed() < KEPT)
}
