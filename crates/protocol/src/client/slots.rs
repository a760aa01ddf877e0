//! The slots of a session, and the changes in them.

use super::Pending;

/// Slots by their numbers. Those in use are mostly the first few, and no other one is visited.
#[derive(Default)]
pub(super) struct Slots {
    /// For each slot the number of its last request, and the change that is in flight.
    all: Vec<(u64, Option<Pending>)>,
    /// From this one on all are free.
    used: usize,
}

impl Slots {
    /// So many free slots.
    pub fn new(count: u16) -> Slots {
        Slots {
            all: (0..count).map(|_| (0, None)).collect(),
            used: 0,
        }
    }

    /// Changes in flight.
    pub fn pending(&self) -> impl Iterator<Item = &Pending> {
        self.all[..self.used]
            .iter()
            .filter_map(|(_, it)| it.as_ref())
    }

    /// Changes in flight with their slots.
    pub fn pending_mut(&mut self) -> impl Iterator<Item = (u16, &mut Pending)> {
        let slots = (0_u16..).zip(&mut self.all[..self.used]);
        slots.filter_map(|(slot, (_, it))| Some((slot, it.as_mut()?)))
    }

    /// The first free slot.
    pub fn free(&self) -> Option<usize> {
        let mut used = self.all[..self.used].iter();
        let free = used.position(|(_, pending)| pending.is_none());
        free.or((self.used < self.all.len()).then_some(self.used))
    }

    /// Gives a free slot to a change, which becomes the slot's next request.
    pub fn put(&mut self, slot: usize, mut pending: Pending) {
        let (last, place) = &mut self.all[slot];
        *last += 1;
        pending.request = *last;
        *place = Some(pending);
        self.used = self.used.max(slot + 1);
    }

    /// Removes the change of a slot, if it is this request of the slot.
    pub fn take(&mut self, slot: u16, request: u64) -> Option<Pending> {
        let (_, place) = self.all.get_mut(usize::from(slot))?;
        let taken = place.take_if(|pending| pending.request == request);
        while self.used > 0 && self.all[self.used - 1].1.is_none() {
            self.used -= 1;
        }
        taken
    }

    /// Changes in flight, without their slots.
    pub fn into_pending(self) -> impl Iterator<Item = Pending> {
        self.all.into_iter().filter_map(|(_, pending)| pending)
    }
}
