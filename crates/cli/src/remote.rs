//! File systems of clusters: `tako://` in place of a pool.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use client::network::{self, Io, Network, Pull, RequestWay};
use client::{Acknowledge, FileSystem, Source, SourceError};
use connections::choice::PREFERENCE;
use connections::control::Address;
use fabric::Provider;
use fabric::ethernet::parse_types;
use fuse::{Cache, Locks, MountOptions};

use crate::failure::Failure;
use crate::log::Log;
use crate::state_directory;

/// Access to a cluster, and the acknowledgement that a write waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteOptions {
    acknowledge: Acknowledge,
    /// Calls fail after this long without an answer.
    timeout: Option<Duration>,
    keys: Option<PathBuf>,
    transport: Option<Provider>,
    interface: Option<String>,
    ether_types: Option<[u16; 2]>,
    data_queue: Option<u32>,
    requests: RequestWay,
    pull: Pull,
    /// The side that moves the data of writes and reads.
    io: Io,
    is_read_only: bool,
}

/// Options of a cluster's mount, for messages.
pub const KNOWN: &str = "hard, soft, timeout=SECONDS, ack=sent|primary|all, io=server|client|auto, requests=message|announced, pull=auto|always|never, keys=DIR, transport=NAME, interface=NAME, ether_types=DATA:COMMANDS, data_queue=NUMBER";
/// Highest number of an interface's queue.
const QUEUE_MAX: u32 = 4095;
/// Time limit of `soft`, unless `timeout=` gives another one.
const SOFT_TIMEOUT: Duration = Duration::from_secs(60);

impl RemoteOptions {
    /// Takes its own options out of those of a mount, and returns the others. A mount lives long enough to access the members'
    /// memories where that is faster.
    pub fn take(text: &str) -> Result<(RemoteOptions, String), Failure> {
        let mut options = RemoteOptions {
            io: Io::Auto,
            ..RemoteOptions::default()
        };
        let (mut timeout, mut is_soft) = (None, false);
        let mut others = Vec::new();
        for option in text.split(',').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            match (name, value) {
                ("soft", "") => is_soft = true,
                ("hard", "") => is_soft = false,
                ("timeout", _) => timeout = Some(parse_seconds(value)?),
                ("ack", _) => options.acknowledge = parse_acknowledge(value)?,
                ("keys", _) if !value.is_empty() => options.keys = Some(value.into()),
                ("interface", _) if !value.is_empty() => options.interface = Some(value.into()),
                ("ether_types", _) => options.ether_types = Some(parse_ether_types(value)?),
                ("data_queue", _) => options.data_queue = Some(parse_queue(value)?),
                ("io", _) => options.io = parse_io(value)?,
                ("requests", _) => options.requests = parse_requests(value)?,
                ("pull", _) => options.pull = parse_pull(value)?,
                ("ro", "") => {
                    options.is_read_only = true;
                    others.push(option);
                }
                ("rw", "") => {
                    options.is_read_only = false;
                    others.push(option);
                }
                // How requests come from the kernel.
                ("transport", "auto" | "uring" | "classic") => others.push(option),
                ("transport", _) => options.transport = Some(parse_transport(value)?),
                _ => others.push(option),
            }
        }
        options.timeout = is_soft.then(|| timeout.unwrap_or(SOFT_TIMEOUT));
        Ok((options, others.join(",")))
    }
}

impl RemoteOptions {
    /// Uses these keys if the options name none.
    pub fn or_keys(mut self, keys: Option<&Path>) -> RemoteOptions {
        self.keys = self.keys.or(keys.map(Path::to_owned));
        self
    }
}

/// The options of a mount of a cluster.
pub fn cluster_options(
    source: &Path,
    text: &str,
) -> Result<(MountOptions, RemoteOptions), Failure> {
    let (remote, text) = RemoteOptions::take(text)?;
    let mut options: MountOptions = text.parse().map_err(|error: fuse::Error| {
        let also = match error {
            fuse::Error::Option(_) => format!("; and of clusters {KNOWN}"),
            _ => String::new(),
        };
        Failure::Usage(format!("{error}{also}"))
    })?;
    // Locks of a cluster hold for all of its mounts, unless those of one are asked for.
    if !text.split(',').any(|option| option.starts_with("locks=")) {
        options.locks = Locks::Shared;
    }
    if options.name == MountOptions::default().name {
        options.name = source.to_string_lossy().into_owned();
    }
    Ok((options, remote))
}

fn parse_seconds(value: &str) -> Result<Duration, Failure> {
    let seconds = value.parse().ok().filter(|it| (1..=86_400).contains(it));
    seconds.map(Duration::from_secs).ok_or_else(|| {
        let sentence = format!("option `timeout` must be 1–86400 seconds, got '{value}'");
        Failure::Usage(sentence)
    })
}

fn parse_ether_types(value: &str) -> Result<[u16; 2], Failure> {
    let types = parse_types(value);
    types.map_err(|sentence| Failure::Usage(format!("option `ether_types` {sentence}")))
}

fn parse_queue(value: &str) -> Result<u32, Failure> {
    let queue = value.parse().ok().filter(|it| (0..=QUEUE_MAX).contains(it));
    queue.ok_or_else(|| {
        let sentence = format!("option `data_queue` must be 0–{QUEUE_MAX}, got '{value}'");
        Failure::Usage(sentence)
    })
}

fn parse_acknowledge(value: &str) -> Result<Acknowledge, Failure> {
    match value {
        "sent" => Ok(Acknowledge::Sent),
        "primary" => Ok(Acknowledge::Primary),
        "all" => Ok(Acknowledge::All),
        _ => Err(Failure::Usage(format!(
            "option `ack` must be sent, primary or all, got '{value}'"
        ))),
    }
}

fn parse_io(value: &str) -> Result<Io, Failure> {
    match value {
        "server" => Ok(Io::Server),
        "client" => Ok(Io::Client),
        "auto" => Ok(Io::Auto),
        _ => Err(Failure::Usage(format!(
            "option `io` must be server, client or auto, got '{value}'"
        ))),
    }
}

fn parse_requests(value: &str) -> Result<RequestWay, Failure> {
    RequestWay::named(value).ok_or_else(|| {
        let sentence = format!("option `requests` must be message or announced, got '{value}'");
        Failure::Usage(sentence)
    })
}

fn parse_pull(value: &str) -> Result<Pull, Failure> {
    Pull::named(value).ok_or_else(|| {
        let sentence = format!("option `pull` must be auto, always or never, got '{value}'");
        Failure::Usage(sentence)
    })
}

fn parse_transport(value: &str) -> Result<Provider, Failure> {
    let known = PREFERENCE.into_iter();
    let found = known.clone().find(|provider| provider.name() == value);
    found.ok_or_else(|| {
        let names: Vec<&str> = known.map(Provider::name).collect();
        let names = names.join(", ");
        Failure::Usage(format!(
            "option `transport` must be one of {names}, got '{value}'"
        ))
    })
}

/// How long a cluster may take to show that it serves.
const SERVE_WITHIN: Duration = Duration::from_secs(10);

/// A session with a cluster, and whether it serves.
pub fn survey(source: &Path) -> Result<(Arc<Network>, bool), Failure> {
    let options = RemoteOptions {
        timeout: Some(SERVE_WITHIN),
        ..RemoteOptions::default()
    };
    let network = Arc::new(connect(source, &options, Log::Terminal)?);
    let file_system = FileSystem::remote(network.clone(), options.acknowledge);
    let is_serving = file_system.stat("/").is_ok();
    Ok((network, is_serving))
}

/// Opens the file system of a cluster. What becomes of the cluster is written to the log.
pub fn open(source: &Path, options: &RemoteOptions, log: Log) -> Result<FileSystem, Failure> {
    let network = connect(source, options, log)?;
    Ok(file_system(Arc::new(network), options))
}

fn connect(source: &Path, options: &RemoteOptions, log: Log) -> Result<Network, Failure> {
    let text = source.to_string_lossy();
    let reached = network_options(reach(&text, options)?, options, &text, log);
    Network::connect(reached).map_err(|error| match local_name(&text) {
        Some(name)
            if matches!(error, network::Error::Unreachable(_)) && !state_directory::runs(&name) =>
        {
            state_directory::does_not_run(&name)
        }
        _ => Failure::Failed(error.to_string()),
    })
}

/// The name of a cluster of this host.
fn local_name(source: &str) -> Option<String> {
    let source = source.parse::<Source>().ok()?;
    source.hosts.is_empty().then_some(source.name)
}

/// Returns how to connect to the cluster of a source, without the options of the mount.
pub fn reach(source: &str, options: &RemoteOptions) -> Result<network::Options, Failure> {
    let parsed = source.parse::<Source>();
    let source = parsed.map_err(|error| Failure::Usage(error.to_string()))?;
    let keys = options.keys.as_deref();
    let reached = match source.options(keys) {
        // Nodes with a configuration of their own may keep their map elsewhere.
        Err(error @ SourceError::NoCluster(_)) => match state_directory::map_of(&source.name) {
            Some(map) => source.options_by_map(&map, keys),
            None => Err(error),
        },
        reached => reached,
    };
    reached.map_err(|error| Failure::Failed(error.to_string()))
}

/// Adds the options of a mount to a way to the cluster.
pub fn network_options(
    mut reached: network::Options,
    options: &RemoteOptions,
    source: &str,
    log: Log,
) -> network::Options {
    reached.timeout = options.timeout;
    reached.only = options.transport;
    reached.interface = match (&options.interface, options.transport) {
        (None, Some(Provider::Ethernet)) => reached.addresses.iter().find_map(Address::interface),
        (named, _) => named.clone(),
    };
    reached.ether_types = options.ether_types;
    reached.data_queue = options.data_queue;
    // A mount's mapped files are the kernel's.
    reached.map_bytes = 0;
    reached.io = options.io;
    (reached.requests, reached.pull) = (options.requests, options.pull);
    reached.is_read_only = options.is_read_only;
    let name = source.to_owned();
    reached.report = Arc::new(move |sentence| log.write(format_args!("{name}: {sentence}")));
    reached
}

/// The file system of a cluster that is connected.
pub fn file_system(network: Arc<Network>, options: &RemoteOptions) -> FileSystem {
    FileSystem::remote(network, options.acknowledge)
}

/// Lets a file system answer writes early, if the options of its mount ask for it.
pub fn answer_early(
    file_system: &FileSystem,
    options: &MountOptions,
    source: &str,
    log: Log,
) -> Result<(), Failure> {
    if options.cache != Cache::Writeback {
        return Ok(());
    }
    let source = source.to_owned();
    let report = move |sentence: &str| log.write(format_args!("{source}: {sentence}"));
    let started = file_system.answer_early(report);
    started.map_err(|error| Failure::Failed(format!("cannot start a thread: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_clusters_are_told_from_those_of_mounts() {
        let text = "ro,ack=all,soft,timeout=3,keys=/k,transport=ethernet,interface=eth0,ether_types=0x88b5:0x88b6,data_queue=1,io=client,requests=announced,pull=never,transport=classic,noexec";
        let (options, others) = RemoteOptions::take(text).unwrap();
        let expected = RemoteOptions {
            acknowledge: Acknowledge::All,
            timeout: Some(Duration::from_secs(3)),
            keys: Some("/k".into()),
            transport: Some(Provider::Ethernet),
            interface: Some("eth0".into()),
            ether_types: Some([0x88b5, 0x88b6]),
            data_queue: Some(1),
            requests: RequestWay::Announced,
            pull: Pull::Never,
            io: Io::Client,
            is_read_only: true,
        };
        assert_eq!(
            (options, others.as_str()),
            (expected, "ro,transport=classic,noexec")
        );
        let (options, _) = RemoteOptions::take("timeout=3,soft,hard,io=server").unwrap();
        assert_eq!(options, RemoteOptions::default());
        assert_eq!(RemoteOptions::take("").unwrap().0.io, Io::Auto);
        for wrong in [
            "io=",
            "io=some",
            "requests=",
            "requests=polled",
            "pull=on",
            "ack=",
            "ack=some",
            "timeout=0",
            "timeout=x",
            "data_queue=4096",
            "ether_types=0x88b5",
            "transport=x",
        ] {
            assert!(RemoteOptions::take(wrong).is_err(), "{wrong}");
        }
    }
}
