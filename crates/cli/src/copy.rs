//! `tako cp` and `cat`.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use client::{Attributes, FileKind, ROOT, SetAttributes};

use crate::arguments::files::{Cp, Preserve};
use crate::change::{divide, mask, no_directory};
use crate::failure::{Failure, Outcome, each};
use crate::location::{Location, PoolPath, last_name};
use crate::pools::{self, Trees, Use};
use crate::progress::Copied;
use crate::sizes::kind_name;
use crate::tree::{FileHandle, Found, Tree, TreeError, is_directory, names};

/// Bytes that are moved at a time: the length that the store writes atomically.
const PIECE: usize = 1 << 20;
/// Access control lists are part of the permissions.
const LISTS: &[u8] = b"system.posix_acl_";

pub fn cat(places: &[PoolPath], out: &mut dyn Write) -> Outcome {
    let mut buffer = vec![0; PIECE];
    each(places, |place| {
        pools::with(place, Use::Read, |tree| {
            let mut reader = tree.open(&place.path)?;
            let mut offset = 0;
            while let Some((start, count)) = reader.read(offset, &mut buffer, false)? {
                out.write_all(&buffer[..count])?;
                offset = start + count as u64;
            }
            Ok(())
        })
    })
}

/// Parts to copy and to preserve.
#[derive(Clone, Copy)]
struct Wishes {
    recursive: bool,
    /// Whether symbolic links are followed, also below the sources.
    follow: bool,
    mode: bool,
    ownership: bool,
    timestamps: bool,
    links: bool,
    xattrs: bool,
    /// Whether a file system without extended attributes is an error.
    xattrs_required: bool,
    force: bool,
    no_clobber: bool,
    verbose: bool,
}

impl Wishes {
    fn of(arguments: &Cp) -> Wishes {
        let has = |wanted| {
            let all = [wanted, Preserve::All];
            arguments.archive || all.iter().any(|it| arguments.preserve.contains(it))
        };
        let basic = |wanted| arguments.preserve_basic || has(wanted);
        let recursive = arguments.recursive || arguments.archive;
        let as_links = arguments.no_dereference || arguments.no_dereference_links;
        Wishes {
            recursive,
            follow: arguments.dereference || !(recursive || as_links),
            mode: basic(Preserve::Mode),
            ownership: basic(Preserve::Ownership),
            timestamps: basic(Preserve::Timestamps),
            links: arguments.no_dereference_links || has(Preserve::Links),
            xattrs: has(Preserve::Xattr),
            xattrs_required: arguments.preserve.contains(&Preserve::Xattr),
            force: arguments.force,
            no_clobber: arguments.no_clobber,
            verbose: arguments.verbose,
        }
    }
}

pub fn cp(arguments: &Cp, out: &mut dyn Write) -> Outcome {
    let (from, to) = divide(&arguments.places, arguments.target_directory.as_ref())?;
    let trees = Trees::open(to, from)?;
    if trees.has_no_pool() {
        let sentence = "none of these paths is in a pool; write POOL:/path, or use cp";
        return Err(Failure::Usage(sentence.into()));
    }
    let outcome = copy_all(&trees, arguments, (from, to), out);
    outcome.and(trees.of(to).close())
}

fn copy_all(
    trees: &Trees,
    arguments: &Cp,
    (from, to): (&[Location], &Location),
    out: &mut dyn Write,
) -> Outcome {
    let target = trees.of(to);
    let found = target.look(to.path(), true)?;
    let into = found.is_some_and(|it| is_directory(&it)) && !arguments.no_target_directory;
    if (from.len() > 1 || arguments.target_directory.is_some()) && !into {
        return Err(no_directory(&target.show(to.path())));
    }
    let wishes = Wishes::of(arguments);
    let mut copier = Copier {
        wishes,
        mask: mask(),
        buffer: vec![0; PIECE],
        skipped: false,
        linked: HashMap::new(),
        progress: Copied::new(only_size(trees, from)?),
        out,
    };
    let outcome = each(from, |place| {
        let name = last_name(place.path()).filter(|_| into);
        let path = name.map_or(to.path().to_owned(), |name| to.path().join(name));
        let from = End {
            tree: trees.of(place),
            path: place.path().into(),
        };
        copier.copy(&from, &End { tree: target, path })
    });
    match copier.skipped {
        true => outcome.and(Err(Failure::Silent)),
        false => outcome,
    }
}

/// The size of the only source, if it is a file.
fn only_size(trees: &Trees, from: &[Location]) -> Result<Option<u64>, Failure> {
    let [place] = from else {
        return Ok(None);
    };
    let found = trees.of(place).look(place.path(), true)?;
    Ok(found
        .map(|found| found.attributes)
        .filter(|attributes| attributes.kind == FileKind::Regular && attributes.size > 0)
        .map(|attributes| attributes.size))
}

/// A path on its tree.
struct End<'a> {
    tree: &'a dyn Tree,
    path: PathBuf,
}

impl End<'_> {
    fn show(&self) -> String {
        self.tree.show(&self.path)
    }

    fn is_on_side_of(&self, other: &End<'_>) -> bool {
        std::ptr::addr_eq(self.tree, other.tree)
    }

    fn below(&self, name: &std::ffi::OsStr) -> End<'_> {
        End {
            tree: self.tree,
            path: self.path.join(name),
        }
    }

    fn failed(&self, error: &TreeError) -> Failure {
        error.at(self.show())
    }
}

struct Copier<'a> {
    wishes: Wishes,
    /// Permissions that new files do not get.
    mask: u32,
    buffer: Vec<u8>,
    /// Whether a file was left out, and reported.
    skipped: bool,
    /// Copies of files with several names, by the identity of the original.
    linked: HashMap<(u64, u64), PathBuf>,
    progress: Copied,
    out: &'a mut dyn Write,
}

impl Copier<'_> {
    fn copy(&mut self, from: &End<'_>, to: &End<'_>) -> Outcome {
        let found = from.tree.find(&from.path, self.wishes.follow)?;
        let attributes = found.attributes;
        if attributes.kind == FileKind::Directory {
            if !self.wishes.recursive {
                let sentence = format!("{}: this is a directory; add -r to copy it", from.show());
                return Err(Failure::Failed(sentence));
            }
            return self.copy_directory(from, &found, to);
        }
        let there = to.tree.look(&to.path, false)?;
        if self.wishes.no_clobber && there.is_some() {
            return Ok(());
        }
        if self.is_linked(from, &found, to, there.as_ref())? {
            return Ok(());
        }
        match attributes.kind {
            FileKind::Symlink => {
                self.make_way(to, there.as_ref())?;
                let target = from.tree.read_link(&found.handle);
                let target = target.map_err(|error| from.failed(&error))?;
                to.tree.make_symlink(path_of(&target), &to.path)?;
            }
            FileKind::Regular => self.copy_file(from, &found, to)?,
            // A single pipe of this host is read like a file: `tako cp <(command) POOL:/path`.
            _ if !self.wishes.recursive => self.copy_file(from, &found, to)?,
            special => {
                if !self.copy_special(from, &found, to, there.as_ref())? {
                    return self.skip(from, special);
                }
            }
        }
        self.keep(from, &found, to)?;
        self.report(from, to)
    }

    /// Reports a copy where that was asked for.
    fn report(&mut self, from: &End<'_>, to: &End<'_>) -> Outcome {
        if self.wishes.verbose {
            writeln!(self.out, "{} -> {}", from.show(), to.show())?;
        }
        Ok(())
    }

    /// Removes the file that a link or a special file replaces.
    fn make_way(&self, to: &End<'_>, there: Option<&Found>) -> Outcome {
        match there {
            Some(found) if !is_directory(found) => to.tree.remove_path(&to.path, false),
            _ => Ok(()),
        }
    }

    /// Whether the file was copied under another name already, and is now a link to that copy.
    fn is_linked(
        &mut self,
        from: &End<'_>,
        found: &Found,
        to: &End<'_>,
        there: Option<&Found>,
    ) -> Result<bool, Failure> {
        if !self.wishes.links || found.attributes.links < 2 {
            return Ok(false);
        }
        let Some(first) = self.linked.get(&found.identity).cloned() else {
            self.linked.insert(found.identity, to.path.clone());
            return Ok(false);
        };
        let copied = to.tree.find(&first, false)?;
        if there.is_some_and(|there| there.identity == copied.identity) {
            return Ok(true);
        }
        self.make_way(to, there)?;
        to.tree.link(&first, &to.path)?;
        self.report(from, to)?;
        Ok(true)
    }

    fn skip(&mut self, from: &End<'_>, kind: FileKind) -> Outcome {
        let kind = kind_name(kind);
        // Standard error is the only place for the report.
        let _ = writeln!(
            std::io::stderr(),
            "tako: {} was left out: it is a {kind}; add -a to copy it",
            from.show()
        );
        self.skipped = true;
        Ok(())
    }

    /// Copies a pipe, a socket or a device as such, where all is to be preserved.
    fn copy_special(
        &self,
        from: &End<'_>,
        found: &Found,
        to: &End<'_>,
        there: Option<&Found>,
    ) -> Result<bool, Failure> {
        if !self.wishes.mode || from.is_on_side_of(to) && there.is_some() {
            return Ok(false);
        }
        self.make_way(to, there)?;
        let attributes = &found.attributes;
        let permissions = attributes.permissions & !self.mask;
        to.tree.make_special(&to.path, attributes, permissions)?;
        Ok(true)
    }

    fn copy_directory(&mut self, from: &End<'_>, found: &Found, to: &End<'_>) -> Outcome {
        let permissions = found.attributes.permissions & 0o777 & !self.mask;
        let is_new = match to.tree.look(&to.path, true)? {
            Some(there) if is_directory(&there) => false,
            Some(_) => {
                let sentence = format!("{}: a file is where a directory is to go", to.show());
                return Err(Failure::Failed(format!("{sentence}; remove it first")));
            }
            // Its owner must be able to fill it.
            None => to
                .tree
                .make_directory(&to.path, permissions | 0o700)
                .map(|()| true)?,
        };
        if lies_inside(to, from, found)? {
            let sentence = format!("{} cannot be copied into itself", from.show());
            return Err(Failure::Failed(format!(
                "{sentence}; choose another target than {}",
                to.show()
            )));
        }
        for name in names(from.tree, found, &from.show())? {
            self.copy(&from.below(&name), &to.below(&name))?;
        }
        if is_new && permissions & 0o700 != 0o700 && !self.wishes.mode {
            let copy = to.tree.find(&to.path, true)?;
            let change = SetAttributes {
                permissions: Some(permissions),
                ..SetAttributes::default()
            };
            let changed = to.tree.change(&copy.handle, &change);
            changed.map_err(|error| to.failed(&error))?;
        }
        self.keep(from, found, to)?;
        self.report(from, to)
    }

    fn copy_file(&mut self, from: &End<'_>, found: &Found, to: &End<'_>) -> Outcome {
        let there = to.tree.look(&to.path, true)?;
        if is_same_file(from, found, to, there.as_ref()) {
            let sentence = format!(
                "{} and {} are one file; choose another target",
                from.show(),
                to.show()
            );
            return Err(Failure::Failed(sentence));
        }
        let mut reader = from.tree.open(&from.path)?;
        let permissions = found.attributes.permissions & 0o777 & !self.mask;
        let mut writer = match to.tree.create(&to.path, permissions) {
            Err(_) if self.wishes.force && there.is_some_and(|it| !is_directory(&it)) => {
                to.tree.remove_path(&to.path, false)?;
                to.tree.create(&to.path, permissions)?
            }
            result => result?,
        };
        let name = last_name(&from.path).unwrap_or_default();
        let name = crate::sizes::show_name(name.as_encoded_bytes());
        let mut end = 0;
        while let Some((start, count)) = reader.read(end, &mut self.buffer, writer.has_holes())? {
            writer.write(start, &self.buffer[..count])?;
            self.progress.add(start + count as u64 - end, &name);
            end = start + count as u64;
        }
        match reader.size().filter(|size| *size > end) {
            Some(size) => writer.set_size(size),
            None => Ok(()),
        }
    }

    /// Gives a copy those attributes of the original that are to be preserved.
    fn keep(&self, from: &End<'_>, found: &Found, to: &End<'_>) -> Outcome {
        let Wishes {
            mode,
            ownership,
            timestamps,
            xattrs,
            ..
        } = self.wishes;
        if !(mode || ownership || timestamps || xattrs) {
            return Ok(());
        }
        let copy = to.tree.find(&to.path, is_directory(found))?.handle;
        let failed = |error: TreeError| to.failed(&error);
        let attributes = &found.attributes;
        if ownership {
            self.keep_owner(attributes, to, &copy)?;
        }
        if mode && attributes.kind != FileKind::Symlink {
            let change = SetAttributes {
                permissions: Some(attributes.permissions),
                ..SetAttributes::default()
            };
            to.tree.change(&copy, &change).map_err(failed)?;
        }
        if mode || xattrs {
            self.keep_xattrs(from, found, to, &copy)?;
        }
        if timestamps {
            let change = SetAttributes {
                accessed_ns: Some(attributes.accessed_ns),
                modified_ns: Some(attributes.modified_ns),
                ..SetAttributes::default()
            };
            to.tree.change(&copy, &change).map_err(failed)?;
        }
        Ok(())
    }

    /// Gives a copy its original's owner. As with cp(1), a user other than root goes without.
    fn keep_owner(&self, attributes: &Attributes, to: &End<'_>, copy: &FileHandle) -> Outcome {
        let change = SetAttributes {
            uid: Some(attributes.uid),
            gid: Some(attributes.gid),
            ..SetAttributes::default()
        };
        match to.tree.change(copy, &change) {
            Err(error) if !error.is_refused() => Err(to.failed(&error)),
            _ => Ok(()),
        }
    }

    fn keep_xattrs(
        &self,
        from: &End<'_>,
        found: &Found,
        to: &End<'_>,
        copy: &FileHandle,
    ) -> Outcome {
        let Wishes {
            mode,
            xattrs,
            xattrs_required,
            ..
        } = self.wishes;
        let is_passable =
            |error: &TreeError| !xattrs_required && (error.is_unsupported() || error.is_refused());
        let all = match from.tree.xattrs(&found.handle) {
            Err(error) if is_passable(&error) => return Ok(()),
            all => all.map_err(|error| from.failed(&error))?,
        };
        for (name, value) in all {
            let wanted = if name.starts_with(LISTS) {
                mode
            } else {
                xattrs
            };
            if !wanted {
                continue;
            }
            match to.tree.set_xattr(copy, &name, &value) {
                Err(error) if is_passable(&error) => {}
                set => set.map_err(|error| to.failed(&error))?,
            }
        }
        Ok(())
    }
}

fn path_of(bytes: &[u8]) -> &Path {
    use std::os::unix::ffi::OsStrExt;
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

fn is_same_file(from: &End<'_>, found: &Found, to: &End<'_>, there: Option<&Found>) -> bool {
    let are_on_host = from.tree.real(&from.path).is_some() && to.tree.real(&to.path).is_some();
    (from.is_on_side_of(to) || are_on_host)
        && there.is_some_and(|there| there.identity == found.identity)
}

/// Whether the directory `inner` is the directory `outer` or lies below it.
fn lies_inside(inner: &End<'_>, outer: &End<'_>, found: &Found) -> Result<bool, Failure> {
    if let (Some(inner), Some(outer)) = (inner.tree.real(&inner.path), outer.tree.real(&outer.path))
    {
        let absolute = |path: PathBuf| path.canonicalize().unwrap_or(path);
        return Ok(absolute(inner).starts_with(absolute(outer)));
    }
    if !inner.is_on_side_of(outer) {
        return Ok(false);
    }
    let mut path = inner.path.clone();
    while let Some(above) = inner.tree.look(&path, true)? {
        if above.identity == found.identity {
            return Ok(true);
        }
        if above.attributes.number == ROOT {
            break;
        }
        path.push("..");
    }
    Ok(false)
}
