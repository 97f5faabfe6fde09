//! An unbounded channel between threads, whose receiver may be a coroutine of a simulated run. Errors are those of the
//! channels of the standard library.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock;
use crate::threads::Condvar;

struct Channel<T> {
    state: Mutex<ChannelState<T>>,
    changed: Condvar,
}

struct ChannelState<T> {
    items: VecDeque<T>,
    senders: usize,
    is_received: bool,
}

/// Returns the two ends of a new channel.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let channel = Arc::new(Channel {
        state: Mutex::new(ChannelState {
            items: VecDeque::new(),
            senders: 1,
            is_received: true,
        }),
        changed: Condvar::new(),
    });
    (Sender(channel.clone()), Receiver(channel))
}

/// Clones send to the same receiver.
pub struct Sender<T>(Arc<Channel<T>>);

impl<T> Sender<T> {
    /// Never waits. Fails if there is no receiver any more.
    pub fn send(&self, item: T) -> Result<(), SendError<T>> {
        let mut state = self.0.state.lock();
        if !state.is_received {
            return Err(SendError(item));
        }
        state.items.push_back(item);
        drop(state);
        self.0.changed.notify_one();
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.0.state.lock().senders += 1;
        Sender(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.state.lock().senders -= 1;
        self.0.changed.notify_one();
    }
}

pub struct Receiver<T>(Arc<Channel<T>>);

impl<T> Receiver<T> {
    /// Waits for the next item. Fails when all are received and no sender is left.
    pub fn recv(&self) -> Result<T, RecvError> {
        let mut state = self.0.state.lock();
        loop {
            match state.items.pop_front() {
                Some(item) => return Ok(item),
                None if state.senders == 0 => return Err(RecvError),
                None => self.0.changed.wait(&mut state),
            }
        }
    }

    /// Like [`recv`](Receiver::recv), for this long at most.
    pub fn recv_timeout(&self, time: Duration) -> Result<T, RecvTimeoutError> {
        let until = clock::now() + time;
        let mut state = self.0.state.lock();
        loop {
            if let Some(item) = state.items.pop_front() {
                return Ok(item);
            }
            if state.senders == 0 {
                return Err(RecvTimeoutError::Disconnected);
            }
            if clock::now() >= until {
                return Err(RecvTimeoutError::Timeout);
            }
            self.0.changed.wait_until(&mut state, until);
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.is_received = false;
        let unreceived = std::mem::take(&mut state.items);
        drop(state);
        // Their drop may be anything.
        drop(unreceived);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads;

    #[test]
    fn items_arrive_in_order_until_the_last_sender_is_gone() {
        let (sender, receiver) = channel();
        let other = sender.clone();
        let sending = threads::spawn("sends", move || (0..1000).for_each(|n| sender.send(n).unwrap())).unwrap();
        assert!((0..1000).all(|n| receiver.recv() == Ok(n)));
        sending.join().unwrap();
        let short = Duration::from_millis(1);
        assert_eq!(receiver.recv_timeout(short), Err(RecvTimeoutError::Timeout));
        other.send(7).unwrap();
        drop(other);
        assert_eq!(receiver.recv_timeout(short), Ok(7));
        assert_eq!(receiver.recv_timeout(short), Err(RecvTimeoutError::Disconnected));
        assert_eq!(receiver.recv(), Err(RecvError));
    }

    #[test]
    fn nothing_is_sent_to_a_receiver_that_is_gone() {
        let (sender, receiver) = channel();
        let item = Arc::new(());
        sender.send(item.clone()).unwrap();
        drop(receiver);
        assert_eq!(Arc::strong_count(&item), 1);
        assert!(sender.send(item).is_err());
    }
}
