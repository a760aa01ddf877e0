//! A node in the same process: requests to it are calls.

use std::sync::Arc;
use std::time::Duration;

use connections::messenger::Handle;
use operations::FileId;
use protocol::NodeId;
use protocol::wire::Message;

/// How long the calling thread works for the node before it blocks. Replicas on the same host have answered by then.
const DRIVE: Duration = Duration::from_micros(200);

/// A node in this process.
pub trait Inside: Send + Sync {
    /// Returns the number of the node.
    fn node(&self) -> NodeId;
    /// The client that enters it from now on, and what wakes that client.
    fn attach(&self, client: NodeId, wake: Handle);
    /// Reads from a file at an offset on this thread, if the node is the primary and needs no message for it. Returns the
    /// bytes read.
    fn read(
        &self,
        session: u64,
        at: (FileId, u64),
        into: &mut [u8],
        note_read: bool,
    ) -> Option<usize>;
    /// Whether it has messages for the client.
    fn has_messages(&self) -> bool;
    /// Gives it messages, and takes those for the client. Returns whether the node is there.
    fn send(&self, messages: &mut Vec<Message>, replies: &mut Vec<Message>) -> bool;
    /// Does the node's work until there is a message for the client or `is_over`, so long at most.
    fn drive(&self, most: Duration, is_over: &dyn Fn() -> bool, replies: &mut Vec<Message>)
    -> bool;
}

/// The way to a node in this process, as a connection has it.
pub struct Entry {
    inside: Arc<dyn Inside>,
    /// Messages for the node.
    messages: Vec<Message>,
    handle: Handle,
}

impl Entry {
    /// The client with this number enters the node from now on.
    pub fn new(inside: Arc<dyn Inside>, client: NodeId, handle: Handle) -> Entry {
        inside.attach(client, handle.clone());
        Entry {
            inside,
            messages: Vec::new(),
            handle,
        }
    }

    /// Returns the identity of the node that shares this process.
    pub fn node(&self) -> NodeId {
        self.inside.node()
    }

    /// Keeps a message for the node until [`Entry::exchange`].
    pub fn put(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Gives the node what there is for it. Returns its messages.
    pub fn exchange(&mut self) -> Vec<Message> {
        let mut replies = Vec::new();
        if !self.messages.is_empty() || self.inside.has_messages() {
            self.inside.send(&mut self.messages, &mut replies);
            // A node that has ended gets nothing: then another one is asked.
            self.messages.clear();
        }
        replies
    }

    /// Works for the node until it has a message for this client, or another thread calls.
    pub fn drive(&mut self) -> Vec<Message> {
        let mut replies = Vec::new();
        let is_over = || self.handle.is_called();
        self.inside.drive(DRIVE, &is_over, &mut replies);
        replies
    }
}
