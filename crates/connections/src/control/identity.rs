//! Identity of this process for its peers.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::ServerName;
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::keys::{self, Keys, is_node_name};

/// Identity of this process. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Identity {
    pub(super) cluster: [u8; 16],
    pub(super) node: String,
    /// Random number that distinguishes processes of one node.
    pub(super) instance: u64,
    keys: Option<Arc<Mutex<Loaded>>>,
}

/// The keys of a directory, as it was when they were read.
#[derive(Debug)]
struct Loaded {
    directory: PathBuf,
    stamps: Vec<Stamp>,
    tls: Tls,
}

/// Differs if a file is another one, or was changed; nothing if it is not there.
type Stamp = Option<(u64, u64, i64, i64)>;

/// Authentication of connections over a network: TLS 1.3 with certificates on both sides, each time in full.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    pub client: Arc<ClientConfig>,
    pub server: Arc<ServerConfig>,
    /// Name that every listener of the cluster proves.
    pub name: ServerName<'static>,
}

impl Identity {
    /// A node with the keys in this directory: what `tako keys` made for it.
    ///
    /// # Errors
    /// [`keys::Error`]: they are missing, expired, do not belong together, or others may use them.
    pub fn load(directory: &Path) -> Result<Identity, keys::Error> {
        // First, so that a change meanwhile is one later.
        let stamps = stamps(directory);
        let keys = keys::load(directory)?;
        let identity = Identity::local(keys.cluster, &keys.node)?;
        let loaded = Loaded {
            directory: directory.into(),
            stamps,
            tls: usable(directory, keys)?,
        };
        Ok(Identity {
            keys: Some(Arc::new(Mutex::new(loaded))),
            ..identity
        })
    }

    /// Loads other keys, or another list of revoked certificates, if the directory has new ones; returns whether it
    /// did. This happens before each connection over a network; unusable files change nothing there.
    ///
    /// # Errors
    /// [`keys::Error`]: as [`Identity::load`], and [`keys::Error::Changed`]. The files loaded before stay in use.
    pub fn refresh(&self) -> Result<bool, keys::Error> {
        let Some(loaded) = &self.keys else {
            return Ok(false);
        };
        let mut loaded = loaded.lock();
        let stamps = stamps(&loaded.directory);
        if stamps == loaded.stamps {
            return Ok(false);
        }
        let keys = keys::load(&loaded.directory)?;
        if (keys.cluster, &keys.node) != (self.cluster, &self.node) {
            let path = loaded.directory.clone();
            return Err(keys::Error::Changed { path });
        }
        loaded.tls = usable(&loaded.directory, keys)?;
        loaded.stamps = stamps;
        Ok(true)
    }

    /// Credentials of this process, and rules to verify others, over a network.
    pub(super) fn tls(&self) -> Option<Tls> {
        let loaded = self.keys.as_ref()?;
        // A replacement may be incomplete: the files loaded before are used until all of it is there.
        let _ = self.refresh();
        Some(loaded.lock().tls.clone())
    }

    /// Whether it has keys.
    pub(super) fn has_keys(&self) -> bool {
        self.keys.is_some()
    }

    /// A node without keys, which connects to processes of its own host only.
    ///
    /// # Errors
    /// [`keys::Error::Name`].
    pub fn local(cluster: [u8; 16], node: &str) -> Result<Identity, keys::Error> {
        if !is_node_name(node) {
            return Err(keys::Error::Name { name: node.into() });
        }
        Ok(Identity {
            cluster,
            node: node.into(),
            instance: fabric::random(),
            keys: None,
        })
    }

    /// The cluster that it belongs to.
    pub fn cluster(&self) -> [u8; 16] {
        self.cluster
    }

    /// Returns the name of the node that it identifies.
    pub fn node(&self) -> &str {
        &self.node
    }
}

fn stamps(directory: &Path) -> Vec<Stamp> {
    let stamp = |name: &&str| {
        let found = fs::metadata(directory.join(name)).ok()?;
        Some((found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
    };
    keys::FILES.iter().map(stamp).collect()
}

fn usable(directory: &Path, keys: Keys) -> Result<Tls, keys::Error> {
    tls(keys).map_err(|_| keys::Error::Contents {
        path: directory.into(),
        what: "usable keys",
    })
}

fn tls(keys: Keys) -> Result<Tls, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = &[&rustls::version::TLS13];
    let mut roots = RootCertStore::empty();
    roots.add(keys.authority)?;
    let roots = Arc::new(roots);
    let chain = vec![keys.certificate];
    let general = |error: VerifierBuilderError| rustls::Error::General(error.to_string());
    let callers = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
        .with_crls(keys.revoked.clone())
        .only_check_end_entity_revocation()
        // Strangers do not learn which certificates would be accepted.
        .clear_root_hint_subjects()
        .build()
        .map_err(general)?;
    let listeners = WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
        .with_crls(keys.revoked)
        .only_check_end_entity_revocation()
        .build()
        .map_err(general)?;
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)?
        .with_client_cert_verifier(callers)
        .with_single_cert(chain.clone(), keys.key.clone_key())?;
    // A returning peer authenticates again: its certificate may have expired.
    server.send_tls13_tickets = 0;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .with_webpki_verifier(listeners)
        .with_client_auth_cert(chain, keys.key)?;
    client.resumption = Resumption::disabled();
    // The name would be readable by all.
    client.enable_sni = false;
    let name = ServerName::try_from(keys::cluster_name(&keys.cluster));
    Ok(Tls {
        client: client.into(),
        server: server.into(),
        name: name.map_err(|error| rustls::Error::General(error.to_string()))?,
    })
}
