//! A first-come, first-served wait queue.
//!
//! A caller that finds no room joins the queue under the lock that guards the room, and leaves it when it is served or
//! gives up. Whoever frees room serves the queue from its front, so a later caller never overtakes a waiter, however
//! little it wants. Invariant for users: after each change under the lock, the first waiter does not fit. A wakeup that
//! arrives before the waiter awaits it is kept, so none is missed.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;

/// The waiters, each with its request. Joining, serving and leaving cost O(log n).
#[derive(Debug)]
pub struct WaitQueue<T> {
    /// In the order of arrival.
    standing: BTreeMap<u64, Waiter<T>>,
    next: u64,
}

#[derive(Debug)]
struct Waiter<T> {
    wanted: T,
    call: Arc<Notify>,
}

/// The place of a waiter. The waiter must always leave the queue, see [`WaitQueue::leave`].
#[derive(Debug)]
pub struct WaitTicket {
    number: u64,
    call: Arc<Notify>,
}

impl WaitTicket {
    /// Returns when the waiter was served, became the first, or all were woken.
    pub async fn called(&self) {
        self.call.notified().await;
    }
}

impl<T> Default for WaitQueue<T> {
    fn default() -> WaitQueue<T> {
        WaitQueue {
            standing: BTreeMap::new(),
            next: 0,
        }
    }
}

impl<T> WaitQueue<T> {
    pub fn is_empty(&self) -> bool {
        self.standing.is_empty()
    }

    pub fn len(&self) -> usize {
        self.standing.len()
    }

    /// Joins at the end.
    pub fn join(&mut self, wanted: T) -> WaitTicket {
        let (number, call) = (self.next, Arc::new(Notify::new()));
        self.next += 1;
        self.standing.insert(
            number,
            Waiter {
                wanted,
                call: call.clone(),
            },
        );
        WaitTicket { number, call }
    }

    /// The request of the first waiter.
    pub fn first(&self) -> Option<&T> {
        self.standing.first_key_value().map(|(_, first)| &first.wanted)
    }

    pub fn is_first(&self, place: &WaitTicket) -> bool {
        self.standing.keys().next() == Some(&place.number)
    }

    /// Whether the waiter was neither served nor left.
    pub fn holds(&self, place: &WaitTicket) -> bool {
        self.standing.contains_key(&place.number)
    }

    /// Serves the first waiter: removes and wakes it, and wakes the next one.
    pub fn serve(&mut self) -> Option<T> {
        let (_, served) = self.standing.pop_first()?;
        served.call.notify_one();
        self.call_first();
        Some(served.wanted)
    }

    /// Leaves without having been served, and wakes the next waiter if this one was the first. `None` if it was already
    /// served.
    pub fn leave(&mut self, place: &WaitTicket) -> Option<T> {
        let was_first = self.is_first(place);
        let left = self.standing.remove(&place.number)?;
        if was_first {
            self.call_first();
        }
        Some(left.wanted)
    }

    fn call_first(&self) {
        if let Some((_, first)) = self.standing.first_key_value() {
            first.call.notify_one();
        }
    }

    /// Wakes all waiters.
    pub fn call_all(&self) {
        self.standing.values().for_each(|standing| standing.call.notify_one());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_called(place: &WaitTicket) -> bool {
        let mut call = std::pin::pin!(place.called());
        let waker = std::task::Waker::noop();
        call.as_mut()
            .poll(&mut std::task::Context::from_waker(waker))
            .is_ready()
    }

    use std::future::Future;

    #[test]
    fn who_is_served_and_who_is_first_then_are_called_and_nobody_else() {
        let mut line = WaitQueue::default();
        let places: Vec<WaitTicket> = (0..4).map(|n| line.join(n)).collect();
        assert_eq!((line.len(), line.first()), (4, Some(&0)));
        assert_eq!(line.serve(), Some(0));
        let called: Vec<bool> = places.iter().map(is_called).collect();
        assert_eq!(called, [true, true, false, false]);
        // Leaving from the middle wakes nobody; leaving from the front wakes the next.
        assert_eq!(line.leave(&places[2]), Some(2));
        assert!(!places.iter().any(is_called));
        assert_eq!((line.leave(&places[1]), line.leave(&places[0])), (Some(1), None));
        assert!(is_called(&places[3]) && line.is_first(&places[3]));
        line.call_all();
        assert!(is_called(&places[3]));
        assert_eq!((line.serve(), line.serve()), (Some(3), None));
        assert!(line.is_empty() && !line.holds(&places[3]));
    }

    proptest! {
        /// In every sequence of joins, leaves and serves, those who did not leave are served in the order of arrival.
        #[test]
        fn it_serves_in_the_order_of_arrival(steps in prop::collection::vec((0..3u8, any::<prop::sample::Index>()), 0..80)) {
            let (mut line, mut places, mut model, mut next) = (WaitQueue::default(), Vec::new(), Vec::new(), 0);
            for (step, which) in steps {
                match step {
                    0 => {
                        places.push((next, line.join(next)));
                        model.push(next);
                        next += 1;
                    }
                    1 => {
                        let expected = (!model.is_empty()).then(|| model.remove(0));
                        prop_assert_eq!(line.serve(), expected);
                    }
                    _ if !places.is_empty() => {
                        let (wanted, place) = &places[which.index(places.len())];
                        let stood = model.iter().position(|known| known == wanted);
                        prop_assert_eq!(line.holds(place), stood.is_some());
                        prop_assert_eq!(line.is_first(place), stood == Some(0));
                        prop_assert_eq!(line.leave(place), stood.map(|at| model.remove(at)));
                    }
                    _ => {}
                }
                prop_assert_eq!(line.first(), model.first());
                prop_assert_eq!(line.len(), model.len());
            }
        }
    }
}
