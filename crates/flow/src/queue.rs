//! A bounded queue between async tasks or threads, limited in messages and in bytes.
//!
//! Two semaphores represent the free room: a sender acquires permits for its element, and the receiver releases them
//! when it takes the element out. An element larger than the whole queue acquires all of it, so that it passes alone
//! instead of never.

use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};

/// The room that an element needs.
pub(crate) trait Weight {
    fn messages(&self) -> usize;
    fn bytes(&self) -> usize;
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    pub messages: usize,
    pub bytes: usize,
}

struct QueueCapacity {
    messages: Semaphore,
    bytes: Semaphore,
    limits: QueueLimits,
}

/// The permits that an element holds while it is in the queue.
struct QueuePermits {
    messages: u32,
    bytes: u32,
}

pub(crate) struct QueueSender<T> {
    room: Arc<QueueCapacity>,
    queue: mpsc::UnboundedSender<(T, QueuePermits)>,
}

impl<T> Clone for QueueSender<T> {
    fn clone(&self) -> QueueSender<T> {
        QueueSender {
            room: self.room.clone(),
            queue: self.queue.clone(),
        }
    }
}

pub(crate) struct QueueReceiver<T> {
    room: Arc<QueueCapacity>,
    queue: mpsc::UnboundedReceiver<(T, QueuePermits)>,
}

/// The other end is gone; the element is returned.
pub(crate) struct QueueClosed<T>(
    #[allow(dead_code, reason = "dropping it gives the batch up, which is the point")] pub T,
);

pub(crate) fn bounded<T: Weight>(limits: QueueLimits) -> (QueueSender<T>, QueueReceiver<T>) {
    let limits = QueueLimits {
        messages: limits.messages.clamp(1, MAX),
        bytes: limits.bytes.clamp(1, MAX),
    };
    let room = Arc::new(QueueCapacity {
        messages: Semaphore::new(limits.messages),
        bytes: Semaphore::new(limits.bytes),
        limits,
    });
    let (sender, receiver) = mpsc::unbounded_channel();
    (
        QueueSender {
            room: room.clone(),
            queue: sender,
        },
        QueueReceiver { room, queue: receiver },
    )
}

/// The maximum that one call may acquire from a semaphore.
const MAX: usize = u32::MAX as usize / 8;

impl<T: Weight> QueueSender<T> {
    /// Waits for room. After an error the receiver is gone.
    pub async fn send(&self, element: T) -> Result<(), QueueClosed<T>> {
        let limits = self.room.limits;
        let messages = element.messages().clamp(1, limits.messages) as u32;
        let bytes = element.bytes().clamp(1, limits.bytes) as u32;
        let permits = async {
            // A sender that is cancelled while it waits for the second permit releases the first.
            let of_messages = self.room.messages.acquire_many(messages).await.ok()?;
            let of_bytes = self.room.bytes.acquire_many(bytes).await.ok()?;
            of_messages.forget();
            of_bytes.forget();
            Some(QueuePermits { messages, bytes })
        };
        let permits = permits.await;
        let Some(permits) = permits else {
            return Err(QueueClosed(element));
        };
        self.queue
            .send((element, permits))
            .map_err(|mpsc::error::SendError((element, _))| QueueClosed(element))
    }

    /// Waits until an element of ordinary size would fit immediately.
    pub async fn has_room(&self) {
        // Acquiring one permit and releasing it queues fairly behind waiting senders.
        if let Ok(permit) = self.room.messages.acquire().await {
            drop(permit);
        }
        if let Ok(permit) = self.room.bytes.acquire().await {
            drop(permit);
        }
    }
}

impl<T> QueueReceiver<T> {
    /// `None` after all senders are gone and the queue is empty.
    pub async fn receive(&mut self) -> Option<T> {
        let (element, permits) = self.queue.recv().await?;
        self.release(permits);
        Some(element)
    }

    /// Returns an element if one is available now.
    pub fn try_receive(&mut self) -> Option<T> {
        let (element, permits) = self.queue.try_recv().ok()?;
        self.release(permits);
        Some(element)
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    fn release(&self, permits: QueuePermits) {
        self.room.messages.add_permits(permits.messages as usize);
        self.room.bytes.add_permits(permits.bytes as usize);
    }
}

impl<T> Drop for QueueReceiver<T> {
    fn drop(&mut self) {
        // Wakes senders that wait for room; the remaining elements are dropped with the queue, and so given up.
        self.room.messages.close();
        self.room.bytes.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Item(usize, usize);

    impl Weight for Item {
        fn messages(&self) -> usize {
            self.0
        }
        fn bytes(&self) -> usize {
            self.1
        }
    }

    fn full<T: Weight>(sender: &QueueSender<T>, item: T) -> bool {
        let mut send = std::pin::pin!(sender.send(item));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        send.as_mut().poll(&mut context).is_pending()
    }

    #[tokio::test]
    async fn either_limit_stops_the_sender_until_something_is_taken_out() {
        for item in [(4, 1), (1, 40)] {
            let (sender, mut receiver) = bounded::<Item>(QueueLimits { messages: 8, bytes: 80 });
            assert!(!full(&sender, Item(item.0, item.1)));
            assert!(!full(&sender, Item(item.0, item.1)));
            assert!(full(&sender, Item(item.0, item.1)));
            assert!(receiver.receive().await.is_some());
            assert!(!full(&sender, Item(item.0, item.1)));
        }
    }

    #[tokio::test]
    async fn an_element_larger_than_the_queue_passes_alone() {
        let (sender, mut receiver) = bounded::<Item>(QueueLimits { messages: 8, bytes: 80 });
        assert!(!full(&sender, Item(100, 1000)));
        assert!(full(&sender, Item(1, 1)));
        assert_eq!(receiver.receive().await.map(|i| i.0), Some(100));
        assert!(!full(&sender, Item(1, 1)));
    }

    #[tokio::test]
    async fn a_sender_that_leaves_takes_no_room_with_it() {
        let (sender, mut receiver) = bounded::<Item>(QueueLimits {
            messages: 10,
            bytes: 10,
        });
        for _ in 0..20 {
            assert!(!full(&sender, Item(1, 10)));
            // Waits for bytes, and is cancelled.
            assert!(full(&sender, Item(9, 1)));
            assert!(receiver.receive().await.is_some());
        }
        assert!(!full(&sender, Item(10, 10)));
    }

    #[tokio::test]
    async fn a_receiver_that_goes_wakes_senders_in_the_queue_for_room() {
        let (sender, receiver) = bounded::<Item>(QueueLimits { messages: 1, bytes: 80 });
        assert!(sender.send(Item(1, 1)).await.is_ok());
        let blocked = tokio::spawn(async move { sender.send(Item(1, 1)).await.is_err() });
        tokio::task::yield_now().await;
        drop(receiver);
        assert!(blocked.await.unwrap());
    }
}
