//! Temporary.
use std::sync::Arc;
use store::{Node, Store, WriteAt};
pub struct Rider<'a> { pub node: &'a Arc<Node>, pub offset: u64, pub bytes: [u8; 64], pub inode_at: Option<usize> }
pub trait Shim { fn system(&self) -> Arc<Node>; fn with_rider<T>(&self, rider: Rider<'_>, f: impl FnOnce() -> T) -> (T, bool); }
impl Shim for Store {
    fn system(&self) -> Arc<Node> { self.root() }
    fn with_rider<T>(&self, rider: Rider<'_>, f: impl FnOnce() -> T) -> (T, bool) {
        let before = self.tail().number;
        let out = f();
        let done = self.tail().number > before;
        if done { let _ = self.write(rider.node, WriteAt::Offset(rider.offset), &rider.bytes); let _ = rider.inode_at; }
        (out, done)
    }
}
