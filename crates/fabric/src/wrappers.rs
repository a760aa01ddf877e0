//! Transports around transports, for tests and for observation: layers above and below are unaffected.

mod delay;
mod fault;
mod trace;

pub use delay::Delay;
pub use fault::{Fault, Faults};
pub use trace::{Trace, Traced};

/// The calls that a wrapper passes on as they are.
macro_rules! pass_on {
    () => {
        fn capabilities(&self) -> &crate::Capabilities {
            self.inner.capabilities()
        }
        fn prepare(
            &mut self,
            endpoint: crate::EndpointId,
            limits: crate::Limits,
        ) -> Result<crate::Parameters, crate::Error> {
            self.inner.prepare(endpoint, limits)
        }
        fn establish(
            &mut self,
            endpoint: crate::EndpointId,
            role: crate::Role,
            peer: crate::Peer,
        ) -> Result<(), crate::Error> {
            self.inner.establish(endpoint, role, peer)
        }
        fn export(
            &mut self,
            endpoint: crate::EndpointId,
            registration: &crate::Registration,
        ) -> Result<crate::Export, crate::Error> {
            self.inner.export(endpoint, registration)
        }
        fn import(
            &mut self,
            endpoint: crate::EndpointId,
            export: crate::Export,
        ) -> Result<u32, crate::Error> {
            self.inner.import(endpoint, export)
        }
        fn supply(&mut self, buffer: crate::Supply, piece: crate::Piece<'_>) {
            self.inner.supply(buffer, piece);
        }
        fn submit(&mut self) {
            self.inner.submit();
        }
        fn descriptors(&self) -> Vec<std::os::fd::BorrowedFd<'_>> {
            self.inner.descriptors()
        }
        fn disarm(&mut self, ready: bool) {
            self.inner.disarm(ready);
        }
        fn join(
            &mut self,
            group: crate::GroupId,
            address: crate::GroupAddress,
        ) -> Result<u32, crate::Error> {
            self.inner.join(group, address)
        }
        fn leave(&mut self, group: crate::GroupId) {
            self.inner.leave(group);
        }
        fn send_to_group(
            &mut self,
            group: crate::GroupId,
            from: crate::Source<'_>,
            immediate: u32,
        ) {
            self.inner.send_to_group(group, from, immediate);
        }
    };
}
use pass_on;
