//! A node's configuration as a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use connections::messenger::{Pull, RequestWay};
use fabric::Provider;
use fabric::ethernet::parse_types;
use serde::{Deserialize, Serialize};
use server::membership::{
    DirectoryMembership, EtcdMembership, EtcdOptions, Membership, MembershipError,
};
use server::node::{GroupMode, NodeConfig};

use crate::failure::Failure;
use crate::sizes::parse_size;

/// A node's configuration, with the keys that examples/node.toml explains.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeFile {
    pub cluster: String,
    pub name: String,
    pub listen: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// EtherTypes of its frames: `0x88b5:0x88b6`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ether_types: Option<String>,
    /// Where the node's process mounts the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_options: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_queue: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull: Option<String>,
    pub group: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub group_parity: bool,
    pub pool: PoolSection,
    pub membership: MembershipSection,
    pub unit: UnitSection,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<PeerSection>,
}

/// Another cluster, which the node's process mounts.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerSection {
    pub source: String,
    pub mount: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_options: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolSection {
    pub path: PathBuf,
    pub size: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub metadata_only: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MembershipSection {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdOptions>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnitSection {
    pub members: u8,
    #[serde(default)]
    pub metadata_members: u8,
    #[serde(default)]
    pub min_sync: u8,
    #[serde(default = "spare_after")]
    pub spare_after: u32,
}

/// Seconds that a member may be away before a spare takes its place, unless configured.
pub fn spare_after() -> u32 {
    60
}

impl NodeFile {
    /// Reads a configuration; an error names its line.
    pub fn read(path: &Path) -> Result<NodeFile, Failure> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| Failure::host("read", path, &error))?;
        toml::from_str(&text).map_err(|error| {
            let line = error
                .span()
                .map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            let message = error.message().replace('\n', ", ");
            let path = path.display();
            Failure::Failed(format!(
                "{path}:{line}: {message}; compare with examples/node.toml"
            ))
        })
    }

    /// Writes a configuration, in place of the file that is there.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = toml::to_string(self)
            .map_err(|error| Failure::Failed(format!("cannot describe {}: {error}", self.name)))?;
        std::fs::write(path, text).map_err(|error| Failure::host("write", path, &error))
    }

    /// The service that keeps the cluster map.
    pub fn membership(&self) -> Result<Arc<dyn Membership>, Failure> {
        let failed = |error: MembershipError| Failure::Failed(error.to_string());
        Ok(match (&self.membership.directory, &self.membership.etcd) {
            (Some(directory), None) => {
                Arc::new(DirectoryMembership::open(directory).map_err(failed)?)
            }
            (None, Some(etcd)) => {
                Arc::new(EtcdMembership::open(etcd, &self.cluster).map_err(failed)?)
            }
            _ => {
                let sentence = "`membership` must have either `directory` or `etcd`; compare with examples/node.toml";
                return Err(Failure::Failed(sentence.into()));
            }
        })
    }

    /// The configuration of the server.
    pub fn config(self, path: &Path) -> Result<NodeConfig, Failure> {
        let wrong = |what: String| Failure::Failed(format!("{}: {what}", path.display()));
        let group = self
            .group
            .as_deref()
            .map_or(Ok(GroupMode::default()), parse_group)
            .map_err(&wrong)?;
        if self.group_parity && group != GroupMode::On {
            let used = self.group.as_deref().unwrap_or("auto");
            return Err(wrong(format!(
                "`group_parity` has no effect unless `group` is on, got {used}; set `group = \"on\"`, or remove `group_parity`"
            )));
        }
        let requests = self.requests.as_deref().map(parse_requests).transpose();
        let pull = self.pull.as_deref().map(parse_pull).transpose();
        let transport = self.transport.map(|name| parse_transport(&name));
        let types = self.ether_types.as_deref().map(parse_types).transpose();
        let types = types.map_err(|sentence| wrong(format!("`ether_types` {sentence}")))?;
        Ok(NodeConfig {
            cluster: self.cluster,
            name: self.name,
            listen: self.listen,
            keys: self.keys,
            transport: transport.transpose().map_err(&wrong)?,
            interface: self.interface,
            ether_types: types,
            data_queue: self.data_queue,
            requests: requests.map_err(&wrong)?.unwrap_or_default(),
            pull: pull.map_err(&wrong)?.unwrap_or_default(),
            group,
            group_parity: self.group_parity,
            pool: self.pool.path,
            pool_length: parse_size(&self.pool.size)
                .map_err(|error| wrong(format!("`size`: {error}")))?,
            metadata_only: self.pool.metadata_only,
            members: self.unit.members,
            metadata_members: self.unit.metadata_members,
            min_sync: self.unit.min_sync,
            spare_after: self.unit.spare_after,
            clock: Default::default(),
        })
    }
}

fn parse_transport(name: &str) -> Result<Provider, String> {
    let known = connections::choice::PREFERENCE;
    let found = known.into_iter().find(|it| it.to_string() == name);
    found.ok_or_else(|| {
        let names = known.map(|it| it.to_string()).join(", ");
        format!("`transport` must be one of {names}, got '{name}'")
    })
}

fn parse_requests(name: &str) -> Result<RequestWay, String> {
    let named = RequestWay::named(name);
    named.ok_or_else(|| format!("`requests` must be message or announced, got '{name}'"))
}

fn parse_pull(name: &str) -> Result<Pull, String> {
    let named = Pull::named(name);
    named.ok_or_else(|| format!("`pull` must be auto, always or never, got '{name}'"))
}

/// The mode of this name.
pub fn parse_group(name: &str) -> Result<GroupMode, String> {
    let mode = GroupMode::named(name);
    mode.ok_or_else(|| format!("`group` must be on, off or auto, got '{name}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_a_configuration() {
        let path = Path::new(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../examples/node.toml"
        ));
        let file = NodeFile::read(path).expect("it is TOML");
        let config = file.config(path).expect("it is complete");
        assert_eq!(config.validate().err().map(|it| it.to_string()), None);
        assert_eq!((config.members, config.pool_length), (3, 4 << 30));
    }

    #[test]
    fn parity_without_a_group_is_refused() {
        let path = Path::new(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../examples/node.toml"
        ));
        for (group, is_valid) in [
            (None, false),
            (Some("auto"), false),
            (Some("off"), false),
            (Some("on"), true),
        ] {
            let mut file = NodeFile::read(path).expect("it is TOML");
            (file.group, file.group_parity) = (group.map(String::from), true);
            match file.config(path) {
                Ok(config) => assert!(is_valid && config.group_parity, "{group:?}"),
                Err(Failure::Failed(sentence)) => {
                    let expected =
                        format!("unless `group` is on, got {};", group.unwrap_or("auto"));
                    assert!(!is_valid && sentence.contains(&expected), "{sentence}");
                }
                Err(failure) => panic!("{failure:?}"),
            }
        }
    }

    #[test]
    fn ways_of_messages_are_chosen_by_name() {
        let path = Path::new(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../examples/node.toml"
        ));
        for (requests, pull, expected) in [
            (None, None, Ok((RequestWay::Message, Pull::Auto))),
            (
                Some("announced"),
                Some("always"),
                Ok((RequestWay::Announced, Pull::Always)),
            ),
            (
                Some("message"),
                Some("never"),
                Ok((RequestWay::Message, Pull::Never)),
            ),
            (
                Some("polled"),
                None,
                Err("`requests` must be message or announced, got 'polled'"),
            ),
            (
                None,
                Some("on"),
                Err("`pull` must be auto, always or never, got 'on'"),
            ),
        ] {
            let mut file = NodeFile::read(path).expect("it is TOML");
            (file.requests, file.pull) = (requests.map(String::from), pull.map(String::from));
            match (file.config(path), expected) {
                (Ok(config), Ok(expected)) => {
                    assert_eq!((config.requests, config.pull), expected);
                }
                (Err(Failure::Failed(sentence)), Err(expected)) => {
                    assert!(sentence.ends_with(expected), "{sentence}");
                }
                (_, expected) => panic!("{expected:?}"),
            }
        }
    }

    #[test]
    fn errors_name_the_line_and_what_is_wrong() {
        let path = std::env::temp_dir().join(format!("tako-config-{}.toml", std::process::id()));
        std::fs::write(&path, "cluster = \"a\"\nnmae = \"b\"\n").expect("written");
        let failure = NodeFile::read(&path).err().expect("a misspelt key");
        std::fs::remove_file(&path).expect("it was there");
        let Failure::Failed(sentence) = failure else {
            panic!("{failure:?}")
        };
        assert!(
            sentence.contains(":2:") && sentence.contains("nmae"),
            "{sentence}"
        );
    }
}
