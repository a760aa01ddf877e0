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
        fn capabilities(&self) -> &fabric::Capabilities {
            self.inner.capabilities()
        }
        fn prepare(
            &mut self,
            endpoint: fabric::EndpointId,
            limits: fabric::Limits,
        ) -> Result<fabric::Parameters, fabric::Error> {
            self.inner.prepare(endpoint, limits)
        }
        fn establish(
            &mut self,
            endpoint: fabric::EndpointId,
            role: fabric::Role,
            peer: fabric::Peer,
        ) -> Result<(), fabric::Error> {
            self.inner.establish(endpoint, role, peer)
        }
        fn export(
            &mut self,
            endpoint: fabric::EndpointId,
            registration: &fabric::Registration,
        ) -> Result<fabric::Export, fabric::Error> {
            self.inner.export(endpoint, registration)
        }
        fn import(
            &mut self,
            endpoint: fabric::EndpointId,
            export: fabric::Export,
        ) -> Result<u32, fabric::Error> {
            self.inner.import(endpoint, export)
        }
        fn supply(&mut self, buffer: fabric::Supply, piece: fabric::Piece<'_>) {
            self.inner.supply(buffer, piece);
        }
        fn load(
            &mut self,
            endpoint: fabric::EndpointId,
            from: fabric::Remote,
            take: &mut dyn FnMut(&pmem::Region, u64),
        ) -> bool {
            self.inner.load(endpoint, from, take)
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
            group: fabric::GroupId,
            address: fabric::GroupAddress,
        ) -> Result<u32, fabric::Error> {
            self.inner.join(group, address)
        }
        fn leave(&mut self, group: fabric::GroupId) {
            self.inner.leave(group);
        }
        fn send_to_group(
            &mut self,
            group: fabric::GroupId,
            from: fabric::Source<'_>,
            immediate: u32,
        ) {
            self.inner.send_to_group(group, from, immediate);
        }
    };
}
use pass_on;
