//! Who this process is, to its peers.

use std::path::Path;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::keys::{self, Keys, is_node_name};

/// Who this process is. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Identity {
    pub(super) cluster: [u8; 16],
    pub(super) node: String,
    /// Tells processes apart.
    pub(super) instance: u64,
    pub(super) tls: Option<Tls>,
}

/// How connections over a network are authenticated: TLS 1.3 with certificates on both sides, each time anew.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    pub client: Arc<ClientConfig>,
    pub server: Arc<ServerConfig>,
    /// What every listener of the cluster proves to be.
    pub name: ServerName<'static>,
}

impl Identity {
    /// A node with the keys in this directory: what `tako keys` made for it.
    ///
    /// # Errors
    /// [`keys::Error`]: they are missing, expired, do not belong together, or others may use them.
    pub fn load(directory: &Path) -> Result<Identity, keys::Error> {
        let keys = keys::load(directory)?;
        let (cluster, node) = (keys.cluster, keys.node.clone());
        let contents = |what| keys::Error::Contents {
            path: directory.into(),
            what,
        };
        let tls = tls(keys).map_err(|_| contents("usable keys"))?;
        Ok(Identity {
            tls: Some(tls),
            ..Identity::local(cluster, &node)?
        })
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
            instance: crate::random(),
            tls: None,
        })
    }

    /// The cluster that it belongs to.
    pub fn cluster(&self) -> [u8; 16] {
        self.cluster
    }

    /// Its node's name.
    pub fn node(&self) -> &str {
        &self.node
    }
}

fn tls(keys: Keys) -> Result<Tls, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = &[&rustls::version::TLS13];
    let mut roots = RootCertStore::empty();
    roots.add(keys.authority)?;
    let roots = Arc::new(roots);
    let chain = vec![keys.certificate];
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
        // Strangers are not told whose certificates would do.
        .clear_root_hint_subjects()
        .build()
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), keys.key.clone_key())?;
    // Whoever comes back proves again who it is: its certificate may have expired.
    server.send_tls13_tickets = 0;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .with_root_certificates(roots)
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
