//! Sources: how users name a cluster.
//!
//! ```text
//!  tako:///NAME                            a cluster with nodes on this host
//!  tako://HOST:PORT[,HOST:PORT...]/NAME    a cluster that is reached over a network, with keys
//! ```

use std::fmt;
use std::io::ErrorKind;
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use connections::control::{Address, Identity};
use protocol::ClusterMap;

use crate::local_clusters::cluster_map_file;
use crate::network::Options;

/// Names sources begin with.
const SCHEME: &str = "tako://";

/// A cluster, as users name it.
/// ```
/// # use client::Source;
/// let source: Source = "tako://a:7000,b:7000/files".parse()?;
/// assert_eq!((source.hosts.len(), &*source.name), (2, "files"));
/// # Ok::<(), client::SourceError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// `host:port` of nodes; none for a cluster of this host.
    pub hosts: Vec<String>,
    /// Name of the cluster: 1–63 of a–z, 0–9 and '-'.
    pub name: String,
}

/// Why a source is invalid, or cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The text is not a source.
    #[error("invalid source '{0}': {1}; write tako:///NAME or tako://HOST:PORT[,HOST:PORT]/NAME")]
    Syntax(String, &'static str),
    /// No cluster of this name was started on this host.
    #[error("there is no cluster {0} on this host; start it with `tako up --name {0}`")]
    NoCluster(String),
    /// The cluster's map is unusable.
    #[error(
        "the map of cluster {name} cannot be read: {path}: {reason}; restore the file, or remove the cluster with \
         `tako down --name {name} --remove`"
    )]
    Map {
        /// Name of the cluster.
        name: String,
        /// The file with its map.
        path: PathBuf,
        /// Why it cannot be read.
        reason: String,
    },
    /// The cluster is reached over a network, and there are no keys.
    #[error(
        "{0} is reached over a network, and needs keys; name their directory with `-o keys=DIR` or $TAKO_KEYS"
    )]
    NoKeys(String),
    /// The keys are unusable.
    #[error(transparent)]
    Keys(#[from] connections::keys::Error),
    /// A host has no address.
    #[error("{host} has no address: {reason}; check its name")]
    Host {
        /// Name of the host.
        host: String,
        /// Reason that the resolver gives.
        reason: String,
    },
}

impl Source {
    /// Whether a text is meant to be a source.
    pub fn is_source(text: &[u8]) -> bool {
        text.starts_with(SCHEME.as_bytes())
    }

    /// Returns how to connect to the cluster. `keys` is the directory with the keys of this node, if it has any.
    ///
    /// # Errors
    /// [`SourceError`]
    pub fn options(&self, keys: Option<&Path>) -> Result<Options, SourceError> {
        if self.hosts.is_empty() {
            return self.options_by_file(&cluster_map_file(&self.name), keys);
        }
        self.options_by_network(&self.hosts, identity(keys)?)
    }

    /// Returns how to connect to a cluster of this host, by the file with its map. `keys` as in [`Source::options`].
    ///
    /// # Errors
    /// [`SourceError`]
    pub fn options_by_file(
        &self,
        path: &Path,
        keys: Option<&Path>,
    ) -> Result<Options, SourceError> {
        self.options_by_map(&map_of_this_host(&self.name, path)?, keys)
    }

    /// Returns how to connect to a cluster with nodes on this host, by its map: through their Unix sockets, if they have any.
    /// `keys` as in [`Source::options`].
    ///
    /// # Errors
    /// [`SourceError`]
    pub fn options_by_map(
        &self,
        map: &ClusterMap,
        keys: Option<&Path>,
    ) -> Result<Options, SourceError> {
        let all = map.nodes.iter().flat_map(|node| &node.addresses);
        let (sockets, hosts): (Vec<_>, Vec<_>) = all.cloned().partition(|it| it.starts_with('/'));
        let identity = identity(keys)?;
        if sockets.is_empty() {
            return self.options_by_network(&hosts, identity);
        }
        let identity = match identity.filter(|it| it.cluster() == map.cluster) {
            Some(identity) => identity,
            None => Identity::local(map.cluster, "client")?,
        };
        let sockets = sockets.into_iter().map(|path| Address::Unix(path.into()));
        Ok(Options::new(identity, sockets.collect()))
    }

    fn options_by_network(
        &self,
        hosts: &[String],
        identity: Option<Identity>,
    ) -> Result<Options, SourceError> {
        let Some(identity) = identity else {
            return Err(SourceError::NoKeys(self.to_string()));
        };
        let mut found = Vec::new();
        for host in hosts {
            found.extend(resolve(host)?);
        }
        let mut options = Options::new(identity, found);
        options.cluster = Some(self.name.clone());
        options.connect_timeout = Duration::from_secs(20);
        Ok(options)
    }
}

/// The identity with keys of this directory, or else of the one that the environment names.
fn identity(keys: Option<&Path>) -> Result<Option<Identity>, SourceError> {
    let environment = std::env::var_os("TAKO_KEYS").map(PathBuf::from);
    let keys = keys.or(environment.as_deref());
    Ok(keys.map(Identity::load).transpose()?)
}

fn map_of_this_host(name: &str, path: &Path) -> Result<ClusterMap, SourceError> {
    let failed = |reason: String| SourceError::Map {
        name: name.to_owned(),
        path: path.to_owned(),
        reason,
    };
    let bytes = std::fs::read(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => SourceError::NoCluster(name.to_owned()),
        _ => failed(error.to_string()),
    })?;
    let map: ClusterMap =
        serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string()))?;
    match map.fault() {
        Some(fault) => Err(failed(fault.to_owned())),
        None => Ok(map),
    }
}

fn resolve(host: &str) -> Result<Vec<Address>, SourceError> {
    let resolved = host.to_socket_addrs().map_err(|error| SourceError::Host {
        host: host.to_owned(),
        reason: error.to_string(),
    })?;
    Ok(resolved.map(Address::Tcp).collect())
}

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Source, SourceError> {
        let wrong = |why| SourceError::Syntax(text.to_owned(), why);
        let rest = text.strip_prefix(SCHEME);
        let rest = rest.ok_or_else(|| wrong("it does not begin with tako://"))?;
        let split = rest.split_once('/');
        let (hosts, name) = split.ok_or_else(|| wrong("the cluster's name is missing"))?;
        if !connections::keys::is_node_name(name) {
            return Err(wrong(
                "a cluster's name has 1 to 63 of a-z, 0-9, and '-' inside",
            ));
        }
        let hosts: Vec<String> = match hosts {
            "" => Vec::new(),
            hosts => hosts.split(',').map(str::to_owned).collect(),
        };
        let has_port = |host: &String| {
            let split = host.rsplit_once(':');
            split.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        if !hosts.iter().all(has_port) {
            return Err(wrong("a host has no port"));
        }
        Ok(Source {
            hosts,
            name: name.to_owned(),
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.hosts.join(","), self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_names_hosts_and_a_cluster() {
        let local: Source = "tako:///tako".parse().unwrap();
        assert_eq!((local.hosts.len(), local.name.as_str()), (0, "tako"));
        let text = "tako://10.0.0.1:7474,[::1]:7474,node:80/a-b";
        let remote: Source = text.parse().unwrap();
        assert_eq!(remote.hosts, ["10.0.0.1:7474", "[::1]:7474", "node:80"]);
        assert_eq!(remote.to_string(), text);
        assert!(Source::is_source(text.as_bytes()) && !Source::is_source(b"/tako"));
    }

    #[test]
    fn texts_that_are_no_source_are_refused_with_a_reason() {
        let texts = [
            "",
            "tako:",
            "tako://",
            "tako:///",
            "tako://host:1",
            "tako://host/a",
            "tako://host:/a",
            "tako://:1/a",
            "tako://host:1,/a",
            "tako://host:70000/a",
            "tako:///A",
            "tako:///a/b",
            "tako:///../x",
        ];
        for text in texts {
            let error = text.parse::<Source>().expect_err(text).to_string();
            assert!(
                error.starts_with(&format!("invalid source '{text}': ")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_network_takes_keys() {
        let source: Source = "tako://127.0.0.1:1/a".parse().unwrap();
        if std::env::var_os("TAKO_KEYS").is_none() {
            assert!(matches!(source.options(None), Err(SourceError::NoKeys(_))));
        }
        let nowhere = Path::new("/nowhere");
        assert!(matches!(
            source.options(Some(nowhere)),
            Err(SourceError::Keys(_))
        ));
    }
}
