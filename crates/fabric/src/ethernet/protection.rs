//! What protects packets and blocks: a cipher with a tag, a keyed hash, or a checksum.

use std::sync::Arc;

use pmem::checksum::{self, crc32c_of};
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use zerocopy::{FromBytes, IntoBytes};

use super::wire::{CHECK_BYTES, HEADER_BYTES, Header, Packet};

/// Bytes of the header that the check covers.
const COVERED: usize = HEADER_BYTES - CHECK_BYTES;
/// Bytes of a nonce in front of the packet's number.
const NONCE_ZEROS: usize = 4;

/// Protection of the packets of one direction of an endpoint, or of a group.
#[derive(Clone)]
pub enum Protection {
    /// Packets of an endpoint are encrypted, and seals are made by the cipher, too: nothing without the keys makes one that is taken.
    Cipher(Arc<Cipher>),
    /// Packets of a group have a keyed hash: their numbers are no nonces, since all members have the key.
    Key(Box<[u8; 32]>),
    /// A checksum against damage only.
    Checksum,
}

/// Keys of one direction of an endpoint.
pub struct Cipher {
    packets: LessSafeKey,
    blocks: LessSafeKey,
}

/// A key of the cipher: as many bytes of these as it needs.
fn key(bytes: &[u8; 32]) -> LessSafeKey {
    let key = UnboundKey::new(&AES_128_GCM, &bytes[..AES_128_GCM.key_len()]);
    LessSafeKey::new(key.expect("its length is right"))
}

/// No number leaves twice with different contents: a packet that the ring did not take was never sent.
fn nonce(header: &Header) -> Nonce {
    let mut nonce = [0; 12];
    nonce[NONCE_ZEROS..].copy_from_slice(header.sequence.as_bytes());
    Nonce::assume_unique_for_key(nonce)
}

impl Protection {
    /// The check of a header, with a zero check, and a body, which may be encrypted.
    pub fn protect(&self, header: &Header, body: &mut [u8]) -> [u8; CHECK_BYTES] {
        let head = &header.as_bytes()[..COVERED];
        let mut check = [0; CHECK_BYTES];
        match self {
            Protection::Cipher(cipher) => {
                let key = &cipher.packets;
                let tag = key.seal_in_place_separate_tag(nonce(header), Aad::from(head), body);
                check.copy_from_slice(tag.expect("it is short enough").as_ref());
            }
            Protection::Key(key) => check = hash_of(key, head, body),
            Protection::Checksum => check = checksum_of(head, body),
        }
        check
    }

    /// Whether this is the keyed hash or the checksum of a header and a body. A cipher has neither.
    fn is_checked(&self, header: &Header, body: &[u8]) -> bool {
        let head = &header.as_bytes()[..COVERED];
        match self {
            Protection::Cipher(_) => false,
            Protection::Key(key) => is_same(&hash_of(key, head, body), &header.check),
            Protection::Checksum => is_same(&checksum_of(head, body), &header.check),
        }
    }

    /// Whether a frame's check is right, in a time that does not depend on where it is wrong. Decrypts its body.
    pub fn open(&self, frame: &mut [u8]) -> bool {
        let Some((head, rest)) = frame.split_at_mut_checked(HEADER_BYTES) else {
            return false;
        };
        let Ok(header) = Header::ref_from_bytes(head) else {
            return false;
        };
        let Some(body) = rest.get_mut(..header.length.get() as usize) else {
            return false;
        };
        match self {
            Protection::Cipher(cipher) => {
                let (covered, tag) = (Aad::from(&head[..COVERED]), Tag::from(header.check));
                let key = &cipher.packets;
                let opened = key.open_in_place_separate_tag(nonce(header), covered, tag, body, 0..);
                opened.is_ok()
            }
            Protection::Key(_) | Protection::Checksum => self.is_checked(header, body),
        }
    }

    /// The same of a packet that is not encrypted: with a cipher it is never right.
    pub fn is_right(&self, packet: &Packet<'_>) -> bool {
        self.is_checked(packet.header, packet.body)
    }

    /// Begins the seal of blocks.
    pub fn begin_seal(&self) -> Sealing {
        match self {
            Protection::Cipher(cipher) => Sealing::over(Digest::Chain {
                cipher: cipher.clone(),
                tag: [0; CHECK_BYTES],
                step: 0,
            }),
            Protection::Checksum => Sealing::over(Digest::Checksum(!0)),
            Protection::Key(_) => unreachable!("frames of a group are not placed"),
        }
    }
}

/// The first bytes of a keyed hash.
fn hash_of(key: &[u8; 32], head: &[u8], body: &[u8]) -> [u8; CHECK_BYTES] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(head);
    hasher.update(body);
    let mut check = [0; CHECK_BYTES];
    check.copy_from_slice(&hasher.finalize().as_bytes()[..CHECK_BYTES]);
    check
}

/// A checksum, and zeros.
fn checksum_of(head: &[u8], body: &[u8]) -> [u8; CHECK_BYTES] {
    let mut check = [0; CHECK_BYTES];
    check[..4].copy_from_slice(&crc32c_of(&[head, body]).to_le_bytes());
    check
}

/// Whether both are the same, in a time that does not depend on where they differ.
pub fn is_same(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other);
    one.len() == other.len() && differences.fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// A seal of blocks that is being made.
pub struct Sealing {
    digest: Digest,
    /// Copies of blocks: others may change the memory meanwhile.
    buffer: Vec<u8>,
}

enum Digest {
    /// Each step is encrypted with the tag of the step before as additional data; the result is used for nothing but its tag. The last tag
    /// travels in the body of a packet, encrypted: so nonces may be those of other seals.
    Chain {
        cipher: Arc<Cipher>,
        tag: [u8; CHECK_BYTES],
        step: u32,
    },
    /// The register of a CRC32C.
    Checksum(u32),
}

impl Digest {
    /// Adds a step, which may be overwritten.
    fn update(&mut self, bytes: &mut [u8]) {
        match self {
            Digest::Chain { cipher, tag, step } => {
                let mut nonce = [0; 12];
                nonce[..NONCE_ZEROS].copy_from_slice(&step.to_le_bytes());
                let nonce = Nonce::assume_unique_for_key(nonce);
                let key = &cipher.blocks;
                let next = key.seal_in_place_separate_tag(nonce, Aad::from(&*tag), bytes);
                tag.copy_from_slice(next.expect("it is short enough").as_ref());
                *step += 1;
            }
            Digest::Checksum(register) => *register = checksum::bytes(*register, bytes),
        }
    }
}

impl Sealing {
    fn over(digest: Digest) -> Sealing {
        let buffer = Vec::new();
        Sealing { digest, buffer }
    }

    /// Adds so many bytes, which a function copies: a step. Both sides have the same steps.
    pub fn add(&mut self, bytes: usize, copy: impl FnOnce(&mut [u8])) {
        self.buffer.resize(bytes, 0);
        copy(&mut self.buffer);
        self.digest.update(&mut self.buffer);
    }

    /// The seal of the blocks of this request.
    pub fn end(mut self, request: u64) -> [u8; 32] {
        self.digest.update(&mut request.to_le_bytes());
        let mut seal = [0; 32];
        match self.digest {
            Digest::Chain { tag, .. } => seal[..CHECK_BYTES].copy_from_slice(&tag),
            Digest::Checksum(register) => seal[..4].copy_from_slice(&(!register).to_le_bytes()),
        }
        seal
    }
}

/// The two directions' keys of an endpoint: from dialer to listener, and back.
pub fn keys(dialer: &[u8; 32], listener: &[u8; 32]) -> [Protection; 2] {
    let secrets = [*dialer, *listener].concat();
    [
        [
            "Tako 2026 ethernet packets from dialer to listener",
            "Tako 2026 ethernet blocks from dialer to listener",
        ],
        [
            "Tako 2026 ethernet packets from listener to dialer",
            "Tako 2026 ethernet blocks from listener to dialer",
        ],
    ]
    .map(|contexts| {
        let [packets, blocks] = contexts.map(|context| blake3::derive_key(context, &secrets));
        Protection::Cipher(Arc::new(Cipher {
            packets: key(&packets),
            blocks: key(&blocks),
        }))
    })
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::super::wire::{Kind, VERSION, parse};
    use super::*;

    fn frame(protection: &Protection, body: &[u8]) -> Vec<u8> {
        let mut header = Header::new_zeroed();
        header.version = VERSION;
        header.kind = Kind::Write as u8;
        header.length = (body.len() as u32).into();
        header.sequence = 7.into();
        let mut body = body.to_vec();
        header.check = protection.protect(&header, &mut body);
        [header.as_bytes(), &body].concat()
    }

    #[test]
    fn every_changed_bit_is_found() {
        let [cipher, _] = keys(&[1; 32], &[2; 32]);
        let key = Protection::Key(Box::new([3; 32]));
        for protection in [cipher, key, Protection::Checksum] {
            let right = frame(&protection, b"some data");
            let mut opened = right.clone();
            assert!(protection.open(&mut opened));
            assert_eq!(parse(&opened).unwrap().body, b"some data");
            for bit in 0..right.len() * 8 {
                let mut wrong = right.clone();
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert!(!protection.open(&mut wrong), "bit {bit}");
            }
            for length in 0..right.len() {
                assert!(!protection.open(&mut right[..length].to_vec()));
            }
        }
    }

    #[test]
    fn a_packet_without_encryption_is_never_right_for_a_cipher() {
        let [cipher, _] = keys(&[1; 32], &[2; 32]);
        let plain = frame(&Protection::Checksum, b"some data");
        let packet = parse(&plain).unwrap();
        assert!(Protection::Checksum.is_right(&packet));
        assert!(!cipher.is_right(&packet));
        assert!(!cipher.open(&mut plain.clone()));
    }

    #[test]
    fn packets_of_a_cipher_show_nothing_of_their_body() {
        let [cipher, _] = keys(&[1; 32], &[2; 32]);
        let made = frame(&cipher, b"some data");
        assert_ne!(&made[HEADER_BYTES..], b"some data");
    }

    #[test]
    fn a_key_is_good_for_one_direction_of_one_endpoint() {
        let [there, back] = keys(&[1; 32], &[2; 32]);
        let [other, _] = keys(&[1; 32], &[3; 32]);
        let made = frame(&there, b"data");
        assert!(there.open(&mut made.clone()));
        assert!(!back.open(&mut made.clone()) && !other.open(&mut made.clone()));
    }

    #[test]
    fn a_seal_depends_on_blocks_request_and_key() {
        let [there, back] = keys(&[1; 32], &[2; 32]);
        let seal = |protection: &Protection, bytes: &[u8], request| {
            let mut sealing = protection.begin_seal();
            sealing.add(bytes.len(), |into| into.copy_from_slice(bytes));
            sealing.end(request)
        };
        for protection in [&there, &Protection::Checksum] {
            let right = seal(protection, b"blocks", 1);
            assert_eq!(seal(protection, b"blocks", 1), right);
            assert_ne!(seal(protection, b"blocks", 2), right);
            assert_ne!(seal(protection, b"block", 1), right);
            for bit in 0..48 {
                let mut wrong = *b"blocks";
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(seal(protection, &wrong, 1), right, "bit {bit}");
            }
            let steps = |order: [&[u8]; 2]| {
                let mut sealing = protection.begin_seal();
                for bytes in order {
                    sealing.add(bytes.len(), |into| into.copy_from_slice(bytes));
                }
                sealing.end(1)
            };
            assert_ne!(steps([b"one", b"two"]), steps([b"two", b"one"]));
        }
        assert_ne!(seal(&there, b"blocks", 1), seal(&back, b"blocks", 1));
    }
}
