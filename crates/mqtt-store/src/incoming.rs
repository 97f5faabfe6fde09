//! Messages of QoS 1 and 2 on their way from one client to the broker (standard 4.3): which identifiers are in use, so that a
//! message of QoS 2 that comes again is not published again.

use std::collections::HashMap;

use thalweg_mqtt_wire::ReasonCode;

/// An identifier that a client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IncomingState {
    /// QoS 1, until PUBACK is sent.
    AtLeastOnce,
    /// QoS 2, until its message is stored and PUBREC is sent.
    Storing,
    /// QoS 2, until PUBREL.
    Received,
}

/// What to do with a PUBLISH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncomingPublish {
    /// Publish it, and answer then.
    New,
    /// QoS 2 that was published before: answer PUBREC again, behind those that are not answered yet.
    Again,
    /// Answer with this code, and do not publish it.
    Refused(ReasonCode),
    /// More messages than the Receive Maximum: the connection ends with 0x93.
    TooMany,
}

/// The identifiers that one client uses for its own messages.
#[derive(Clone, Debug, Default)]
pub struct IncomingMessages {
    by_id: HashMap<u16, IncomingState>,
}

impl IncomingMessages {
    /// The state that a restart found: messages of QoS 2 that wait for PUBREL.
    pub fn restored(received: impl IntoIterator<Item = u16>) -> IncomingMessages {
        let by_id = received.into_iter().map(|id| (id, IncomingState::Received));
        IncomingMessages { by_id: by_id.collect() }
    }

    /// Notes a message of QoS 2 that waits for PUBREL, which the log says.
    pub fn restore(&mut self, id: u16) {
        self.by_id.insert(id, IncomingState::Received);
    }

    /// How many messages are unfinished.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// A PUBLISH with QoS 1.
    pub fn at_least_once(&mut self, id: u16, receive_maximum: u16) -> IncomingPublish {
        match self.by_id.get(&id) {
            // The client repeats itself before it has its answer: both are published and answered.
            Some(IncomingState::AtLeastOnce) => IncomingPublish::New,
            Some(_) => IncomingPublish::Refused(ReasonCode::PacketIdentifierInUse),
            None => self.begin(id, IncomingState::AtLeastOnce, receive_maximum),
        }
    }

    /// A PUBLISH with QoS 2.
    pub fn exactly_once(&mut self, id: u16, receive_maximum: u16) -> IncomingPublish {
        match self.by_id.get(&id) {
            Some(IncomingState::AtLeastOnce) => IncomingPublish::Refused(ReasonCode::PacketIdentifierInUse),
            Some(_) => IncomingPublish::Again,
            None => self.begin(id, IncomingState::Storing, receive_maximum),
        }
    }

    fn begin(&mut self, id: u16, state: IncomingState, receive_maximum: u16) -> IncomingPublish {
        if self.by_id.len() >= usize::from(receive_maximum) {
            return IncomingPublish::TooMany;
        }
        self.by_id.insert(id, state);
        IncomingPublish::New
    }

    /// Whether a message of QoS 2 waits for being stored.
    pub fn is_storing(&self, id: u16) -> bool {
        self.by_id.get(&id) == Some(&IncomingState::Storing)
    }

    /// PUBACK is sent, whatever its code.
    pub fn acked(&mut self, id: u16) {
        if self.by_id.get(&id) == Some(&IncomingState::AtLeastOnce) {
            self.by_id.remove(&id);
        }
    }

    /// PUBREC is sent. A failure frees the identifier.
    pub fn received(&mut self, id: u16, is_failure: bool) {
        if self.by_id.get(&id) == Some(&IncomingState::Storing) {
            match is_failure {
                true => self.by_id.remove(&id),
                false => self.by_id.insert(id, IncomingState::Received),
            };
        }
    }

    /// PUBREL. Returns whether the identifier was in use; PUBCOMP answers 0x92 if not.
    pub fn release(&mut self, id: u16) -> bool {
        let is_known = self.by_id.get(&id) == Some(&IncomingState::Received);
        if is_known {
            self.by_id.remove(&id);
        }
        is_known
    }

    /// Identifiers of QoS 2 that the session keeps when its connection ends. Messages that are not stored are not published,
    /// and the client sends them again.
    pub fn disconnected(&mut self) {
        self.by_id.retain(|_, state| *state == IncomingState::Received);
    }

    /// The identifiers that wait for PUBREL, in ascending order.
    pub fn waiting(&self) -> Vec<u16> {
        let received = self
            .by_id
            .iter()
            .filter(|(_, state)| **state == IncomingState::Received);
        let mut ids: Vec<u16> = received.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_qos_2_is_published_once() {
        let mut incoming = IncomingMessages::default();
        assert_eq!(incoming.exactly_once(7, 10), IncomingPublish::New);
        assert_eq!(incoming.exactly_once(7, 10), IncomingPublish::Again);
        assert!(!incoming.release(7), "PUBREC was not sent");
        incoming.received(7, false);
        assert_eq!(incoming.exactly_once(7, 10), IncomingPublish::Again);
        assert_eq!(incoming.waiting(), [7]);
        let mut again = IncomingMessages::restored(incoming.waiting());
        assert_eq!(again.exactly_once(7, 10), IncomingPublish::Again);
        assert!(again.release(7));
        assert!(!again.release(7));
        assert_eq!(again.exactly_once(7, 10), IncomingPublish::New);
        again.received(7, true);
        assert!(again.is_empty(), "a failure frees the identifier");
    }

    #[test]
    fn an_identifier_is_for_one_message_at_a_time() {
        let in_use = IncomingPublish::Refused(ReasonCode::PacketIdentifierInUse);
        let mut incoming = IncomingMessages::default();
        assert_eq!(incoming.exactly_once(1, 10), IncomingPublish::New);
        assert_eq!(incoming.at_least_once(1, 10), in_use);
        incoming.acked(1);
        assert_eq!(incoming.at_least_once(1, 10), in_use, "the refusal frees nothing");
        assert_eq!(incoming.at_least_once(2, 10), IncomingPublish::New);
        assert_eq!(incoming.exactly_once(2, 10), in_use);
        incoming.received(2, true);
        assert_eq!(incoming.exactly_once(2, 10), in_use);
        incoming.acked(2);
        assert_eq!(incoming.exactly_once(2, 10), IncomingPublish::New);
    }

    #[test]
    fn no_more_messages_are_unfinished_than_the_receive_maximum() {
        let mut incoming = IncomingMessages::default();
        for id in 1..=5 {
            assert_eq!(incoming.at_least_once(id, 5), IncomingPublish::New);
        }
        assert_eq!(incoming.at_least_once(6, 5), IncomingPublish::TooMany);
        assert_eq!(incoming.exactly_once(6, 5), IncomingPublish::TooMany);
        incoming.acked(3);
        assert_eq!(incoming.exactly_once(6, 5), IncomingPublish::New);
        incoming.received(6, false);
        incoming.disconnected();
        assert_eq!((incoming.len(), incoming.waiting()), (1, vec![6]));
    }
}
