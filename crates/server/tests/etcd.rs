//! The cluster map in a real etcd: compare and swap, watching, restart, compaction, no quorum.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use protocol::ClusterMap;
use server::membership::{EtcdMembership, EtcdOptions, Membership};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// An etcd of one or three members in this test's directory.
struct Etcd {
    directory: PathBuf,
    members: Vec<(Option<Child>, Vec<String>)>,
    endpoints: Vec<String>,
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

impl Etcd {
    /// So many members, which need the package `etcd-server`.
    fn start(test: &str, count: usize) -> Etcd {
        let name = format!("tako-etcd-{test}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir(&directory).expect("a directory");
        let ports: Vec<_> = (0..count).map(|_| [free_port(), free_port()]).collect();
        let url = |port: u16| format!("http://127.0.0.1:{port}");
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
                ("--listen-client-urls", url(client)),
                ("--advertise-client-urls", url(client)),
                ("--listen-peer-urls", url(peer)),
                ("--initial-advertise-peer-urls", url(peer)),
                ("--initial-cluster", peers.join(",")),
                ("--log-level", "error".into()),
            ];
            let pairs = pairs.into_iter();
            pairs
                .flat_map(|(name, value)| [name.to_owned(), value])
                .collect()
        };
        let mut etcd = Etcd {
            members: (0..count).map(|index| (None, arguments(index))).collect(),
            endpoints: ports.iter().map(|[client, _]| url(*client)).collect(),
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
        let options = EtcdOptions {
            endpoints: self.endpoints.clone(),
            ..EtcdOptions::default()
        };
        EtcdMembership::open(&options, "lab").expect("the options are right")
    }

    /// What the service answers as soon as it answers.
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
    let url = format!("{}/v3/kv/compaction", etcd.endpoints[0]);
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
