//! The commonest changes of directories: one name comes, goes or becomes another, in leaves that neither overflow nor
//! become empty, and with it, mostly, the inode that it leads to.
//!
//! They are [`crate::change::Change`]s like any other, one record, committed and then applied; only that at most four
//! operations, known from the start, need no collecting.

use zerocopy::IntoBytes;

use crate::change::Shared;
use crate::directory::Patch;
use crate::image::Image;
use crate::layout::group::Map;
use crate::layout::inode::{FIRST_LINE, INODE, Inode};
use crate::layout::record::{ALIGN, EDIT_MAX, HEADER, Kind, OPERATION, Operation, encode_at};

/// Longest record: two leaves and both inodes; or a leaf, both inodes and a word of a bitmap, which is shorter.
const RECORD_MAX: usize = HEADER + 4 * OPERATION + 2 * EDIT_MAX + FIRST_LINE + INODE;

/// What happens when one name comes, goes or becomes another.
pub struct OneName<'a> {
    /// What changes in the leaf where it is.
    pub patch: &'a Patch,
    /// What changes in the leaf where it was, if that is another.
    pub old_patch: Option<&'a Patch>,
    /// The directory, which differs in its first line only. Its checksum is right, as is that of the inode.
    pub directory: (u64, &'a Inode),
    /// The inode that the name leads to.
    pub file: (u64, &'a Inode),
    /// How many bytes of it (64, 128 or 256) may differ.
    pub file_length: usize,
    /// What the bit of that inode becomes in one of the bitmaps.
    pub bit: Option<(Map, bool)>,
}

impl Shared {
    /// Makes the change happen: persistent, then applied. Gives what `meanwhile` makes of the record's number: that is done
    /// while the fence is under way, for which the next locked instruction waits.
    pub fn one_name<T>(&self, change: &OneName<'_>, meanwhile: impl FnOnce(u64) -> T) -> T {
        let (image, ring, allocator) = (&self.image, &self.ring, &self.allocator);
        let leaf = change.patch.operation(image);
        let old_leaf = change.old_patch.map(|patch| patch.operation(image));
        let directory = inode_operation(image, change.directory, FIRST_LINE);
        let file = inode_operation(image, change.file, change.file_length);
        let mut record = [0; RECORD_MAX.next_multiple_of(ALIGN)];
        let mut end = HEADER;
        let operations = || [&leaf, &directory, &file].into_iter().chain(&old_leaf);
        for operation in operations() {
            end = encode_at(&mut record, end, operation);
        }
        let entered = ring.enter();
        let bit = change.bit.map(|(map, used)| {
            let (group, line) = allocator.set_inode_bit(image, map, change.file.0, used);
            end = encode_at(&mut record, end, &line.operation());
            (group, line)
        });
        let length = end.next_multiple_of(ALIGN);
        let record = &mut record[..length];
        let crc = ring.head(record, length);
        let place = ring.reserve(entered, length);
        // The place is taken while the group is locked: its line is right only in this order.
        let line = bit.map(|(_group, line)| line);
        let apply = || operations().for_each(|operation| image.apply(operation, place.number));
        let apply_line = || {
            let line = line.as_ref();
            line.map(|line| allocator.apply_line(image, line, place.number))
        };
        if self.defects.apply_before_commit {
            apply();
            drop(apply_line());
        }
        ring.commit(place, record, crc, image);
        apply();
        let made = meanwhile(place.number);
        let group = apply_line();
        if let (Some(mut group), Some((Map::Inodes, false))) = (group, change.bit) {
            // Its freeing is persistent, so the number may be used again.
            group.give_back_inode(allocator.inode_bit(change.file.0).1);
        }
        ring.applied(place);
        made
    }
}

fn inode_operation<'a>(
    image: &Image,
    (number, inode): (u64, &'a Inode),
    length: usize,
) -> Operation<'a> {
    Operation {
        kind: Kind::Inode,
        target: image.layout.inode(number),
        length: length as u32,
        crc: 0,
        touch: None,
        payload: &inode.as_bytes()[..length],
    }
}
