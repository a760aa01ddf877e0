//! Inodes: those in use, their trees of extents, attributes, flags, extended attributes and access control lists.

pub(crate) mod acl;
pub(crate) mod attributes;
pub(crate) mod extents;
pub(crate) mod flags;
pub(crate) mod live;
pub(crate) mod reclaim;
pub(crate) mod tree;
pub(crate) mod xattr;
