//! The slots of a session, and the changes in them.

use super::Pending;

/// For each slot the number of its last request, and the change that is in flight.
#[derive(Default)]
pub(super) struct Slots(Vec<(u64, Option<Pending>)>);

impl Slots {
    /// So many free slots.
    pub fn new(count: u16) -> Slots {
        Slots((0..count).map(|_| (0, None)).collect())
    }

    /// Changes in flight.
    pub fn pending(&self) -> impl Iterator<Item = &Pending> {
        self.0.iter().filter_map(|(_, it)| it.as_ref())
    }

    /// Changes in flight with their slots.
    pub fn pending_mut(&mut self) -> impl Iterator<Item = (u16, &mut Pending)> {
        let slots = (0_u16..).zip(&mut self.0);
        slots.filter_map(|(slot, (_, it))| Some((slot, it.as_mut()?)))
    }

    /// The first free slot.
    pub fn free(&self) -> Option<usize> {
        self.0.iter().position(|(_, pending)| pending.is_none())
    }

    /// Gives a free slot to a change, which becomes the slot's next request.
    pub fn put(&mut self, slot: usize, mut pending: Pending) {
        let (last, place) = &mut self.0[slot];
        *last += 1;
        pending.request = *last;
        *place = Some(pending);
    }

    /// Removes the change of a slot, if it is this request of the slot.
    pub fn take(&mut self, slot: u16, request: u64) -> Option<Pending> {
        let (_, place) = self.0.get_mut(usize::from(slot))?;
        place.take_if(|pending| pending.request == request)
    }

    /// Changes in flight, without their slots.
    pub fn into_pending(self) -> impl Iterator<Item = Pending> {
        self.0.into_iter().filter_map(|(_, pending)| pending)
    }
}
