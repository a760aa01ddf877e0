//! Authentication of the two sides of a connection before any frame is taken.
//!
//! ```text
//!  dialer                                     listener
//!    │ hello: the listener's endpoint, nonce      │
//!    │───────────────────────────────────────────▶│
//!    │ challenge: nonce, proof with the dialer's  │
//!    │ secret                                     │
//!    │◀───────────────────────────────────────────│
//!    │ proof with the listener's secret; the      │
//!    │ number of the frame that it expects        │
//!    │───────────────────────────────────────────▶│
//!    │ welcome: the number that this one expects  │
//!    │◀───────────────────────────────────────────│
//! ```
//! Both secrets went over the authenticated control connection. A proof is HMAC-SHA256 with the *other's* secret over
//! the prover's role, both endpoints, the attempt, both nonces, and the contents of the message: it is valid for one
//! connection, one direction, and these two endpoints.

use ring::hmac;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::frame::VERSION;

const MAGIC: u32 = u32::from_le_bytes(*b"Tako");

pub type Secret = [u8; 32];

/// Data that one side sends to the other over the control connection.
///
/// Without `Debug`, so that no log contains the secret.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Introduction {
    pub magic: U32,
    pub version: U16,
    /// Port at which the peer listens.
    pub port: U16,
    /// Its number of the endpoint.
    pub endpoint: U32,
    /// Number of requests it may have outstanding.
    pub outstanding: U32,
    /// Where it listens, as IPv6 has it; the unspecified address if anywhere.
    pub address: [u8; 16],
    pub secret: Secret,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Hello {
    pub magic: U32,
    pub version: U16,
    /// 1: the sender only asks whether the endpoint still exists.
    pub probe: U16,
    pub endpoint: U32,
    /// Number of attempts that this endpoint's dialer has begun; an older one must not replace a newer.
    pub attempt: U32,
    pub nonce: [u8; 32],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Challenge {
    /// Whether the endpoint is; otherwise the rest is nothing.
    pub is: U64,
    pub nonce: [u8; 32],
    pub proof: [u8; 32],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Proof {
    pub expected: U64,
    pub proof: [u8; 32],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Welcome {
    pub expected: U64,
}

/// The longest of them.
pub const LONGEST: usize = size_of::<Challenge>();

impl Introduction {
    pub fn new(port: u16, endpoint: u32, outstanding: u32, address: [u8; 16]) -> Introduction {
        Introduction {
            magic: MAGIC.into(),
            version: VERSION.into(),
            port: port.into(),
            endpoint: endpoint.into(),
            outstanding: outstanding.into(),
            address,
            secret: random(),
        }
    }

    /// Validates a peer's introduction. Nothing if it is invalid.
    pub fn parse(bytes: &[u8]) -> Option<Introduction> {
        let told = Introduction::read_from_bytes(bytes).ok()?;
        let fits = told.magic.get() == MAGIC
            && told.version.get() == VERSION
            && told.port.get() != 0
            && (1..=1 << 16).contains(&told.outstanding.get());
        fits.then_some(told)
    }
}

impl Hello {
    pub fn new(endpoint: u32, probe: bool, attempt: u32) -> Hello {
        Hello {
            magic: MAGIC.into(),
            version: VERSION.into(),
            probe: u16::from(probe).into(),
            endpoint: endpoint.into(),
            attempt: attempt.into(),
            nonce: random(),
        }
    }

    /// Nothing if it is invalid.
    pub fn parse(bytes: &[u8]) -> Option<Hello> {
        let hello = Hello::read_from_bytes(bytes).ok()?;
        let fits =
            hello.magic.get() == MAGIC && hello.version.get() == VERSION && hello.probe.get() <= 1;
        fits.then_some(hello)
    }
}

/// Subject of both proofs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    pub dialer: u32,
    pub listener: u32,
    pub attempt: u32,
    pub dialer_nonce: [u8; 32],
    pub listener_nonce: [u8; 32],
}

/// Role of the prover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prover {
    Dialer,
    Listener,
}

impl About {
    fn bytes(&self, prover: Prover, says: u64) -> Vec<u8> {
        let name: &[u8; 8] = match prover {
            Prover::Dialer => b"dialer  ",
            Prover::Listener => b"listener",
        };
        let mut bytes = name.to_vec();
        bytes.extend(self.dialer.to_le_bytes());
        bytes.extend(self.listener.to_le_bytes());
        bytes.extend(self.attempt.to_le_bytes());
        bytes.extend(self.dialer_nonce);
        bytes.extend(self.listener_nonce);
        bytes.extend(says.to_le_bytes());
        bytes
    }

    /// The proof that `prover` knows the other's secret and sends these contents.
    pub fn prove(&self, prover: Prover, secret: &Secret, says: u64) -> [u8; 32] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let tag = hmac::sign(&key, &self.bytes(prover, says));
        std::array::from_fn(|index| tag.as_ref()[index])
    }

    /// Whether it is one. Takes as long whatever is wrong with it.
    pub fn is_proved(&self, prover: Prover, secret: &Secret, says: u64, proof: &[u8; 32]) -> bool {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        hmac::verify(&key, &self.bytes(prover, says), proof).is_ok()
    }
}

/// Returns bytes that no other process can predict.
pub fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&crate::random().to_ne_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_good_for_one_thing_only() {
        let about = About {
            dialer: 1,
            listener: 2,
            attempt: 4,
            dialer_nonce: random(),
            listener_nonce: random(),
        };
        let secret = random();
        let proof = about.prove(Prover::Dialer, &secret, 5);
        assert!(about.is_proved(Prover::Dialer, &secret, 5, &proof));
        assert!(!about.is_proved(Prover::Listener, &secret, 5, &proof));
        assert!(!about.is_proved(Prover::Dialer, &secret, 6, &proof));
        assert!(!about.is_proved(Prover::Dialer, &random(), 5, &proof));
        for other in [
            About { dialer: 3, ..about },
            About {
                listener: 3,
                ..about
            },
            About {
                attempt: 5,
                ..about
            },
            About {
                dialer_nonce: random(),
                ..about
            },
            About {
                listener_nonce: random(),
                ..about
            },
        ] {
            assert!(!other.is_proved(Prover::Dialer, &secret, 5, &proof));
        }
    }

    #[test]
    fn introductions_and_hellos_that_cannot_be_are_refused() {
        let good = Introduction::new(7, 1, 64, [0; 16]);
        let bytes = good.as_bytes();
        assert!(Introduction::parse(bytes).is_some());
        assert!(Introduction::parse(&bytes[1..]).is_none());
        for at in [0, 4, 15] {
            let mut wrong = bytes.to_vec();
            wrong[at] ^= 0x40;
            assert!(Introduction::parse(&wrong).is_none(), "byte {at}");
        }
        let hello = Hello::new(1, false, 1);
        assert!(Hello::parse(hello.as_bytes()).is_some());
        for at in [0, 4, 7] {
            let mut wrong = hello.as_bytes().to_vec();
            wrong[at] ^= 0x40;
            assert!(Hello::parse(&wrong).is_none(), "byte {at}");
        }
    }
}
