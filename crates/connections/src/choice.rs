//! Which transport two processes use: the fastest that both have and that reaches, and why no faster one.

mod link;

use std::fmt;
use std::net::IpAddr;

use fabric::Provider;
use fabric::ethernet::unreachable;

/// The transports that are chosen from, the fastest first.
pub const PREFERENCE: [Provider; 4] = [
    Provider::Shm,
    Provider::Verbs,
    Provider::Ethernet,
    Provider::Tcp,
];

/// Transports of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    entries: Vec<(Provider, Option<String>)>,
    only: Option<Provider>,
    /// The interface of the transport over Ethernet. Peers do not receive it.
    interface: Option<String>,
}

impl Offers {
    /// A process that has none yet.
    pub fn new() -> Offers {
        Offers::default()
    }

    /// It has this one.
    pub fn with(mut self, provider: Provider) -> Offers {
        self.set(provider, None);
        self
    }

    /// It lacks this one. `reason` contains why, and what to do: "libibverbs is not installed; install libibverbs1".
    pub fn without(mut self, provider: Provider, reason: &str) -> Offers {
        self.set(provider, Some(reason.into()));
        self
    }

    /// It uses this one or fails.
    pub fn only(mut self, provider: Provider) -> Offers {
        self.only = Some(provider);
        self
    }

    /// Frames of the transport over Ethernet use this interface.
    pub fn at_interface(mut self, interface: &str) -> Offers {
        self.interface = Some(interface.into());
        self
    }

    /// The same, without the transport over Ethernet if the peer at an address is not on the interface's link.
    pub(crate) fn towards(&self, peer: Option<IpAddr>) -> Offers {
        let (Some(interface), None) = (&self.interface, self.obstacle(Provider::Ethernet)) else {
            return self.clone();
        };
        let reason = match peer {
            Some(peer) if unreachable::contains(peer) => {
                format!(
                    "frames from {peer} did not come to {interface}; check that the link passes them"
                )
            }
            Some(peer) if link::is_neighbor(peer, interface) => return self.clone(),
            Some(peer) => format!("{peer} is not on the link of {interface}"),
            None => "a Unix socket does not show which link the peer is on".into(),
        };
        self.clone().without(Provider::Ethernet, &reason)
    }

    /// The one that it must use, if it must.
    pub fn forced(&self) -> Option<Provider> {
        self.only
    }

    /// Each transport it speaks of, and why it has not got it if so.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (Provider, Option<&str>)> {
        self.entries
            .iter()
            .map(|(provider, reason)| (*provider, reason.as_deref()))
    }

    fn set(&mut self, provider: Provider, reason: Option<String>) {
        self.entries.retain(|(known, _)| *known != provider);
        self.entries.push((provider, reason));
    }

    /// Why it has not got this one.
    fn obstacle(&self, provider: Provider) -> Option<&str> {
        let found = self.entries.iter().find(|(known, _)| *known == provider);
        match found {
            Some((_, reason)) => reason.as_deref(),
            None => Some("it is not set up there"),
        }
    }
}

/// One of the two.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// Name of the node.
    pub node: &'a str,
    /// Transports that the node offers.
    pub offers: &'a Offers,
}

/// How two processes reach each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connectivity {
    /// By a Unix socket, over which memory can be passed.
    UnixSocket,
    /// By a network only, with the reason against a Unix socket.
    Network(String),
}

/// The transport that was chosen for a pair of nodes, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Transport that was chosen.
    pub provider: Provider,
    /// The faster ones, and why each was not taken.
    pub passed_over: Vec<(Provider, String)>,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.provider)?;
        for (index, (provider, reason)) in self.passed_over.iter().enumerate() {
            let before = if index == 0 { " (" } else { "; " };
            write!(f, "{before}not {provider}: {reason}")?;
        }
        f.write_str(if self.passed_over.is_empty() { "" } else { ")" })
    }
}

/// The fastest transport that both have.
///
/// # Errors
/// One sentence: why there is none.
pub fn choose(
    connectivity: &Connectivity,
    one: Side<'_>,
    other: Side<'_>,
) -> Result<Choice, String> {
    let mut passed_over = Vec::new();
    for provider in PREFERENCE {
        match obstacle(provider, connectivity, one, other) {
            None => {
                return Ok(Choice {
                    provider,
                    passed_over,
                });
            }
            Some(reason) => passed_over.push((provider, reason)),
        }
    }
    for (side, forced) in [one, other].map(|side| (side, side.offers.only)) {
        let found = passed_over
            .iter()
            .find(|(provider, _)| Some(*provider) == forced);
        if let Some((provider, reason)) = found {
            let node = side.node;
            return Err(format!(
                "{node} was told to use {provider} only, but {reason}"
            ));
        }
    }
    let reasons = passed_over
        .iter()
        .map(|(provider, reason)| format!("not {provider}: {reason}"));
    let reasons = reasons.collect::<Vec<_>>().join("; ");
    Err(format!(
        "{} and {} have no transport in common ({reasons})",
        one.node, other.node
    ))
}

/// Why two processes cannot use a transport.
pub fn obstacle(
    provider: Provider,
    connectivity: &Connectivity,
    one: Side<'_>,
    other: Side<'_>,
) -> Option<String> {
    if !PREFERENCE.contains(&provider) {
        return Some("it does not connect processes".into());
    }
    for side in [one, other] {
        if let Some(only) = side.offers.only.filter(|only| *only != provider) {
            return Some(format!("{} was told to use {only} only", side.node));
        }
    }
    if let (Provider::Shm, Connectivity::Network(reason)) = (provider, connectivity) {
        return Some(reason.clone());
    }
    [one, other].into_iter().find_map(|side| {
        let reason = side.offers.obstacle(provider)?;
        Some(format!("{}: {reason}", side.node))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use Provider::{Shm, Simulated, Tcp, Verbs};

    const AWAY: &str = "b is on another host";

    fn all() -> Offers {
        Offers::new().with(Tcp).with(Verbs).with(Shm)
    }

    fn no_adapter() -> Offers {
        let reason = "libibverbs is not installed; install libibverbs1";
        all().without(Verbs, reason)
    }

    fn chosen(connectivity: &Connectivity, one: &Offers, other: &Offers) -> String {
        let side = |node, offers| Side { node, offers };
        match choose(connectivity, side("a", one), side("b", other)) {
            Ok(choice) => choice.to_string(),
            Err(sentence) => format!("ERROR {sentence}"),
        }
    }

    #[test]
    fn the_fastest_that_reaches_is_taken_and_every_faster_one_has_its_reason() {
        let here = Connectivity::UnixSocket;
        let away = Connectivity::Network(AWAY.into());
        let tcp = Offers::new().with(Tcp);
        let table = [
            (&here, all(), all(), "shm"),
            (&away, all(), all(), "verbs (not shm: b is on another host)"),
            (
                &away,
                all(),
                no_adapter(),
                "tcp (not shm: b is on another host; not verbs: b: libibverbs is not installed; \
                 install libibverbs1; not ethernet: a: it is not set up there)",
            ),
            (
                &here,
                tcp.clone(),
                all(),
                "tcp (not shm: a: it is not set up there; not verbs: a: it is not set up \
                 there; not ethernet: a: it is not set up there)",
            ),
            (
                &here,
                all().only(Tcp),
                all(),
                "tcp (not shm: a was told to use tcp only; not verbs: a was told to use tcp only; not \
                 ethernet: a was told to use tcp only)",
            ),
            (
                &here,
                all(),
                all().only(Verbs),
                "verbs (not shm: b was told to use verbs only)",
            ),
            (
                &away,
                all().only(Shm),
                all(),
                "ERROR a was told to use shm only, but b is on another host",
            ),
            (
                &away,
                all(),
                no_adapter().only(Verbs),
                "ERROR b was told to use verbs only, but b: libibverbs is not installed; install \
                 libibverbs1",
            ),
            (
                &here,
                all().only(Tcp),
                all().only(Shm),
                "ERROR a was told to use tcp only, but b was told to use shm only",
            ),
            (
                &away,
                Offers::new().with(Shm),
                tcp,
                "ERROR a and b have no transport in common (not shm: b is on another host; not verbs: \
                 a: it is not set up there; not ethernet: a: it is not set up there; not tcp: a: it is not \
                 set up there)",
            ),
        ];
        for (connectivity, one, other, expected) in table {
            assert_eq!(chosen(connectivity, &one, &other), expected);
        }
        let offers = all().with(Simulated);
        let side = Side {
            node: "a",
            offers: &offers,
        };
        assert!(obstacle(Simulated, &here, side, side).is_some());
    }
}
