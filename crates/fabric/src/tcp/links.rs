//! The links of a queue: those of its endpoints, and those of endpoints that ended with a refusal that the other side
//! may not know of yet.

use std::time::Instant;

use super::link::{Link, State};
use crate::EndpointId;

/// Places of endpoints are below, those of ended ones from here on.
const ENDED: usize = 1 << 16;
/// So many ended ones are kept; then the oldest goes.
const ENDED_MAX: usize = 64;

#[derive(Default)]
pub struct Links {
    /// By the indexes of endpoints.
    current: Vec<Option<Box<Link>>>,
    ended: Vec<Option<Box<Link>>>,
}

impl Links {
    /// Places of endpoints that there are or were.
    pub fn len(&self) -> usize {
        self.current.len()
    }

    /// Returns the indices of all endpoints.
    pub fn places(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.current.len()).chain(ENDED..ENDED + self.ended.len())
    }

    fn slot(&mut self, place: usize) -> Option<&mut Option<Box<Link>>> {
        match place.checked_sub(ENDED) {
            None => self.current.get_mut(place),
            Some(index) => self.ended.get_mut(index),
        }
    }

    #[inline]
    pub fn get_mut(&mut self, place: usize) -> Option<&mut Link> {
        self.slot(place)?.as_deref_mut()
    }

    /// Where an endpoint's link is.
    pub fn place_of(&self, id: EndpointId) -> Option<usize> {
        let is_it = |link: &Option<Box<Link>>| link.as_ref().is_some_and(|link| link.id == id);
        if self.current.get(id.place()).is_some_and(is_it) {
            return Some(id.place());
        }
        let index = self.ended.iter().position(is_it)?;
        Some(ENDED + index)
    }

    #[inline]
    pub fn find(&mut self, id: EndpointId) -> Option<&mut Link> {
        let place = self.place_of(id)?;
        self.slot(place)?.as_deref_mut()
    }

    /// Inserts the connection of a new endpoint.
    pub fn insert(&mut self, link: Link) {
        let place = link.id.place();
        if self.current.len() <= place {
            self.current.resize_with(place + 1, || None);
        }
        self.current[place] = Some(Box::new(link));
    }

    pub fn remove(&mut self, place: usize) -> Option<Box<Link>> {
        self.slot(place)?.take()
    }

    /// Makes room for an ended one, and returns its index; and which one is removed for it.
    pub fn room(&self) -> (usize, Option<EndpointId>) {
        let free = self.ended.iter().position(Option::is_none);
        let free = free.or_else(|| (self.ended.len() < ENDED_MAX).then_some(self.ended.len()));
        if let Some(index) = free {
            return (ENDED + index, None);
        }
        let until = |index: &usize| self.ended[*index].as_ref().and_then(|link| until(link));
        let oldest = (0..self.ended.len()).min_by_key(until).unwrap_or(0);
        let id = self.ended[oldest].as_ref().map(|link| link.id);
        (ENDED + oldest, id)
    }

    /// Keeps an ended one at a place that there is [room](Links::room) at.
    pub fn keep(&mut self, place: usize, link: Box<Link>) {
        if place == ENDED + self.ended.len() {
            self.ended.push(None);
        }
        if let Some(slot) = self.slot(place) {
            *slot = Some(link);
        }
    }

    /// Whether the endpoint of this index has ended, and is not requested here any more.
    pub fn is_ended(place: usize) -> bool {
        place >= ENDED
    }
}

fn until(link: &Link) -> Option<Instant> {
    match link.state {
        State::Refusing { until } | State::Waiting { until, .. } => Some(until),
        _ => None,
    }
}
