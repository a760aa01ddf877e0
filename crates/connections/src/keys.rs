//! The keys by which the nodes of a cluster authenticate each other.
//!
//! ```text
//!  DIR/authority.pem, authority.key         the cluster's authority; its key issues certificates and stays here
//!  DIR/NODE/authority.pem                   what the node NODE gets, as a directory: the authority,
//!           node.pem, node.key              its certificate and the key of it
//!  DIR/issued.txt                           what was issued, and revoked
//!  DIR/revoked.pem, DIR/NODE/revoked.pem    the authority's list of revoked certificates, once there are some
//! ```
//! A certificate has two names: `CLUSTER.tako`, by which any node of the cluster is known as one, and `NODE.CLUSTER.tako`.
//! The cluster is a random identity, made with the authority.

mod revocation;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};

pub use self::revocation::{Revoked, revoke};

/// Validity of an authority's certificate.
const AUTHORITY_DAYS: u64 = 20 * 365;
/// Validity of a node's certificate.
const NODE_DAYS: u64 = 2 * 365;
/// Greatest difference between the clocks of nodes.
const CLOCKS_DIFFER: Duration = DAY;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Longer files hold no key, and no list of some ten thousand certificates.
const FILE_MAX: u64 = 1 << 20;

/// The longest name of a node, in bytes.
pub(crate) const NODE_MAX: usize = 63;

const AUTHORITY: &str = "authority.pem";
const AUTHORITY_KEY: &str = "authority.key";
const NODE: &str = "node.pem";
const NODE_KEY: &str = "node.key";
const REVOKED: &str = "revoked.pem";
/// All that a node has.
pub(crate) const FILES: [&str; 4] = [AUTHORITY, NODE, NODE_KEY, REVOKED];

/// Why keys could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No node can have this name.
    #[error("a node's name must be 1–63 of a–z, 0–9, and '-' inside, got '{name}'")]
    Name {
        /// Name that was given.
        name: String,
    },
    /// Something is there already.
    #[error("{path} exists already; choose another place, or move it away first")]
    Exists {
        /// Path of the file.
        path: PathBuf,
    },
    /// A file is not there.
    #[error(
        "{path} is missing; make keys with `tako keys`, and give each node the directory of its name"
    )]
    Missing {
        /// Path of the file.
        path: PathBuf,
    },
    /// Others than the owner may use a key.
    #[error("{path} can be used by others (mode {mode:04o}); run `chmod 600` on it")]
    Open {
        /// Path of the key.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// A key belongs to another user.
    #[error("{path} belongs to user {owner}; run `chown` on it, or run as that user")]
    Owner {
        /// Path of the key.
        path: PathBuf,
        /// User that owns it.
        owner: u32,
    },
    /// A file holds something else.
    #[error("{path} contains no {what}; copy the directory of keys again")]
    Contents {
        /// Path of the file.
        path: PathBuf,
        /// Contents that were expected.
        what: &'static str,
    },
    /// The last write to the list of issued certificates was interrupted; no action of its last line was executed.
    #[error(
        "{path} ends in an incomplete line; remove that line, and repeat the command that was interrupted"
    )]
    Torn {
        /// Path of the list.
        path: PathBuf,
    },
    /// The certificate has expired.
    #[error("the certificate {path} expired {days} days ago; issue another with `tako keys issue`")]
    Expired {
        /// Path of the certificate.
        path: PathBuf,
        /// Whole days since then.
        days: u64,
    },
    /// The certificate's time has not come.
    #[error("the certificate {path} is not valid yet; check the clock of this host")]
    Early {
        /// Path of the certificate.
        path: PathBuf,
    },
    /// The authority has taken the certificate back.
    #[error("the certificate {path} was revoked; issue another with `tako keys issue`")]
    Revoked {
        /// Path of the certificate.
        path: PathBuf,
    },
    /// No certificate was issued for a node.
    #[error("{path} lists no certificate for '{node}'; check the node's name")]
    Unknown {
        /// The list of issued certificates.
        path: PathBuf,
        /// Name of the node.
        node: String,
    },
    /// A process cannot become another node.
    #[error("{path} contains keys of another node now; restart this node to use them")]
    Changed {
        /// Path of the directory.
        path: PathBuf,
    },
    /// A key and a certificate are not of one pair.
    #[error("{key} is not the key of {certificate}; copy both from where they were made")]
    Pair {
        /// Path of the key.
        key: PathBuf,
        /// Path of the certificate.
        certificate: PathBuf,
    },
    /// Another authority issued the certificate.
    #[error("{certificate} was not issued by {authority}; copy both from where they were made")]
    Issuer {
        /// Path of the certificate.
        certificate: PathBuf,
        /// Path of the authority's certificate.
        authority: PathBuf,
    },
    /// A system call on a file of keys failed.
    #[error("cannot {what} {path}: {source}; check the path and its permissions")]
    System {
        /// Attempted action, as a verb.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// No key could be made.
    #[error("cannot make a key: {0}; this is a defect of Tako")]
    Making(#[from] rcgen::Error),
}

/// Files that were made for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// Identity of the cluster.
    pub cluster: [u8; 16],
    /// Directory of the node's files.
    pub directory: PathBuf,
    /// When its certificate ends.
    pub until: SystemTime,
}

/// Whether a node may have this name: it is part of certificates, paths and logs.
pub fn is_node_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=NODE_MAX).contains(&name.len())
        && name.bytes().all(allowed)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// Validity of a node's certificate that is issued now.
pub fn usual_validity() -> Range<SystemTime> {
    days(NODE_DAYS)
}

/// Makes a directory with a new cluster's authority, and in it one for the first node.
///
/// # Errors
/// [`Error::Name`], [`Error::Exists`], [`Error::System`]: then nothing is left behind.
pub fn init(directory: &Path, node: &str) -> Result<Made, Error> {
    check_name(node)?;
    make_directory(directory)?;
    let made = init_in(directory, node);
    if made.is_err() {
        // The user sees the original error.
        let _ = fs::remove_dir_all(directory);
    }
    made
}

fn init_in(directory: &Path, node: &str) -> Result<Made, Error> {
    let halves = [fabric::random(), fabric::random()].map(u64::to_le_bytes);
    let mut cluster: [u8; 16] = std::array::from_fn(|at| halves[at / 8][at % 8]);
    // RFC 9562: random.
    cluster[6] = cluster[6] & 0x0f | 0x40;
    cluster[8] = cluster[8] & 0x3f | 0x80;
    let key = KeyPair::generate()?;
    let certificate = authority(cluster)?.self_signed(&key)?;
    write(&directory.join(AUTHORITY), &certificate.pem())?;
    write(&directory.join(AUTHORITY_KEY), &key.serialize_pem())?;
    issue(directory, node, usual_validity())
}

/// Makes a directory for another node in the authority's.
///
/// # Errors
/// [`Error::Name`], [`Error::Exists`], [`Error::Missing`], [`Error::Open`], [`Error::Contents`], [`Error::System`]: then
/// nothing is left behind.
pub fn issue(directory: &Path, node: &str, valid: Range<SystemTime>) -> Result<Made, Error> {
    check_name(node)?;
    let Authority {
        cluster,
        pem,
        issuer,
    } = load_authority(directory)?;
    let (node_key, until) = (KeyPair::generate()?, valid.end);
    let params = node_certificate(cluster, node, valid)?;
    let issued = params.signed_by(&node_key, &issuer)?;
    let made = directory.join(node);
    make_directory(&made)?;
    let written = revocation::note_issued(directory, node, &params)
        .and_then(|()| revocation::give_list(directory, &made))
        .and_then(|()| write_bytes(&made.join(AUTHORITY), &pem))
        .and_then(|()| write(&made.join(NODE), &issued.pem()))
        .and_then(|()| write(&made.join(NODE_KEY), &node_key.serialize_pem()));
    if let Err(error) = written {
        let _ = fs::remove_dir_all(&made);
        return Err(error);
    }
    Ok(Made {
        cluster,
        directory: made,
        until,
    })
}

/// Issuer of certificates, and of lists of revoked ones.
struct Authority {
    cluster: [u8; 16],
    /// Its certificate, as the file has it.
    pem: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
}

/// The authority in a directory.
fn load_authority(directory: &Path) -> Result<Authority, Error> {
    let (path, key_path) = (directory.join(AUTHORITY), directory.join(AUTHORITY_KEY));
    let pem = read(&path, false)?;
    let own = certificate(&path, &pem)?;
    let (cluster, _) = names(&own, &path)?;
    let text = String::from_utf8(read(&key_path, true)?).ok();
    let key = text.and_then(|text| KeyPair::from_pem(&text).ok());
    let key = key.ok_or_else(|| Error::Contents {
        path: key_path.clone(),
        what: "key",
    })?;
    let public = webpki::EndEntityCert::try_from(&own).map(|own| own.subject_public_key_info());
    if !public.is_ok_and(|public| *public == *key.subject_public_key_info()) {
        return Err(Error::Pair {
            key: key_path,
            certificate: path,
        });
    }
    let issuer = Issuer::new(authority(cluster)?, key);
    Ok(Authority {
        cluster,
        pem,
        issuer,
    })
}

/// Keys of a node.
pub(crate) struct Keys {
    pub cluster: [u8; 16],
    pub node: String,
    pub authority: CertificateDer<'static>,
    pub certificate: CertificateDer<'static>,
    pub key: PrivateKeyDer<'static>,
    /// The authority's list of revoked certificates.
    pub revoked: Option<CertificateRevocationListDer<'static>>,
}

/// A node's keys from the directory made for it. All is checked that peers will check.
pub(crate) fn load(directory: &Path) -> Result<Keys, Error> {
    let (authority_path, path) = (directory.join(AUTHORITY), directory.join(NODE));
    let authority = certificate(&authority_path, &read(&authority_path, false)?)?;
    let own = certificate(&path, &read(&path, false)?)?;
    let (cluster, node) = names(&own, &path)?;
    let node = node.ok_or_else(|| Error::Contents {
        path: path.clone(),
        what: "node's certificate",
    })?;
    verify(&authority, &own, None).map_err(|error| judged(error, &path, &authority_path))?;
    let revoked = revocation::load(directory, &authority, &own)?;
    let key_path = directory.join(NODE_KEY);
    let key = PrivateKeyDer::from_pem_slice(&read(&key_path, true)?);
    let key = key.map_err(|_| Error::Contents {
        path: key_path.clone(),
        what: "key",
    })?;
    let provider = rustls::crypto::ring::default_provider();
    let pair = rustls::sign::CertifiedKey::from_der(vec![own.clone()], key.clone_key(), &provider);
    if pair.is_err() {
        return Err(Error::Pair {
            key: key_path,
            certificate: path,
        });
    }
    Ok(Keys {
        cluster,
        node,
        authority,
        certificate: own,
        key,
        revoked,
    })
}

/// The name by which any node of a cluster is known as one.
pub(crate) fn cluster_name(cluster: &[u8; 16]) -> String {
    format!("{}.tako", show_identity(cluster))
}

/// An identity as RFC 9562 writes it.
pub fn show_identity(identity: &[u8; 16]) -> String {
    let mut text = String::new();
    for (index, byte) in identity.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text += &format!("{byte:02x}");
    }
    text
}

/// The cluster and the node that a certificate names; not whether it may.
pub(crate) fn names_in(certificate: &CertificateDer<'_>) -> Option<([u8; 16], Option<String>)> {
    let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
    let mut found = None;
    let mut node = None;
    for name in parsed.valid_dns_names() {
        let rest = name.strip_suffix(".tako")?;
        let (before, cluster) = match rest.rsplit_once('.') {
            Some((before, cluster)) => (Some(before), cluster),
            None => (None, rest),
        };
        let cluster = parse(cluster)?;
        if found.is_some_and(|found| found != cluster) || (before.is_some() && node.is_some()) {
            return None;
        }
        found = Some(cluster);
        node = node.or(before.map(str::to_string));
    }
    if node.as_ref().is_some_and(|node| !is_node_name(node)) {
        return None;
    }
    Some((found?, node))
}

fn names(
    certificate: &CertificateDer<'_>,
    path: &Path,
) -> Result<([u8; 16], Option<String>), Error> {
    names_in(certificate).ok_or_else(|| Error::Contents {
        path: path.into(),
        what: "certificate of a cluster",
    })
}

fn parse(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|found| *found != '-').collect();
    let number = u128::from_str_radix(&digits, 16).ok()?;
    let identity = number.to_be_bytes();
    (show_identity(&identity) == text).then_some(identity)
}

/// Whether the authority issued the certificate for a node, for now, and has not taken it back.
fn verify(
    authority: &CertificateDer<'_>,
    certificate: &CertificateDer<'_>,
    revocation: Option<webpki::RevocationOptions<'_>>,
) -> Result<(), webpki::Error> {
    let anchors = [webpki::anchor_from_trusted_cert(authority)?];
    let parsed = webpki::EndEntityCert::try_from(certificate)?;
    parsed.verify_for_usage(
        webpki::ALL_VERIFICATION_ALGS,
        &anchors,
        &[],
        UnixTime::now(),
        webpki::KeyUsage::client_auth(),
        revocation,
        None,
    )?;
    Ok(())
}

fn judged(error: webpki::Error, path: &Path, authority: &Path) -> Error {
    let path = path.to_path_buf();
    match error {
        webpki::Error::CertExpired { time, not_after } => {
            let since = time.as_secs().saturating_sub(not_after.as_secs());
            let days = since / DAY.as_secs();
            Error::Expired { path, days }
        }
        webpki::Error::CertNotValidYet { .. } => Error::Early { path },
        _ => Error::Issuer {
            certificate: path,
            authority: authority.into(),
        },
    }
}

fn authority(cluster: [u8; 16]) -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::new([cluster_name(&cluster)])?;
    let name = format!("Tako cluster {}", show_identity(&cluster));
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, days(AUTHORITY_DAYS));
    Ok(params)
}

fn node_certificate(
    cluster: [u8; 16],
    node: &str,
    valid: Range<SystemTime>,
) -> Result<CertificateParams, Error> {
    let of_cluster = cluster_name(&cluster);
    let of_node = format!("{node}.{of_cluster}");
    let mut params = CertificateParams::new([of_cluster, of_node])?;
    params.distinguished_name.push(DnType::CommonName, node);
    params.serial_number = Some(revocation::serial());
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, valid);
    Ok(params)
}

fn set_validity(params: &mut CertificateParams, valid: Range<SystemTime>) {
    params.not_before = valid.start.into();
    params.not_after = valid.end.into();
}

fn days(count: u64) -> Range<SystemTime> {
    let now = SystemTime::now();
    now - CLOCKS_DIFFER..now + DAY * count as u32
}

fn check_name(node: &str) -> Result<(), Error> {
    if is_node_name(node) {
        return Ok(());
    }
    Err(Error::Name { name: node.into() })
}

fn make_directory(path: &Path) -> Result<(), Error> {
    DirBuilder::new()
        .mode(0o700)
        .create(path)
        .map_err(|error| made(path, error))
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    write_bytes(path, text.as_bytes())
}

fn write_bytes(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    let written = file.and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.map_err(|error| made(path, error))
}

fn made(path: &Path, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::AlreadyExists {
        return Error::Exists { path: path.into() };
    }
    system("make", path, error)
}

fn system(what: &'static str, path: &Path, source: io::Error) -> Error {
    Error::System {
        what,
        path: path.into(),
        source,
    }
}

/// The contents of a file, which only its owner may access if it is secret.
fn read(path: &Path, secret: bool) -> Result<Vec<u8>, Error> {
    let file = File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::Missing { path: path.into() },
        _ => system("open", path, error),
    })?;
    let metadata = file
        .metadata()
        .map_err(|error| system("look at", path, error))?;
    if secret {
        let (mode, owner) = (metadata.mode() & 0o7777, metadata.uid());
        if mode & 0o077 != 0 {
            return Err(Error::Open {
                path: path.into(),
                mode,
            });
        }
        if owner != 0 && owner != rustix::process::geteuid().as_raw() {
            return Err(Error::Owner {
                path: path.into(),
                owner,
            });
        }
    }
    let mut bytes = Vec::new();
    let read = file.take(FILE_MAX).read_to_end(&mut bytes);
    read.map_err(|error| system("read", path, error))?;
    Ok(bytes)
}

fn certificate(path: &Path, pem: &[u8]) -> Result<CertificateDer<'static>, Error> {
    CertificateDer::from_pem_slice(pem).map_err(|_| Error::Contents {
        path: path.into(),
        what: "certificate",
    })
}

#[cfg(test)]
mod tests;
