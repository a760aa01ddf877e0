//! One call, and what its thread waits for.

use std::time::Instant;

use connections::messenger::ReadTarget;
use operations::{Acknowledge, Operation, Outcome};
use parking_lot::{Condvar, Mutex};
use protocol::client::Ownership;

use crate::leases::{self, Kept};

/// Conditions of a request, beside its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terms {
    Plain,
    /// The write asks for the lease for writing.
    Owning,
    /// The same, and it counts in this session only.
    In(u64),
}

pub struct Call {
    pub terms: Terms,
    /// The inode of the file that it is about.
    pub inode: u64,
    /// Where the data of a read may land: from this offset on.
    target: Option<(ReadTarget, u64)>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// The request, until a leader takes it.
    request: Option<(Operation, Acknowledge)>,
    outcome: Option<Outcome>,
    ownership: Option<Ownership>,
    /// Validity of the outcome.
    kept: Option<Kept>,
    leads: bool,
    /// Its thread waits no longer.
    has_ended: bool,
    /// Data was requested into the memory.
    may_land: bool,
    has_landed: bool,
}

impl State {
    fn take(&mut self) -> Option<Outcome> {
        let outcome = self.outcome.take()?;
        leases::note(self.kept.take());
        Some(outcome)
    }
}

/// End of a wait.
pub enum Waited {
    Outcome(Outcome),
    /// The call is to lead.
    Leads,
    /// Its time has expired, or it was interrupted.
    Woken,
}

impl Call {
    pub fn new(operation: Operation, acknowledge: Acknowledge, terms: Terms) -> Call {
        Call {
            terms,
            inode: operation.file().map_or(0, |file| file.inode),
            target: None,
            state: Mutex::new(State {
                request: Some((operation, acknowledge)),
                outcome: None,
                ownership: None,
                kept: None,
                leads: false,
                has_ended: false,
                may_land: false,
                has_landed: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// A read with data that may land in memory, from this offset on.
    pub fn landing(operation: Operation, target: (ReadTarget, u64)) -> Call {
        let call = Call::new(operation, Acknowledge::Primary, Terms::Plain);
        Call {
            target: Some(target),
            ..call
        }
    }

    /// Whether it is a read with data that may land in memory.
    pub fn has_target(&self) -> bool {
        self.target.is_some()
    }

    /// The memory, for a transfer that begins now; none once the call has ended, so that nothing lands there later.
    pub fn begin_landing(&self) -> Option<(ReadTarget, u64)> {
        let mut state = self.state.lock();
        let target = self.target.clone().filter(|_| !state.has_ended);
        state.may_land |= target.is_some();
        target
    }

    /// Whether data may land although the call has ended without its outcome.
    pub fn may_land(&self) -> bool {
        self.state.lock().may_land
    }

    /// The data of the outcome that is delivered next has landed.
    pub fn note_landed(&self) {
        self.state.lock().has_landed = true;
    }

    /// Whether the data of the outcome has landed.
    pub fn has_landed(&self) -> bool {
        self.state.lock().has_landed
    }

    pub fn take_request(&self) -> Option<(Operation, Acknowledge)> {
        self.state.lock().request.take()
    }

    /// Gives the call its outcome. Returns whether its thread still waits for it.
    pub fn deliver(&self, outcome: Outcome, kept: Option<Kept>) -> bool {
        let has_ended = {
            let mut state = self.state.lock();
            (state.outcome, state.kept) = (Some(outcome), kept);
            state.has_ended
        };
        self.changed.notify_one();
        !has_ended
    }

    /// The file is the session's own, by the outcome that is delivered next.
    pub fn note_ownership(&self, ownership: Option<Ownership>) {
        self.state.lock().ownership = ownership;
    }

    /// The lease that came with the outcome.
    pub fn ownership(&self) -> Option<Ownership> {
        self.state.lock().ownership
    }

    /// The outcome, if it is there; records for this thread what it may cache of it.
    pub fn take(&self) -> Option<Outcome> {
        self.state.lock().take()
    }

    /// Lets the call lead, unless its outcome is there or it has ended.
    pub fn promote(&self) -> bool {
        let mut state = self.state.lock();
        state.leads = state.outcome.is_none() && !state.has_ended;
        self.changed.notify_one();
        state.leads
    }

    pub fn is_leader(&self) -> bool {
        self.state.lock().leads
    }

    /// Ends the wait of the call's thread, so that it checks its limits.
    pub fn wake(&self) {
        // Under the lock, so that the thread is not just about to wait.
        let _state = self.state.lock();
        self.changed.notify_one();
    }

    /// Waits for the outcome, or to lead: once, until this time, unless the call is to end early.
    pub fn wait(&self, until: Instant, is_to_end: impl Fn() -> bool) -> Waited {
        let mut state = self.state.lock();
        if state.outcome.is_none() && !state.leads && !is_to_end() {
            self.changed.wait_until(&mut state, until);
        }
        if let Some(outcome) = state.take() {
            return Waited::Outcome(outcome);
        }
        match std::mem::take(&mut state.leads) {
            true => Waited::Leads,
            false => Waited::Woken,
        }
    }

    /// No later leader begins it or hands over to it. Returns whether its request is in flight.
    pub fn end(&self) -> bool {
        let mut state = self.state.lock();
        state.has_ended = true;
        state.request.take().is_none() && state.outcome.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use fabric::{Access, Provider, ReadMemory, Table};
    use operations::FileId;
    use pmem::Region;

    use super::*;

    const LONG: Duration = Duration::from_secs(120);

    fn target() -> ReadTarget {
        let region = Region::memory(4096, false).unwrap();
        let registered = Table::default().insert(&region, 0..4096, Access::LOCAL);
        let memory = ReadMemory {
            region,
            start: 0,
            is_exact: true,
            owner: Arc::new(()),
        };
        ReadTarget::new(Provider::Ethernet, registered.unwrap(), memory)
    }

    fn call() -> Arc<Call> {
        let file = FileId::default();
        Arc::new(Call::new(
            Operation::Sync { file },
            Acknowledge::All,
            Terms::Plain,
        ))
    }

    #[test]
    fn a_call_is_woken_by_its_outcome_by_promotion_and_by_an_interrupt() {
        let waits = |call: &Arc<Call>| {
            let call = call.clone();
            thread::spawn(move || call.wait(Instant::now() + LONG, || false))
        };
        let first = call();
        let waiting = waits(&first);
        assert!(first.promote());
        assert!(matches!(waiting.join().unwrap(), Waited::Leads));
        let waiting = waits(&first);
        first.deliver(Outcome::default(), None);
        assert!(matches!(waiting.join().unwrap(), Waited::Outcome(_)));
        first.deliver(Outcome::default(), None);
        assert!(!first.promote(), "its outcome is there");
        let second = call();
        let ended = second.wait(Instant::now() + LONG, || true);
        assert!(matches!(ended, Waited::Woken));
        assert!(!second.end(), "it was never sent");
        assert!(second.take_request().is_none());
        assert!(!second.promote(), "its thread would never hand over");
        assert!(!second.may_land());
        let third = call();
        third.take_request();
        assert!(third.end(), "its outcome may still come");
        assert!(!third.deliver(Outcome::default(), None));
    }

    #[test]
    fn nothing_lands_for_a_call_that_has_ended() {
        let landing = || Call::landing(Operation::CloseSession, (target(), 0));
        let call = landing();
        call.take_request();
        call.end();
        assert!(call.begin_landing().is_none());
        assert!(!call.may_land(), "its memory is used again");
        let call = landing();
        assert!(call.begin_landing().is_some());
        call.end();
        assert!(call.may_land());
    }
}
