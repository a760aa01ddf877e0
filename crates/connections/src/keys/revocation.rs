//! Revocation of certificates: issued ones are recorded, so that they can be revoked when the node and its keys are out
//! of reach.
//!
//! ```text
//!  issued SERIAL NODE
//!  revoked SERIAL NODE SECONDS             since 1970
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    CertificateParams, CertificateRevocationListParams, KeyIdMethod, RevokedCertParams,
    SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};

use super::{
    AUTHORITY_DAYS, CLOCKS_DIFFER, DAY, Error, NODE, REVOKED, check_name, load_authority, read,
    system, verify, write_bytes,
};

const JOURNAL: &str = "issued.txt";

/// Set of revoked certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revoked {
    /// The list that every node has to get.
    pub list: PathBuf,
    /// Number of the node's certificates that it has: all that were issued so far.
    pub certificates: usize,
}

/// A number that no other certificate has.
pub(super) fn serial() -> SerialNumber {
    let mut bytes = [fabric::random(), fabric::random()]
        .map(u64::to_be_bytes)
        .concat();
    // Positive, and of this length however it is written.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    SerialNumber::from(bytes)
}

/// A line of the journal.
struct Line {
    serial: Vec<u8>,
    node: String,
    revoked: Option<SystemTime>,
}

impl Line {
    fn parse(text: &str) -> Option<Line> {
        let words: Vec<&str> = text.split(' ').collect();
        let (serial, node, revoked) = match words[..] {
            ["issued", serial, node] => (serial, node, None),
            ["revoked", serial, node, seconds] => {
                let since = Duration::from_secs(seconds.parse().ok()?);
                (
                    serial,
                    node,
                    Some(SystemTime::UNIX_EPOCH.checked_add(since)?),
                )
            }
            _ => return None,
        };
        let digits = serial.as_bytes().chunks(2);
        let bytes = digits.map(|two| u8::from_str_radix(str::from_utf8(two).ok()?, 16).ok());
        Some(Line {
            serial: bytes.collect::<Option<_>>()?,
            node: node.into(),
            revoked,
        })
    }
}

/// Issued and revoked certificates; no other process changes them while this exists.
struct Journal {
    path: PathBuf,
    file: File,
    lines: Vec<Line>,
}

impl Journal {
    fn open(directory: &Path) -> Result<Journal, Error> {
        let path = directory.join(JOURNAL);
        let mut options = OpenOptions::new();
        let options = options.read(true).append(true).create(true).mode(0o600);
        let opened = options.open(&path).and_then(|mut file| {
            file.lock()?;
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            Ok((file, text))
        });
        let (file, text) = opened.map_err(|error| system("open", &path, error))?;
        if !text.is_empty() && !text.ends_with('\n') {
            return Err(Error::Torn { path });
        }
        let lines: Option<_> = text.lines().map(Line::parse).collect();
        match lines {
            Some(lines) => Ok(Journal { path, file, lines }),
            None => Err(Error::Contents {
                path,
                what: "list of what was issued",
            }),
        }
    }

    fn add(&mut self, line: &str) -> Result<(), Error> {
        let line = format!("{line}\n");
        let written = self.file.write_all(line.as_bytes());
        let written = written.and_then(|()| self.file.sync_all());
        written.map_err(|error| system("write", &self.path, error))?;
        self.lines.extend(Line::parse(line.trim_end()));
        Ok(())
    }

    /// A new list must contain all entries of the last one: otherwise it would admit them again.
    fn must_know(&self, path: &Path) -> Result<(), Error> {
        let pem = match read(path, false) {
            Ok(pem) => pem,
            Err(Error::Missing { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let list = CertificateRevocationListDer::from_pem_slice(&pem).ok();
        let parsed = list.as_ref().and_then(|list| {
            let parsed = webpki::BorrowedCertRevocationList::from_der(list).ok()?;
            let mut serials = Vec::new();
            for entry in &parsed {
                serials.push(entry.ok()?.serial_number.to_vec());
            }
            Some(serials)
        });
        let (path, what) = match parsed {
            Some(serials) if serials.iter().all(|serial| self.is_revoked(serial)) => return Ok(()),
            Some(_) => (self.path.clone(), "list of all that was revoked"),
            None => (path.into(), "list of revoked certificates"),
        };
        Err(Error::Contents { path, what })
    }

    fn is_revoked(&self, serial: &[u8]) -> bool {
        let mut lines = self.lines.iter();
        lines.any(|line| line.serial == serial && line.revoked.is_some())
    }
}

fn hexadecimal(serial: &[u8]) -> String {
    serial.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Before the certificate is given out.
pub(super) fn note_issued(
    directory: &Path,
    node: &str,
    params: &CertificateParams,
) -> Result<(), Error> {
    let serial = params.serial_number.as_ref().map(SerialNumber::to_bytes);
    let serial = hexadecimal(&serial.unwrap_or_default());
    Journal::open(directory)?.add(&format!("issued {serial} {node}"))
}

/// A new node has the revocations from the start.
pub(super) fn give_list(directory: &Path, made: &Path) -> Result<(), Error> {
    match read(&directory.join(REVOKED), false) {
        Ok(list) => write_bytes(&made.join(REVOKED), &list),
        Err(Error::Missing { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Revokes all certificates that were issued for a node so far: makes the list, and puts it beside the keys of the
/// nodes with directories here. A node checks its own before each connection.
///
/// # Errors
/// [`Error::Name`], [`Error::Missing`], [`Error::Open`], [`Error::Contents`], [`Error::Torn`], [`Error::Unknown`],
/// [`Error::System`]; do it again after the last.
pub fn revoke(directory: &Path, node: &str) -> Result<Revoked, Error> {
    check_name(node)?;
    let authority = load_authority(directory)?;
    let mut journal = Journal::open(directory)?;
    let path = directory.join(REVOKED);
    journal.must_know(&path)?;
    let of_node = journal
        .lines
        .iter()
        .filter(|line| line.node == node && line.revoked.is_none());
    let serials: Vec<_> = of_node.map(|line| line.serial.clone()).collect();
    if serials.is_empty() {
        return Err(Error::Unknown {
            path: journal.path,
            node: node.into(),
        });
    }
    let now = SystemTime::now();
    let since = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    for serial in &serials {
        if !journal.is_revoked(serial) {
            let (serial, seconds) = (hexadecimal(serial), since.as_secs());
            journal.add(&format!("revoked {serial} {node} {seconds}"))?;
        }
    }
    let revoked = journal.lines.iter().filter_map(|line| {
        Some(RevokedCertParams {
            serial_number: SerialNumber::from_slice(&line.serial),
            revocation_time: line.revoked?.into(),
            reason_code: None,
            invalidity_date: None,
        })
    });
    let revoked_certs: Vec<_> = revoked.collect();
    let list = CertificateRevocationListParams {
        this_update: (now - CLOCKS_DIFFER).into(),
        next_update: (now + DAY * AUTHORITY_DAYS as u32).into(),
        crl_number: (revoked_certs.len() as u64).into(),
        issuing_distribution_point: None,
        revoked_certs,
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let list = list.signed_by(&authority.issuer)?.pem()?;
    for place in nodes(directory)? {
        replace(&place.join(REVOKED), list.as_bytes())?;
    }
    replace(&path, list.as_bytes())?;
    Ok(Revoked {
        list: path,
        certificates: serials.len(),
    })
}

/// The directories of nodes that are here.
fn nodes(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = fs::read_dir(directory).map_err(|error| system("read", directory, error))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(paths.filter(|path| path.join(NODE).exists()).collect())
}

/// At no moment is there a part of it.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let new = path.with_extension("new");
    // Rest of an interrupted one.
    let _ = fs::remove_file(&new);
    write_bytes(&new, bytes)?;
    fs::rename(&new, path).map_err(|error| system("make", path, error))
}

/// A node's list, if it has one, and if the authority's; the node's own certificate must not be in it.
pub(super) fn load(
    directory: &Path,
    authority: &CertificateDer<'_>,
    own: &CertificateDer<'_>,
) -> Result<Option<CertificateRevocationListDer<'static>>, Error> {
    let path = directory.join(REVOKED);
    let pem = match read(&path, false) {
        Ok(pem) => pem,
        Err(Error::Missing { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let contents = || Error::Contents {
        path: path.clone(),
        what: "list of the cluster's revoked certificates",
    };
    let list = CertificateRevocationListDer::from_pem_slice(&pem).map_err(|_| contents())?;
    let parsed = webpki::BorrowedCertRevocationList::from_der(&list).map_err(|_| contents())?;
    let lists = [&webpki::CertRevocationList::from(parsed)];
    let options = webpki::RevocationOptionsBuilder::new(&lists).map_err(|_| contents())?;
    let options = options.with_depth(webpki::RevocationCheckDepth::EndEntity);
    match verify(authority, own, Some(options.build())) {
        Ok(()) => Ok(Some(list)),
        Err(webpki::Error::CertRevoked) => Err(Error::Revoked {
            path: directory.join(NODE),
        }),
        Err(_) => Err(contents()),
    }
}
