//! A whole file system at one moment, for comparison.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

use client::FileKind;

use crate::call::{Call, Errno, Facts, Outcome, System, facts_agree};

/// All that can be seen of a file system: an object for each path, the root's being empty.
#[derive(Clone, Debug, Default)]
pub struct Tree(BTreeMap<String, Object>);

/// The file at one path.
#[derive(Clone, Debug)]
struct Object {
    facts: Facts,
    /// The first path, in order, that leads to the same file.
    first: Option<Arc<str>>,
    /// A file's data or a symbolic link's target.
    bytes: Arc<Vec<u8>>,
}

impl PartialEq for Object {
    fn eq(&self, other: &Object) -> bool {
        self.first == other.first
            && facts_agree(&self.facts, &other.facts)
            && (Arc::ptr_eq(&self.bytes, &other.bytes) || self.bytes == other.bytes)
    }
}

impl PartialEq for Tree {
    fn eq(&self, other: &Tree) -> bool {
        self.0 == other.0
    }
}

/// Lines of a difference that are shown.
const LINES_MAX: usize = 12;

impl Tree {
    /// Adds what `path` leads to; `first` is the first path of a file that has several.
    pub(crate) fn add(
        &mut self,
        path: String,
        facts: Facts,
        first: Option<Arc<str>>,
        bytes: Arc<Vec<u8>>,
    ) {
        self.0.insert(
            path,
            Object {
                facts,
                first,
                bytes,
            },
        );
    }

    /// The same tree without the times, which depend on the order of threads.
    pub fn without_times(mut self) -> Tree {
        for object in self.0.values_mut() {
            object.facts.modified_ns = None;
        }
        self
    }

    /// How this tree, called `own`, differs from another; `None` when it does not.
    pub fn difference(&self, own: &str, other: &Tree, others: &str) -> Option<String> {
        let mut text = String::new();
        let paths: std::collections::BTreeSet<_> = self.0.keys().chain(other.0.keys()).collect();
        let mut lines = 0;
        for path in paths {
            let line = match (self.0.get(path), other.0.get(path)) {
                (Some(_), None) => format!("is only in {own}"),
                (None, Some(_)) => format!("is only in {others}"),
                (Some(one), Some(two)) if one != two => describe(one, own, two, others),
                _ => continue,
            };
            lines += 1;
            if lines <= LINES_MAX {
                let _ = writeln!(text, "  /{path} {line}");
            }
        }
        if lines > LINES_MAX {
            let _ = writeln!(text, "  … and {} more", lines - LINES_MAX);
        }
        (lines > 0).then_some(text)
    }
}

fn describe(one: &Object, own: &str, two: &Object, others: &str) -> String {
    if !facts_agree(&one.facts, &two.facts) {
        return format!("is {:?} in {own}, {:?} in {others}", one.facts, two.facts);
    }
    if one.first != two.first {
        return format!(
            "is the same file as {:?} in {own}, as {:?} in {others}",
            one.first, two.first
        );
    }
    let differing = |(one, two): (&u8, &u8)| one != two;
    let pairs = || one.bytes.iter().zip(two.bytes.iter());
    let at = pairs().position(differing).unwrap_or(0);
    let count = pairs().filter(|(one, two)| one != two).count();
    let show = |bytes: &[u8]| format!("{:02x?}", &bytes[at..bytes.len().min(at + 8)]);
    format!(
        "has {count} different bytes of {}, the first at {at}: {} in {own}, {} in {others}",
        one.bytes.len(),
        show(&one.bytes),
        show(&two.bytes)
    )
}

/// Reads a whole file system, through its own operations.
pub fn snapshot(system: &mut impl System) -> Result<Tree, String> {
    let mut reader = Reader {
        system,
        tree: Tree::default(),
        first: HashMap::new(),
    };
    reader.read(String::new(), None)?;
    Ok(reader.tree)
}

struct Reader<'a, S> {
    system: &'a mut S,
    tree: Tree,
    /// The first path of each file with several names, by number.
    first: HashMap<u64, Arc<str>>,
}

impl<S: System> Reader<'_, S> {
    fn ask(&mut self, operation: &Call) -> Result<Outcome, String> {
        let answer = self.system.apply(operation);
        answer.map_err(|error: Errno| format!("{operation:?} fails: {error:?}"))
    }

    /// Reads the file at `path`, with the kind that its directory lists.
    fn read(&mut self, path: String, listed: Option<FileKind>) -> Result<(), String> {
        let name = if path.is_empty() { "/" } else { &path }.to_string();
        let stat = Call::Stat { path: name.clone() };
        let Outcome::Facts(number, facts) = self.ask(&stat)? else {
            return Err(format!("{name}: no attributes"));
        };
        if listed.is_some_and(|kind| kind != facts.kind) {
            let kind = facts.kind;
            return Err(format!("{name} is listed as {listed:?} but is {kind:?}"));
        }
        let bytes = self.bytes(&name, &facts)?;
        let several = facts.kind != FileKind::Directory && facts.links > 1;
        let first = several.then(|| {
            let first = self.first.entry(number);
            first.or_insert_with(|| path.as_str().into()).clone()
        });
        let is_directory = facts.kind == FileKind::Directory;
        self.tree.add(path.clone(), facts, first, Arc::new(bytes));
        if is_directory {
            self.read_entries(&path, name)?;
        }
        Ok(())
    }

    fn read_entries(&mut self, path: &str, name: String) -> Result<(), String> {
        let Outcome::Names(names) = self.ask(&Call::List { path: name })? else {
            return Err(format!("{path}: no names"));
        };
        for (name, kind) in names {
            let below = if path.is_empty() {
                name
            } else {
                format!("{path}/{name}")
            };
            self.read(below, Some(kind))?;
        }
        Ok(())
    }

    fn bytes(&mut self, name: &str, facts: &Facts) -> Result<Vec<u8>, String> {
        let path = name.to_string();
        let operation = match facts.kind {
            FileKind::Regular => Call::Read {
                path,
                offset: 0,
                length: facts.size as usize + 1,
            },
            FileKind::Symlink => Call::ReadLink { path },
            _ => return Ok(Vec::new()),
        };
        match self.ask(&operation)? {
            Outcome::Bytes(bytes) if bytes.len() as u64 == facts.size => Ok(bytes),
            Outcome::Bytes(bytes) => Err(format!(
                "{name} has {} bytes of {}",
                bytes.len(),
                facts.size
            )),
            other => Err(format!("{name} reads as {other:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI64;

    use super::*;
    use crate::call::At;
    use crate::model::Model;

    #[test]
    fn a_difference_says_where_it_is() {
        let clock = Arc::new(AtomicI64::new(5));
        let mut model = Model::new(clock);
        let open = Call::Make {
            path: "a".into(),
            kind: FileKind::Regular,
            permissions: 0o600,
        };
        let write = |fill| Call::Write {
            path: "a".into(),
            at: At::Offset(0),
            length: 20,
            fill,
        };
        let empty = model.tree();
        let mut one = model.clone();
        for operation in [&open, &write(1)] {
            one.apply(operation).expect("the operation succeeds");
            model.apply(operation).expect("the operation succeeds");
        }
        assert_eq!(one.tree().difference("one", &model.tree(), "other"), None);
        assert_eq!(snapshot(&mut one).expect("it can be read"), model.tree());
        let missing = one.tree().difference("one", &empty, "other");
        assert!(missing.is_some_and(|text| text.contains("/a is only in one")));
        model.apply(&write(2)).expect("the operation succeeds");
        let changed = one.tree().difference("one", &model.tree(), "other");
        assert!(changed.is_some_and(|text| text.contains("/a has 20 different bytes of 20")));
    }
}
