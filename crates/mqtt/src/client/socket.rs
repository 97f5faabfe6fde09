//! What the socket of a client tells it.

use super::ClientConnection;

impl ClientConnection {
    /// The socket has taken all that waited for it: what the session missed meanwhile follows.
    pub fn has_room(&mut self) {
        let session = self.source.session.clone();
        self.broker.feed(&session, &mut self.touched);
    }

    /// Waits until everything that the client has sent has taken effect and is answered.
    pub async fn settled(&self) {
        self.source.pending.fewer_than(1).await;
    }

    /// The broker stops. A will is deferred to its next start, as after a crash, so a session with a will stays connected in the
    /// log; the others have left.
    pub fn stop(&mut self) {
        let has_will = self.source.session.lock().stored.will.is_some();
        match has_will {
            true => self.has_left = true,
            false => self.leave(),
        }
    }
}
