use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

/// A directory that goes with all that is in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("tako-keys-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn sentence<T>(result: Result<T, Error>) -> String {
    result.map(|_| ()).unwrap_err().to_string()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn names_of_nodes() {
    for name in ["a", "n1", "node-7", &"x".repeat(63)] {
        assert!(is_node_name(name), "{name}");
    }
    for name in [
        "",
        "-a",
        "a-",
        "A",
        "a.b",
        "a_b",
        "a/b",
        "ä",
        &"x".repeat(64),
    ] {
        assert!(!is_node_name(name), "{name}");
    }
}

#[test]
fn keys_are_made_and_loaded_and_closed_to_other_users() {
    let scratch = Scratch::new("made");
    let directory = scratch.0.join("keys");
    let made = init(&directory, "a").unwrap();
    assert_eq!(made.directory, directory.join("a"));
    let other = issue(&directory, "b", usual_validity()).unwrap();
    assert_eq!(other.cluster, made.cluster);
    for (path, expected) in [
        ("", 0o700),
        (AUTHORITY_KEY, 0o600),
        ("a", 0o700),
        ("a/node.key", 0o600),
    ] {
        assert_eq!(mode(&directory.join(path)), expected, "{path}");
    }
    for node in ["a", "b"] {
        let keys = load(&directory.join(node)).unwrap();
        assert_eq!((keys.cluster, &*keys.node), (made.cluster, node));
    }
    // RFC 9562, version 4.
    assert_eq!((made.cluster[6] >> 4, made.cluster[8] >> 6), (4, 2));
    assert_eq!(parse(&show_identity(&made.cluster)), Some(made.cluster));
    assert_eq!(parse("3"), None);
}

#[test]
fn nothing_is_overwritten_and_nothing_half_made_is_left() {
    let scratch = Scratch::new("overwritten");
    let directory = scratch.0.join("keys");
    init(&directory, "a").unwrap();
    let before = fs::read(directory.join(AUTHORITY_KEY)).unwrap();
    assert!(sentence(init(&directory, "b")).contains("exists already"));
    assert!(sentence(issue(&directory, "a", usual_validity())).contains("exists already"));
    assert_eq!(fs::read(directory.join(AUTHORITY_KEY)).unwrap(), before);
    for name in ["A", "../x", "", "a.b"] {
        assert!(sentence(issue(&directory, name, usual_validity())).contains("node's name"));
        assert!(sentence(init(&scratch.0.join("other"), name)).contains("node's name"));
    }
    assert!(!scratch.0.join("other").exists());
    assert!(sentence(init(&scratch.0.join("no/keys"), "a")).contains("cannot make"));
    let without = sentence(issue(&scratch.0, "b", usual_validity()));
    assert!(
        without.contains("is missing; make keys with `tako keys`"),
        "{without}"
    );
    fs::write(directory.join(AUTHORITY_KEY), "no key").unwrap();
    assert!(sentence(issue(&directory, "c", usual_validity())).contains("contains no key"));
    // No node accepts signatures of another cluster's authority.
    init(&scratch.0.join("others"), "a").unwrap();
    let strange = fs::read(scratch.0.join("others").join(AUTHORITY_KEY)).unwrap();
    fs::write(directory.join(AUTHORITY_KEY), strange).unwrap();
    assert!(sentence(issue(&directory, "c", usual_validity())).contains("is not the key of"));
    assert!(!directory.join("c").exists());
}

#[test]
fn keys_that_are_not_right_are_refused_in_one_sentence() {
    let scratch = Scratch::new("refused");
    let directory = scratch.0.join("keys");
    let others = scratch.0.join("others");
    let node = init(&directory, "a").unwrap().directory;
    init(&others, "a").unwrap();
    let now = SystemTime::now();
    let old = issue(&directory, "old", now - 4 * DAY..now - 3 * DAY - DAY / 2).unwrap();
    assert!(sentence(load(&old.directory)).contains("expired 3 days ago"));
    let early = issue(&directory, "early", now + DAY..now + 2 * DAY).unwrap();
    assert!(sentence(load(&early.directory)).contains("not valid yet; check the clock"));

    let key = node.join(NODE_KEY);
    for open in [0o640, 0o604, 0o644] {
        fs::set_permissions(&key, fs::Permissions::from_mode(open)).unwrap();
        let sentence = sentence(load(&node));
        assert!(
            sentence.contains(&format!("(mode {open:04o}); run `chmod 600`")),
            "{sentence}"
        );
    }
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(&key, Some(65534), None).expect("run the tests as root");
    assert!(sentence(load(&node)).contains("belongs to user 65534"));
    std::os::unix::fs::chown(&key, Some(0), None).unwrap();
    load(&node).unwrap();

    // One file of another place, one that is something else, one that is not there.
    for (name, strange) in [
        (AUTHORITY, "was not issued by"),
        (NODE, "was not issued by"),
        (NODE_KEY, "is not the key of"),
    ] {
        let path = node.join(name);
        let right = fs::read(&path).unwrap();
        fs::write(&path, fs::read(others.join("a").join(name)).unwrap()).unwrap();
        assert!(sentence(load(&node)).contains(strange), "{name}");
        fs::write(&path, "-----BEGIN NONSENSE-----").unwrap();
        assert!(sentence(load(&node)).contains("contains no"), "{name}");
        fs::remove_file(&path).unwrap();
        assert!(sentence(load(&node)).contains("is missing"), "{name}");
        symlink("/", &path).unwrap();
        let sentence = sentence(load(&node));
        let no_file = sentence.contains("cannot read") || sentence.contains("used by others");
        assert!(no_file, "{sentence}");
        fs::remove_file(&path).unwrap();
        write_bytes(&path, &right).unwrap();
    }
    // An authority is no node.
    fs::write(node.join(NODE), fs::read(node.join(AUTHORITY)).unwrap()).unwrap();
    assert!(sentence(load(&node)).contains("contains no node's certificate"));
}

#[test]
fn revocations_reach_present_and_later_nodes() {
    let scratch = Scratch::new("revoked");
    let directory = scratch.0.join("keys");
    init(&directory, "a").unwrap();
    issue(&directory, "b", usual_validity()).unwrap();
    let unknown = sentence(revoke(&directory, "c"));
    assert!(
        unknown.contains("no certificate for 'c'; check the node's name"),
        "{unknown}"
    );
    assert!(!directory.join(REVOKED).exists());
    // The node has its keys, and this directory has them no more.
    let gone = scratch.0.join("b");
    fs::rename(directory.join("b"), &gone).unwrap();
    let expected = Revoked {
        list: directory.join(REVOKED),
        certificates: 1,
    };
    for _ in 0..2 {
        assert_eq!(revoke(&directory, "b").unwrap(), expected);
    }
    let other = issue(&directory, "b", usual_validity()).unwrap().directory;
    for node in [directory.join("a"), other.clone()] {
        assert!(load(&node).unwrap().revoked.is_some());
    }
    assert!(load(&gone).unwrap().revoked.is_none());
    fs::copy(directory.join(REVOKED), gone.join(REVOKED)).unwrap();
    assert!(sentence(load(&gone)).contains("was revoked; issue another with `tako keys issue`"));
    assert_eq!(revoke(&directory, "b").unwrap().certificates, 2);
    assert!(sentence(load(&other)).contains("was revoked"));

    // A revoked node would be admitted again.
    let journal = directory.join("issued.txt");
    let whole = fs::read_to_string(&journal).unwrap();
    fs::write(&journal, "").unwrap();
    assert!(sentence(revoke(&directory, "a")).contains("issued.txt contains no list of all"));
    fs::write(&journal, whole).unwrap();
    let (list, garbage) = (directory.join(REVOKED), "no list");
    let signed = fs::read(&list).unwrap();
    fs::write(&list, garbage).unwrap();
    assert!(sentence(revoke(&directory, "a")).contains("revoked.pem contains no list of revoked"));
    fs::write(&list, signed).unwrap();
    revoke(&directory, "a").unwrap();

    // The list of another cluster has no effect here; nor does a changed one.
    let others = scratch.0.join("others");
    init(&others, "a").unwrap();
    revoke(&others, "a").unwrap();
    let list = directory.join("a").join(REVOKED);
    fs::copy(others.join(REVOKED), &list).unwrap();
    assert!(sentence(load(&directory.join("a"))).contains("contains no list of the cluster's"));
    fs::write(directory.join("issued.txt"), "issued 12 a\nissued 13").unwrap();
    let torn = sentence(revoke(&directory, "a"));
    assert!(
        torn.contains("issued.txt ends in an incomplete line"),
        "{torn}"
    );
    fs::write(directory.join("issued.txt"), "issued 12 a\nnonsense\n").unwrap();
    let sentence = sentence(revoke(&directory, "a"));
    assert!(
        sentence.contains("issued.txt contains no list of what was issued"),
        "{sentence}"
    );
}
