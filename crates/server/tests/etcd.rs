//! The cluster map in a real etcd: compare and swap, watching, restart, compaction, no quorum, TLS, and nodes that use it.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::ClusterMap;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use server::membership::{EtcdMembership, EtcdOptions, Membership};
use server::node::{Node, NodeConfig, NodeStatus};

/// Time limit on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// An etcd of one or three members in this test's directory.
struct Etcd {
    directory: PathBuf,
    members: Vec<(Option<Child>, Vec<String>)>,
    options: EtcdOptions,
}

/// Makes the certificates of an authority, of etcd, and of a client. Returns the client's files, and etcd's arguments.
fn certificates(directory: &std::path::Path) -> (EtcdOptions, Vec<String>) {
    let write = |name: &str, text: String| {
        let path = directory.join(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    let key = KeyPair::generate().expect("a key");
    let mut authority = CertificateParams::new(Vec::new()).expect("parameters");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = authority.self_signed(&key).expect("signed");
    let issuer = Issuer::new(authority, key);
    let authority = write("authority.pem", certificate.pem());
    let issue = |name: &str| {
        let key = KeyPair::generate().expect("a key");
        let names = vec!["127.0.0.1".into(), "localhost".into()];
        let params = CertificateParams::new(names).expect("parameters");
        let certificate = params.signed_by(&key, &issuer).expect("signed");
        let certificate = write(&format!("{name}.pem"), certificate.pem());
        (
            certificate,
            write(&format!("{name}.key"), key.serialize_pem()),
        )
    };
    let ((certificate, key), (own, own_key)) = (issue("client"), issue("etcd"));
    let arguments = [
        ("--cert-file", &own),
        ("--key-file", &own_key),
        ("--trusted-ca-file", &authority),
        ("--client-cert-auth", &"true".into()),
    ];
    let arguments = arguments.map(|(name, value)| format!("{name}={}", value.display()));
    let options = EtcdOptions {
        authority: Some(authority),
        certificate: Some(certificate),
        key: Some(key),
        ..EtcdOptions::default()
    };
    (options, arguments.to_vec())
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

impl Etcd {
    /// So many members, which need the package `etcd-server`.
    fn start(test: &str, count: usize) -> Etcd {
        Etcd::start_with(test, count, false)
    }

    /// The same; with TLS, clients need a certificate.
    fn start_with(test: &str, count: usize, tls: bool) -> Etcd {
        let name = format!("tako-etcd-{test}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir(&directory).expect("a directory");
        let ports: Vec<_> = (0..count).map(|_| [free_port(), free_port()]).collect();
        let (mut options, secure) = match tls {
            true => certificates(&directory),
            false => (EtcdOptions::default(), Vec::new()),
        };
        let scheme = if tls { "https" } else { "http" };
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let client_url = |port: u16| format!("{scheme}://127.0.0.1:{port}");
        options.endpoints = ports.iter().map(|[port, _]| client_url(*port)).collect();
        let peers: Vec<_> = ports
            .iter()
            .enumerate()
            .map(|(index, [_, peer])| format!("m{index}={}", url(*peer)))
            .collect();
        let arguments = |index: usize| {
            let [client, peer] = ports[index];
            let data = directory.join(format!("m{index}"));
            let pairs = [
                ("--name", format!("m{index}")),
                ("--data-dir", data.display().to_string()),
                ("--listen-client-urls", client_url(client)),
                ("--advertise-client-urls", client_url(client)),
                ("--listen-peer-urls", url(peer)),
                ("--initial-advertise-peer-urls", url(peer)),
                ("--initial-cluster", peers.join(",")),
                ("--log-level", "error".into()),
            ];
            let pairs = pairs.into_iter();
            pairs
                .flat_map(|(name, value)| [name.to_owned(), value])
                .chain(secure.iter().cloned())
                .collect()
        };
        let mut etcd = Etcd {
            members: (0..count).map(|index| (None, arguments(index))).collect(),
            options,
            directory,
        };
        (0..count).for_each(|index| etcd.start_member(index));
        etcd
    }

    fn start_member(&mut self, index: usize) {
        let (child, arguments) = &mut self.members[index];
        let mut command = Command::new("etcd");
        command.args(arguments).stderr(Stdio::null());
        *child = Some(command.spawn().expect("etcd of the package etcd-server"));
    }

    fn kill_member(&mut self, index: usize) {
        if let Some(mut child) = self.members[index].0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn membership(&self) -> EtcdMembership {
        EtcdMembership::open(&self.options, "lab").expect("the options are right")
    }

    /// The map, as soon as the service answers.
    fn read(&self) -> Option<ClusterMap> {
        let (start, membership) = (Instant::now(), self.membership());
        loop {
            match membership.read() {
                Ok(map) => return map,
                Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
            }
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|index| self.kill_member(index));
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn first() -> ClusterMap {
    ClusterMap {
        name: "lab".into(),
        version: 1,
        ..ClusterMap::default()
    }
}

#[test]
fn only_the_next_map_replaces_the_current_one_also_after_restart_and_compaction() {
    let mut etcd = Etcd::start("swap", 1);
    assert_eq!(etcd.read(), None);
    let membership = etcd.membership();
    assert_eq!(membership.propose(&first()).expect("first"), first());
    let (second, _) = first().register("n1", [1; 16], Vec::new());
    let (other, _) = first().register("n2", [2; 16], Vec::new());
    assert_eq!(membership.propose(&second).expect("second"), second);
    assert_eq!(membership.propose(&other).expect("too late"), second);
    assert_eq!(membership.propose(&first()).expect("much too late"), second);
    let url = format!("{}/v3/kv/compaction", etcd.options.endpoints[0]);
    let compacted = ureq::post(url).send("{\"revision\": 3, \"physical\": true}");
    assert!(compacted.is_ok(), "{compacted:?}");
    etcd.kill_member(0);
    assert!(membership.read().is_err());
    etcd.start_member(0);
    assert_eq!(etcd.read(), Some(second.clone()));
    let (third, _) = second.register("n2", [2; 16], Vec::new());
    assert_eq!(membership.propose(&third).expect("third"), third);
}

#[test]
fn a_waiter_gets_the_next_map() {
    let etcd = Etcd::start("wait", 1);
    assert_eq!(etcd.read(), None);
    etcd.membership().propose(&first()).expect("first");
    let waiter = etcd.membership();
    let short = Duration::from_millis(100);
    assert_eq!(waiter.wait(1, short).expect("nothing yet"), None);
    let (second, _) = first().register("n1", [1; 16], Vec::new());
    let thread = std::thread::spawn(move || {
        let start = Instant::now();
        let map = waiter.wait(1, PATIENCE);
        (map, start.elapsed())
    });
    etcd.membership().propose(&second).expect("second");
    let (map, elapsed) = thread.join().expect("no panic");
    assert_eq!(map.expect("a map"), Some(second));
    assert!(elapsed < PATIENCE, "the wait did not end with the map");
}

#[test]
fn two_of_three_members_answer_and_one_does_not() {
    let mut etcd = Etcd::start("quorum", 3);
    assert_eq!(etcd.read(), None);
    etcd.membership().propose(&first()).expect("first");
    etcd.kill_member(0);
    assert_eq!(etcd.read(), Some(first()));
    etcd.kill_member(1);
    let refused = etcd.membership().read().expect_err("there is no quorum");
    assert!(refused.to_string().contains("most members"), "{refused}");
    etcd.start_member(0);
    assert_eq!(etcd.read(), Some(first()));
}

#[test]
fn with_tls_only_those_with_a_certificate_of_the_authority_are_answered() {
    let etcd = Etcd::start_with("tls", 1, true);
    assert_eq!(etcd.read(), None);
    etcd.membership().propose(&first()).expect("first");
    assert_eq!(etcd.read(), Some(first()));
    let refused = |options: EtcdOptions| {
        let membership = EtcdMembership::open(&options, "lab").expect("the files are readable");
        let refused = membership.read().expect_err("it is not let in");
        let sentence = refused.to_string();
        assert!(
            sentence.starts_with("etcd: https://127.0.0.1:"),
            "{sentence}"
        );
    };
    refused(EtcdOptions {
        certificate: None,
        key: None,
        ..etcd.options.clone()
    });
    refused(EtcdOptions {
        authority: etcd.options.certificate.clone(),
        ..etcd.options.clone()
    });
    let missing = EtcdOptions {
        key: Some("/nowhere/key.pem".into()),
        ..etcd.options.clone()
    };
    let unusable = EtcdMembership::open(&missing, "lab").err();
    let unusable = unusable.expect("there is no such file").to_string();
    assert!(unusable.contains("/nowhere/key.pem"), "{unusable}");
}

/// Nodes in this process with a map in etcd.
struct Nodes {
    nodes: Vec<Option<Node>>,
    directory: PathBuf,
}

impl Nodes {
    fn start(etcd: &Etcd, count: usize) -> Nodes {
        let directory = etcd.directory.join("nodes");
        std::fs::create_dir(&directory).expect("a directory");
        let mut nodes = Nodes {
            nodes: (0..count).map(|_| None).collect(),
            directory,
        };
        (0..count).for_each(|index| nodes.start_node(etcd, index));
        nodes
    }

    fn start_node(&mut self, etcd: &Etcd, index: usize) {
        let path = |end: &str| self.directory.join(format!("n{index}.{end}"));
        let config = NodeConfig {
            cluster: "lab".into(),
            name: format!("n{index}"),
            listen: vec![path("sock").display().to_string()],
            keys: None,
            transport: None,
            interface: None,
            ether_types: None,
            data_queue: None,
            requests: Default::default(),
            pull: Default::default(),
            group: Default::default(),
            group_parity: false,
            pool: path("pool"),
            pool_length: 8 << 20,
            metadata_only: false,
            members: self.nodes.len() as u8,
            metadata_members: 0,
            min_sync: 0,
            spare_after: 0,
            clock: Default::default(),
        };
        let membership: Arc<dyn Membership> = Arc::new(etcd.membership());
        let log = Arc::new(|line: std::fmt::Arguments<'_>| println!("{line}"));
        self.nodes[index] = Some(Node::start(&config, &membership, log).expect("it starts"));
    }

    fn statuses(&self) -> Vec<Option<NodeStatus>> {
        let status = |node: &Option<Node>| node.as_ref()?.asker().status(PATIENCE);
        self.nodes.iter().map(status).collect()
    }

    /// The nodes that serve. Each is asked again after the others: of two that serve all the time, both would be seen
    /// before and behind the other one.
    fn serving(&self) -> Vec<usize> {
        let serving = || {
            let statuses = self.statuses().into_iter().enumerate();
            let serves = |it: &(usize, Option<NodeStatus>)| {
                it.1.as_ref().is_some_and(|status| status.is_serving)
            };
            statuses.filter(serves).map(|it| it.0).collect::<Vec<_>>()
        };
        let before = serving();
        std::thread::park_timeout(Duration::from_millis(10));
        let after = serving();
        let both = before.into_iter().filter(|node| after.contains(node));
        let both: Vec<_> = both.collect();
        assert!(both.len() < 2, "two primaries: {both:?}");
        both
    }

    fn wait(&self, what: &str, is_so: impl Fn(&[usize]) -> bool) -> Vec<usize> {
        let start = Instant::now();
        loop {
            let serving = self.serving();
            if is_so(&serving) {
                return serving;
            }
            assert!(start.elapsed() < PATIENCE, "{what}: {:#?}", self.statuses());
        }
    }
}

#[test]
fn nodes_serve_without_etcd_and_get_a_new_primary_only_with_it() {
    let mut etcd = Etcd::start("nodes", 3);
    assert_eq!(etcd.read(), None);
    let mut nodes = Nodes::start(&etcd, 3);
    nodes.wait("one serves", |serving| !serving.is_empty());
    // One endpoint less, and a compaction, change nothing.
    etcd.kill_member(0);
    let url = format!("{}/v3/kv/compaction", etcd.options.endpoints[1]);
    let revision = etcd.read().expect("there is a map").version;
    let compacted = ureq::post(url).send(format!("{{\"revision\": {revision}}}"));
    assert!(compacted.is_ok(), "{compacted:?}");
    // Without a quorum the leases of the nodes continue.
    etcd.kill_member(1);
    let primary = nodes.wait("one serves", |serving| !serving.is_empty())[0];
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        nodes.wait("it goes on", |serving| serving == [primary]);
    }
    // No member takes over as long as etcd does not answer.
    nodes.nodes[primary] = None;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        assert_eq!(nodes.serving(), [0; 0]);
    }
    etcd.start_member(0);
    etcd.start_member(1);
    let next = nodes.wait("another one serves", |serving| !serving.is_empty())[0];
    assert_ne!(next, primary);
    nodes.start_node(&etcd, primary);
    let is_back = |nodes: &Nodes| {
        let statuses = nodes.statuses().into_iter().flatten();
        statuses.filter(|status| status.is_in_sync).count() == 3
    };
    let start = Instant::now();
    while !is_back(&nodes) {
        assert!(start.elapsed() < PATIENCE, "{:#?}", nodes.statuses());
    }
}
