//! A waiting line: first come, first served.
//!
//! Who finds no room joins the line under the lock that guards the room, and leaves it served or given up. Whoever makes room
//! serves the line from its front, so nobody who comes later gets what somebody waits for, however little he wants. Invariant
//! of its users: after each change under the lock, the first in the line does not fit. A call that comes before somebody
//! listens for it is kept, so none is missed.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;

/// Those who wait, each with what is wanted. Joining, serving and leaving cost O(log n).
#[derive(Debug)]
pub struct WaitQueue<T> {
    /// By the order in which they came.
    standing: BTreeMap<u64, Waiter<T>>,
    next: u64,
}

#[derive(Debug)]
struct Waiter<T> {
    wanted: T,
    call: Arc<Notify>,
}

/// One who joined a line. To leave it whatever happens, see [`WaitQueue::leave`].
#[derive(Debug)]
pub struct WaitTicket {
    number: u64,
    call: Arc<Notify>,
}

impl WaitTicket {
    /// Returns when there is something to look at: it was served, it is the first now, or all are to look.
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

    /// What the first wants.
    pub fn first(&self) -> Option<&T> {
        self.standing.first_key_value().map(|(_, first)| &first.wanted)
    }

    pub fn is_first(&self, place: &WaitTicket) -> bool {
        self.standing.keys().next() == Some(&place.number)
    }

    /// Whether it was neither served nor left.
    pub fn holds(&self, place: &WaitTicket) -> bool {
        self.standing.contains_key(&place.number)
    }

    /// The first is served: it is out of the line, and called, as is who is first then.
    pub fn serve(&mut self) -> Option<T> {
        let (_, served) = self.standing.pop_first()?;
        served.call.notify_one();
        self.call_first();
        Some(served.wanted)
    }

    /// Leaves without having been served. Who is first then is called, if that is another. `None` if it was served before.
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

    /// Something concerns everybody.
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
        // From the middle nobody is called; from the front the next is.
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
        /// Whatever joins, leaves and is served: served are those who did not leave, in the order in which they came.
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
