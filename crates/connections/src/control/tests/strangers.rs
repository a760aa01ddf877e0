//! Callers without valid credentials.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::SystemTime;

use rustix::process::geteuid;
use rustix::thread::{Uid, set_thread_res_uid};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

use super::callers::{serve, somebody_gets_through};
use super::*;

/// Does something in a thread of another user. Tests run as root.
fn as_nobody<R: Send>(act: impl FnOnce() -> R + Send) -> R {
    assert!(geteuid().is_root(), "run the tests as root");
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let nobody = Uid::from_raw(65534);
            set_thread_res_uid(nobody, nobody, nobody).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}

#[test]
fn another_user_is_refused() {
    let scratch = Scratch::new();
    let (a, b) = (
        TestProcess::on_this_host("a"),
        TestProcess::on_this_host("b"),
    );
    let mut listener = b.listen(&[scratch.socket()]);
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&scratch.0, 0o777);
    let socket = scratch.path("socket");
    // The file alone keeps them out.
    let error = as_nobody(|| UnixStream::connect(&socket)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    mode(&socket, 0o666);
    let mut stream = as_nobody(|| UnixStream::connect(&socket)).unwrap();
    serve(&mut listener);
    assert_eq!(listener.counters().strangers, 1);
    // Nothing is sent to it.
    assert_eq!(stream.read(&mut [0; 64]).unwrap(), 0);

    let theirs = scratch.path("theirs");
    let theirs = as_nobody(|| UnixListener::bind(&theirs).map(|socket| (socket, theirs))).unwrap();
    let error = a
        .dial(&Address::Unix(theirs.1), &mut a.queues())
        .unwrap_err();
    assert!(
        error.to_string().contains("is run by user 65534"),
        "{error}"
    );
    let (mut stream, _) = theirs.0.accept().unwrap();
    assert_eq!(stream.read(&mut [0; 64]).unwrap(), 0);
    somebody_gets_through(&mut listener, &scratch.socket(), &b, &a);
}

/// A client of TLS with a node's keys, or none, that sends nothing: reason of the refusal.
fn tls_client(listener: &mut Listener, authority: &Path, node: Option<&Path>) -> String {
    let roots = roots(authority);
    let builder =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots);
    let config = match node.map(certified) {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).unwrap(),
        None => builder.with_no_client_auth(),
    };
    let name = std::fs::read(authority.join("authority.pem")).unwrap();
    let (cluster, _) = keys::names_in(&CertificateDer::from_pem_slice(&name).unwrap()).unwrap();
    let name = ServerName::try_from(keys::cluster_name(&cluster)).unwrap();
    let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let Address::Tcp(address) = listener.addresses().remove(0) else {
        panic!("a Unix socket");
    };
    thread::scope(|scope| {
        let client = scope.spawn(move || {
            let mut socket = TcpStream::connect(address).unwrap();
            let mut stream = rustls::Stream::new(&mut connection, &mut socket);
            stream.read(&mut [0; 1]).unwrap_err().to_string()
        });
        while !client.is_finished() {
            serve(listener);
        }
        client.join().unwrap()
    })
}

fn roots(directory: &Path) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(directory.join("authority.pem")).unwrap();
    roots.add(authority).unwrap();
    roots
}

fn certified(node: &Path) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let certificate = CertificateDer::from_pem_file(node.join("node.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(node.join("node.key")).unwrap();
    (vec![certificate], key)
}

/// A directory of keys that expired an hour ago.
fn expired(directory: &Path, node: &str) -> PathBuf {
    let hour = Duration::from_secs(3600);
    let now = SystemTime::now();
    let made = keys::issue(directory, node, now - 2 * hour..now - hour).unwrap();
    made.directory
}

#[test]
fn callers_without_a_certificate_of_the_cluster_are_refused() {
    let scratch = Scratch::new();
    let [_, b] = scratch.keys("keys").map(TestProcess::new);
    let [_, _] = scratch.keys("others");
    let (own, others) = (scratch.path("keys"), scratch.path("others"));
    let old = expired(&own, "old");
    let mut listener = b.listen(&[loopback()]);
    let table = [
        (None, "CertificateRequired"),
        (Some(others.join("a")), "UnknownCA"),
        (Some(old), "CertificateExpired"),
    ];
    for (index, (node, alert)) in table.iter().enumerate() {
        let error = tls_client(&mut listener, &own, node.as_deref());
        assert!(error.contains(alert), "{error}");
        assert_eq!(listener.counters().strangers, index as u64 + 1);
    }
    // One that does not trust the listener ends the connection itself.
    let error = tls_client(&mut listener, &others, Some(&others.join("a")));
    assert!(error.contains("UnknownIssuer"), "{error}");
    assert_eq!(listener.counters().gone, 1);
    // A valid one that sends nothing receives Hello.
    assert_eq!(listener.counters().admitted, 0);
}

#[test]
fn dialers_refuse_nodes_of_other_clusters() {
    let scratch = Scratch::new();
    let [a, _] = scratch.keys("keys").map(TestProcess::new);
    let [stranger, _] = scratch.keys("others").map(TestProcess::new);
    let (own, others) = (scratch.path("keys"), scratch.path("others"));
    let old = expired(&own, "old");
    let sentence = "authority did not issue its certificate";
    for (node, expected) in [(others.join("a"), sentence), (old, "has expired")] {
        let (chain, key) = certified(&node);
        let config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(chain, key)
                .unwrap();
        let mut connection = ServerConnection::new(Arc::new(config)).unwrap();
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(socket.local_addr().unwrap());
        let error = thread::scope(|scope| {
            let dialed = scope.spawn(|| a.dial(&address, &mut a.queues()).map(|_| ()));
            let (mut socket, _) = socket.accept().unwrap();
            // Nothing was sent but the reason of distrust.
            let mut stream = rustls::Stream::new(&mut connection, &mut socket);
            assert!(stream.read(&mut [0; 1]).is_err());
            dialed.join().unwrap().unwrap_err().to_string()
        });
        assert!(error.contains(expected), "{error}");
    }
    // Both ends belong to the test: each reports the error.
    let listener = a.listen(&[loopback()]);
    let address = listener.addresses().remove(0);
    let (error, counters) = refused_dial(listener, &stranger, &address);
    assert!(error.contains(sentence), "{error}");
    assert_eq!(counters.gone, 1);
}

/// Keys copied from a node before they were revoked.
fn stolen(scratch: &Scratch, node: &Path) -> PathBuf {
    let stolen = scratch.path("stolen");
    std::fs::create_dir(&stolen).unwrap();
    for name in ["authority.pem", "node.pem", "node.key"] {
        std::fs::copy(node.join(name), stolen.join(name)).unwrap();
    }
    stolen
}

#[test]
fn a_revoked_node_is_refused_until_it_has_other_keys() {
    let scratch = Scratch::new();
    let [a, b] = scratch
        .keys("keys")
        .map(|identity| TestProcess::new(identity).only(Provider::Tcp));
    let own = scratch.path("keys");
    let stolen = stolen(&scratch, &own.join("a"));
    let mut listener = b.listen(&[loopback()]);
    let address = listener.addresses().remove(0);
    somebody_gets_through(&mut listener, &address, &b, &a);

    keys::revoke(&own, "a").unwrap();
    let refused = tls_client(&mut listener, &own, Some(&stolen));
    assert!(refused.contains("CertificateRevoked"), "{refused}");
    assert_eq!(listener.counters().strangers, 1);
    let thief = TestProcess::new(Identity::load(&stolen).unwrap());
    let theirs = thief.listen(&[loopback()]);
    let their_address = theirs.addresses().remove(0);
    let dialer = TestProcess::new(b.local.identity.clone());
    let (error, counters) = refused_dial(theirs, &dialer, &their_address);
    assert!(error.contains("its certificate was revoked"), "{error}");
    assert_eq!((counters.gone, counters.admitted), (1, 0));

    // An invalid list changes nothing.
    let list = own.join("b/revoked.pem");
    let right = std::fs::read(&list).unwrap();
    std::fs::write(&list, "no list").unwrap();
    let error = b.local.identity.refresh().unwrap_err().to_string();
    assert!(
        error.contains("contains no list of the cluster's"),
        "{error}"
    );
    let refused = tls_client(&mut listener, &own, Some(&stolen));
    assert!(refused.contains("CertificateRevoked"), "{refused}");
    std::fs::write(&list, right).unwrap();

    // No process restarts: not the listener, and not the node that gets other keys.
    let error = a.local.identity.refresh().unwrap_err().to_string();
    assert!(
        error.contains("node.pem was revoked; issue another"),
        "{error}"
    );
    std::fs::rename(own.join("a"), scratch.path("old")).unwrap();
    keys::issue(&own, "a", keys::usual_validity()).unwrap();
    somebody_gets_through(&mut listener, &address, &b, &a);
    let refused = tls_client(&mut listener, &own, Some(&stolen));
    assert!(refused.contains("CertificateRevoked"), "{refused}");
}

#[test]
fn a_process_does_not_become_another_node() {
    let scratch = Scratch::new();
    let [a, _] = scratch.keys("keys");
    let own = scratch.path("keys");
    assert!(!a.refresh().unwrap());
    for name in ["node.pem", "node.key"] {
        std::fs::copy(own.join("b").join(name), own.join("a").join(name)).unwrap();
    }
    let error = a.refresh().unwrap_err().to_string();
    assert!(
        error.contains("contains keys of another node now"),
        "{error}"
    );
    assert!(!Identity::local(CLUSTER, "a").unwrap().refresh().unwrap());
}

#[test]
fn junk_in_place_of_tls_is_dropped() {
    let scratch = Scratch::new();
    let [a, b] = scratch.keys("keys").map(TestProcess::new);
    let mut listener = b.listen(&[loopback()]);
    let address = listener.addresses().remove(0);
    let Address::Tcp(socket) = address else {
        panic!("{address}");
    };
    let junk: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\nHost: tako\r\n\r\n",
        &[0; 4096],
        &[0xff; 4096],
        // A handshake message that never ends.
        &[0x16, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff],
    ];
    let mut streams: Vec<TcpStream> = Vec::new();
    for bytes in junk {
        let mut stream = TcpStream::connect(socket).unwrap();
        stream.write_all(bytes).unwrap();
        serve(&mut listener);
        streams.push(stream);
    }
    drop(streams);
    serve(&mut listener);
    let counters = listener.counters();
    assert_eq!(
        counters.malformed + counters.strangers + counters.gone,
        4,
        "{counters:?}"
    );
    assert!(counters.malformed >= 2, "{counters:?}");
    let address = Address::Tcp(socket);
    let a = a.only(Provider::Tcp);
    thread::scope(|scope| {
        let dialed = scope.spawn(|| {
            let mut queues = a.queues();
            a.dial(&address, &mut queues).unwrap().close(&mut queues[1]);
        });
        let caller = listener.accept(LONG).unwrap().expect("a caller");
        let session = establish(caller, &mut b.queues()).unwrap();
        dialed.join().unwrap();
        drop(session);
    });
}
