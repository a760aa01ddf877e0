//! Turns of links that share buffers.

use std::collections::VecDeque;

/// Lets links, known by their slots, do one thing each in turn, from the front of their queue on, until no link in the queue can.
/// `post` does that for one link, and returns whether it could. If it ends the link, it takes it out of the queue.
pub fn take_turns<T>(
    state: &mut T,
    queue: impl Fn(&mut T) -> &mut VecDeque<usize>,
    mut post: impl FnMut(&mut T, usize) -> bool,
) {
    let mut unposted = 0;
    while unposted < queue(state).len() {
        let slot = queue(state)[0];
        let is_posted = post(state, slot);
        let waiting = queue(state);
        // Otherwise the link has ended, and the next one is at the front.
        if waiting.front() == Some(&slot) {
            waiting.rotate_left(1);
            unposted = if is_posted { 0 } else { unposted + 1 };
        }
    }
}

#[cfg(test)]
mod tests;
