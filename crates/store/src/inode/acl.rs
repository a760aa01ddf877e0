//! POSIX access control lists: permissions beyond owner, group and others.
//!
//! A list is stored as the extended attribute that Linux defines. Its entries for owner, others and the mask (without a
//! mask, the group) are the mode too: a change of one changes the other. A list equivalent to a mode is not stored.

use crate::FileKind;
use crate::error::{Error, Result};
use crate::format::inode::KIND_MASK;
use crate::inode::xattr::Xattrs;

/// The attribute with the list that counts for a file.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with the list that files created in a directory get.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// First bytes of the attribute.
const VERSION: u32 = 2;
/// Bytes of the version, and of an entry: tag, permissions, number of a user or group.
const HEADER: usize = 4;
const ENTRY: usize = 8;

/// In place of a number: the entry names no user or group.
const NOBODY: u32 = u32::MAX;

const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

/// The bits of a mode that a list contains too.
const LISTED: u32 = 0o777;

/// Entry of an access control list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    permissions: u16,
    /// The user or group of an entry that names one, else [`NOBODY`].
    number: u32,
}

/// A list with complete entries in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl(Vec<Entry>);

impl Acl {
    /// The list in an attribute's value, if it is one.
    pub fn parse(value: &[u8]) -> Option<Acl> {
        let (version, entries) = value.split_first_chunk::<HEADER>()?;
        let (entries, rest) = entries.as_chunks::<ENTRY>();
        if u32::from_le_bytes(*version) != VERSION || !rest.is_empty() {
            return None;
        }
        let entry = |[a, b, c, d, number @ ..]: &[u8; ENTRY]| {
            let tag = u16::from_le_bytes([*a, *b]);
            Entry {
                tag,
                permissions: u16::from_le_bytes([*c, *d]),
                number: match tag {
                    USER | GROUP => u32::from_le_bytes(*number),
                    _ => NOBODY,
                },
            }
        };
        let acl = Acl(entries.iter().map(entry).collect());
        acl.is_complete().then_some(acl)
    }

    /// Whether there is each entry that there must be, once and in order, and a mask if users or groups are named.
    fn is_complete(&self) -> bool {
        let tags = || self.0.iter().map(|entry| entry.tag);
        let once = |tag| tags().filter(|own| *own == tag).count() == 1;
        let is_known = |tag| [OWNER, USER, OWNING_GROUP, GROUP, MASK, OTHERS].contains(&tag);
        tags().all(is_known)
            && tags().is_sorted()
            && [OWNER, OWNING_GROUP, OTHERS].into_iter().all(once)
            && (once(MASK) || self.is_mode())
            && self.0.iter().all(|entry| entry.permissions <= 0o7)
    }

    /// Whether it is equivalent to a mode.
    fn is_mode(&self) -> bool {
        let basic = [OWNER, OWNING_GROUP, OTHERS];
        self.0.iter().all(|entry| basic.contains(&entry.tag))
    }

    /// The entries that are the mode too, each with the place of its bits in it.
    fn of_mode(&mut self) -> impl Iterator<Item = (&mut Entry, u32)> {
        let group = if self.is_mode() { OWNING_GROUP } else { MASK };
        self.0.iter_mut().filter_map(move |entry| match entry.tag {
            OWNER => Some((entry, 6)),
            tag if tag == group => Some((entry, 3)),
            OTHERS => Some((entry, 0)),
            _ => None,
        })
    }

    /// The lowest nine bits of the mode.
    fn mode(&mut self) -> u32 {
        self.of_mode()
            .map(|(entry, place)| u32::from(entry.permissions) << place)
            .sum()
    }

    /// Sets its entries from the mode.
    fn set_mode(&mut self, mode: u32) {
        for (entry, place) in self.of_mode() {
            entry.permissions = (mode >> place & 0o7) as u16;
        }
    }

    /// Returns the value of the extended attribute that holds the list.
    fn value(&self) -> Vec<u8> {
        let entry = |entry: &Entry| {
            let (tag, permissions) = (entry.tag.to_le_bytes(), entry.permissions.to_le_bytes());
            [&tag[..], &permissions, &entry.number.to_le_bytes()].concat()
        };
        let entries = self.0.iter().flat_map(entry);
        VERSION.to_le_bytes().into_iter().chain(entries).collect()
    }
}

/// Whether an attribute of this name is a list.
pub(crate) fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// Effect of setting a list: the value to store, if any, and the new mode.
pub(crate) fn set(name: &[u8], value: &[u8], mode: u32) -> Result<(Option<Vec<u8>>, u32)> {
    if name == DEFAULT && FileKind::from_bits(mode) != Some(FileKind::Directory) {
        return Err(Error::NoDefaultAcl);
    }
    // No entries: as if it were taken away.
    if value == VERSION.to_le_bytes() {
        return Ok((None, mode));
    }
    let Some(mut acl) = Acl::parse(value) else {
        return Err(Error::InvalidArgument(
            "an access control list has version 2, each entry once and in order, and a mask if it names somebody",
        ));
    };
    if name == DEFAULT {
        return Ok((Some(acl.value()), mode));
    }
    let kept = (!acl.is_mode()).then(|| acl.value());
    Ok((kept, mode & !LISTED | acl.mode()))
}

/// Makes the list that counts, if there is one, follow a new mode. True if it changed.
pub(crate) fn follow_mode(all: &mut Xattrs, mode: u32) -> bool {
    let Some((_, value)) = all.iter_mut().find(|(name, _)| name == ACCESS) else {
        return false;
    };
    let Some(mut acl) = Acl::parse(value) else {
        return false;
    };
    acl.set_mode(mode);
    let new = acl.value();
    let is_new = *value != new;
    *value = new;
    is_new
}

/// Makes the lists among an inode's attributes, and its mode, valid: each a list, where one can be, and the mode equal
/// to its entries. Where the two differ only the permissions of both remain. Returns the mode, and the errors found.
pub(crate) fn settle(all: &mut Xattrs, mode: u32) -> (u32, Option<&'static str>) {
    let kind = FileKind::from_bits(mode);
    let (mut permissions, mut wrong) = (mode & LISTED, None);
    all.retain_mut(|(name, value)| {
        if !is_acl(name) {
            return true;
        }
        let is_possible = match kind {
            Some(FileKind::Directory) => true,
            Some(FileKind::Symlink) => false,
            _ => name == ACCESS,
        };
        let Some(mut acl) = Acl::parse(value).filter(|_| is_possible) else {
            wrong = Some("an attribute of the name of an access control list is none");
            return false;
        };
        if name == ACCESS {
            permissions &= acl.mode();
            acl.set_mode(permissions);
        }
        let settled = acl.value();
        if *value != settled || permissions != mode & LISTED {
            wrong = Some("the access control list does not say what the mode says");
        }
        *value = settled;
        true
    });
    (mode & !LISTED | permissions, wrong)
}

/// The mode and lists of a new file by its directory's default list: the remaining bits of the requested mode, and
/// lists. `None` without such a list; the error is for an invalid one.
pub(crate) fn inherit(
    directory: &Xattrs,
    mode: u32,
    damaged: Error,
) -> Result<Option<(u32, Xattrs)>> {
    let Some((_, value)) = directory.iter().find(|(name, _)| name == DEFAULT) else {
        return Ok(None);
    };
    let mut acl = Acl::parse(value).ok_or(damaged)?;
    let permissions = acl.mode() & mode;
    acl.set_mode(permissions);
    let mut lists = Xattrs::new();
    if !acl.is_mode() {
        lists.push((ACCESS.to_vec(), acl.value()));
    }
    if mode & KIND_MASK == FileKind::Directory.bits() {
        lists.push((DEFAULT.to_vec(), value.clone()));
    }
    Ok(Some((mode & !LISTED | permissions, lists)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entry = |(tag, permissions, number): &(u16, u16, u32)| Entry {
            tag: *tag,
            permissions: *permissions,
            number: *number,
        };
        Acl(entries.iter().map(entry).collect()).value()
    }

    #[test]
    fn only_complete_lists_are_lists() {
        let basic = [
            (OWNER, 6, NOBODY),
            (OWNING_GROUP, 4, NOBODY),
            (OTHERS, 0, NOBODY),
        ];
        let named = [
            basic[0],
            (USER, 7, 5),
            (USER, 0, 3),
            basic[1],
            (GROUP, 1, 9),
            (MASK, 5, NOBODY),
            basic[2],
        ];
        for right in [&basic[..], &named] {
            assert_eq!(
                Acl::parse(&value(right)).expect("a list").value(),
                value(right)
            );
        }
        for left_out in [0, 3, 5, 6] {
            let mut wrong = named.to_vec();
            wrong.remove(left_out);
            assert_eq!(Acl::parse(&value(&wrong)), None, "without {left_out}");
        }
        for twice in [0, 3, 5, 6] {
            let mut wrong = named.to_vec();
            wrong.insert(twice, named[twice]);
            assert_eq!(Acl::parse(&value(&wrong)), None, "twice {twice}");
        }
        let mut unsorted = named;
        unsorted.swap(2, 3);
        let too_much = [(OWNER, 8, NOBODY), basic[1], basic[2]];
        let unknown = [basic[0], basic[1], basic[2], (0x40, 0, NOBODY)];
        for wrong in [&unsorted[..], &too_much, &unknown, &[]] {
            assert_eq!(Acl::parse(&value(wrong)), None, "{wrong:?}");
        }
        let mut bytes = value(&basic);
        bytes.push(0);
        assert_eq!(Acl::parse(&bytes), None);
        bytes.truncate(3);
        assert_eq!(Acl::parse(&bytes), None);
        bytes = value(&basic);
        bytes[0] = 1;
        assert_eq!(Acl::parse(&bytes), None);
    }

    #[test]
    fn the_mode_is_owner_mask_and_others() {
        let named = [
            (OWNER, 6, NOBODY),
            (USER, 7, 5),
            (OWNING_GROUP, 4, NOBODY),
            (MASK, 5, NOBODY),
            (OTHERS, 1, NOBODY),
        ];
        let mut acl = Acl::parse(&value(&named)).expect("a list");
        assert_eq!(acl.mode(), 0o651);
        acl.set_mode(0o720);
        let expected = [
            (OWNER, 7, NOBODY),
            (USER, 7, 5),
            (OWNING_GROUP, 4, NOBODY),
            (MASK, 2, NOBODY),
            (OTHERS, 0, NOBODY),
        ];
        assert_eq!(acl.value(), value(&expected));
        let own = |name: &[u8], entries| vec![(name.to_vec(), value(entries))];
        let mut right = own(ACCESS, &named[..]);
        assert_eq!(settle(&mut right, 0o100_651), (0o100_651, None));
        assert_eq!(right, own(ACCESS, &named));
        let (mode, wrong) = settle(&mut right, 0o102_726);
        assert_eq!((mode, wrong.is_some()), (0o102_600, true));
        let least = [
            named[0],
            named[1],
            named[2],
            (MASK, 0, NOBODY),
            (OTHERS, 0, NOBODY),
        ];
        assert_eq!(right, own(ACCESS, &least));
        let (mode, wrong) = settle(&mut own(DEFAULT, &named), 0o100_644);
        assert_eq!((mode, wrong.is_some()), (0o100_644, true));
        assert_eq!(
            settle(&mut own(DEFAULT, &named), 0o040_700),
            (0o040_700, None)
        );
        assert_eq!(set(ACCESS, &value(&named[..1]), 0o100_644).ok(), None);
        let basic = value(&[named[0], named[2], named[4]]);
        assert_eq!(set(ACCESS, &basic, 0o102_777), Ok((None, 0o102_641)));
    }
}
