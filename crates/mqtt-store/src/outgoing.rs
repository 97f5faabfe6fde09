//! Messages of QoS 1 and 2 on their way from the broker to one client (standard 4.3, 4.4): packet identifiers, what was
//! acknowledged, and what is sent again when the session is resumed.

use std::collections::{HashMap, VecDeque};

use thalweg_mqtt_wire::QoS;

use crate::interest::Offset;

/// A message that was sent and is not acknowledged to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightMessage {
    pub packet_id: u16,
    /// In the message log.
    pub offset: Offset,
    pub qos: QoS,
    /// The client has answered PUBREC: PUBREL is next, and the message itself is needed no more.
    pub is_received: bool,
}

/// What an acknowledgement means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckOutcome {
    /// The message is done, and its identifier is free.
    Done(InflightMessage),
    /// PUBREC: the message is received, and PUBREL must be sent. `is_new` is false if that was known.
    Release { is_new: bool },
    /// No message has this identifier.
    Unknown,
    /// The acknowledgement does not belong to the state of the message: a protocol error.
    OutOfTurn,
}

/// The messages in flight to one client.
#[derive(Clone, Debug, Default)]
pub struct OutgoingMessages {
    /// In the order in which they were sent; `None` is done.
    sent: VecDeque<Option<InflightMessage>>,
    /// The number of the first of `sent` since the session began.
    first: u64,
    by_id: HashMap<u16, u64>,
    last_id: u16,
}

impl OutgoingMessages {
    /// The state that a restart found, in the order in which it was sent.
    pub fn restored(messages: impl IntoIterator<Item = InflightMessage>) -> OutgoingMessages {
        let mut outgoing = OutgoingMessages::default();
        for message in messages {
            if outgoing.by_id.contains_key(&message.packet_id) || message.packet_id == 0 {
                continue;
            }
            outgoing.last_id = message.packet_id;
            outgoing.put(message);
        }
        outgoing
    }

    /// How many messages are in flight.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Notes that a message is sent, and gives it an identifier that no other one has. `None`: all are in use.
    pub fn send(&mut self, offset: Offset, qos: QoS) -> Option<u16> {
        if self.by_id.len() >= usize::from(u16::MAX) {
            return None;
        }
        loop {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            if !self.by_id.contains_key(&self.last_id) {
                break;
            }
        }
        self.put(InflightMessage {
            packet_id: self.last_id,
            offset,
            qos,
            is_received: false,
        });
        Some(self.last_id)
    }

    /// Notes that a message was sent with this identifier, which the log says.
    pub fn sent_as(&mut self, packet_id: u16, offset: Offset, qos: QoS) {
        let _ = self.end(packet_id);
        self.last_id = packet_id;
        self.put(InflightMessage {
            packet_id,
            offset,
            qos,
            is_received: false,
        });
    }

    pub fn puback(&mut self, packet_id: u16) -> AckOutcome {
        match self.find(packet_id) {
            None => AckOutcome::Unknown,
            Some(message) if message.qos == QoS::AtLeastOnce => self.end(packet_id),
            Some(_) => AckOutcome::OutOfTurn,
        }
    }

    /// `is_failure`: the client refuses the message with a code from 0x80 on, which ends it.
    pub fn pubrec(&mut self, packet_id: u16, is_failure: bool) -> AckOutcome {
        let Some(message) = self.find_mut(packet_id) else {
            return AckOutcome::Unknown;
        };
        if message.qos != QoS::ExactlyOnce {
            return AckOutcome::OutOfTurn;
        }
        if message.is_received {
            return AckOutcome::Release { is_new: false };
        }
        if is_failure {
            return self.end(packet_id);
        }
        message.is_received = true;
        AckOutcome::Release { is_new: true }
    }

    pub fn pubcomp(&mut self, packet_id: u16) -> AckOutcome {
        match self.find(packet_id) {
            None => AckOutcome::Unknown,
            Some(message) if message.is_received => self.end(packet_id),
            Some(_) => AckOutcome::OutOfTurn,
        }
    }

    /// The messages in flight, in the order in which they were sent: on resuming the session, PUBLISH with DUP or PUBREL is sent
    /// for each [MQTT-4.4.0-1].
    pub fn iter(&self) -> impl Iterator<Item = InflightMessage> {
        self.sent.iter().flatten().copied()
    }

    /// The oldest message of the log that may have to be sent again.
    pub fn oldest(&self) -> Option<Offset> {
        let unreceived = self.iter().filter(|message| !message.is_received);
        unreceived.map(|message| message.offset).min()
    }

    /// The message is in the log no more, or cannot be sent.
    pub fn give_up(&mut self, packet_id: u16) -> AckOutcome {
        match self.find(packet_id) {
            Some(_) => self.end(packet_id),
            None => AckOutcome::Unknown,
        }
    }

    fn put(&mut self, message: InflightMessage) {
        let number = self.first + self.sent.len() as u64;
        self.by_id.insert(message.packet_id, number);
        self.sent.push_back(Some(message));
    }

    fn index(&self, packet_id: u16) -> Option<usize> {
        let number = self.by_id.get(&packet_id)?;
        usize::try_from(number - self.first).ok()
    }

    fn find(&self, packet_id: u16) -> Option<&InflightMessage> {
        self.sent.get(self.index(packet_id)?)?.as_ref()
    }

    fn find_mut(&mut self, packet_id: u16) -> Option<&mut InflightMessage> {
        let index = self.index(packet_id)?;
        self.sent.get_mut(index)?.as_mut()
    }

    fn end(&mut self, packet_id: u16) -> AckOutcome {
        let index = self.index(packet_id);
        let ended = index.and_then(|index| self.sent.get_mut(index)).and_then(Option::take);
        let Some(message) = ended else {
            return AckOutcome::Unknown;
        };
        self.by_id.remove(&packet_id);
        while let Some(None) = self.sent.front() {
            self.sent.pop_front();
            self.first += 1;
        }
        AckOutcome::Done(message)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of_both(number: u16) -> QoS {
        if number.is_multiple_of(2) {
            QoS::AtLeastOnce
        } else {
            QoS::ExactlyOnce
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Send,
        Puback(u16),
        Pubrec(u16, bool),
        Pubcomp(u16),
        Restart,
    }

    fn step() -> impl Strategy<Value = Step> {
        let id = 0..12_u16;
        prop_oneof![
            4 => Just(Step::Send),
            3 => id.clone().prop_map(Step::Puback),
            3 => (id.clone(), any::<bool>()).prop_map(|(id, fails)| Step::Pubrec(id, fails)),
            3 => id.prop_map(Step::Pubcomp),
            1 => Just(Step::Restart),
        ]
    }

    proptest! {
        /// Against a list that is searched.
        #[test]
        fn each_message_ends_as_its_qos_says(steps in prop::collection::vec(step(), 1..120)) {
            let (mut outgoing, mut model, mut offset) = (OutgoingMessages::default(), Vec::<InflightMessage>::new(), 0);
            for step in steps {
                let at = |model: &[InflightMessage], id| model.iter().position(|message| message.packet_id == id);
                match step {
                    Step::Send => {
                        offset += 1;
                        let qos = of_both(offset as u16 / 2);
                        let packet_id = outgoing.send(offset, qos).unwrap();
                        prop_assert!(packet_id > 0 && at(&model, packet_id).is_none());
                        model.push(InflightMessage { packet_id, offset, qos, is_received: false });
                    }
                    Step::Puback(id) => {
                        let expected = match at(&model, id) {
                            Some(at) if model[at].qos == QoS::AtLeastOnce => AckOutcome::Done(model.remove(at)),
                            Some(_) => AckOutcome::OutOfTurn,
                            None => AckOutcome::Unknown,
                        };
                        prop_assert_eq!(outgoing.puback(id), expected);
                    }
                    Step::Pubrec(id, is_failure) => {
                        let expected = match at(&model, id) {
                            Some(at) if model[at].qos == QoS::AtLeastOnce => { let _ = at; AckOutcome::OutOfTurn }
                            Some(at) if model[at].is_received => { let _ = at; AckOutcome::Release { is_new: false } }
                            Some(at) if is_failure => AckOutcome::Done(model.remove(at)),
                            Some(at) => {
                                model[at].is_received = true;
                                AckOutcome::Release { is_new: true }
                            }
                            None => AckOutcome::Unknown,
                        };
                        prop_assert_eq!(outgoing.pubrec(id, is_failure), expected);
                    }
                    Step::Pubcomp(id) => {
                        let expected = match at(&model, id) {
                            Some(at) if model[at].is_received => AckOutcome::Done(model.remove(at)),
                            Some(_) => AckOutcome::OutOfTurn,
                            None => AckOutcome::Unknown,
                        };
                        prop_assert_eq!(outgoing.pubcomp(id), expected);
                    }
                    Step::Restart => outgoing = OutgoingMessages::restored(outgoing.iter()),
                }
                prop_assert_eq!(outgoing.iter().collect::<Vec<_>>(), model.clone());
                prop_assert_eq!((outgoing.len(), outgoing.is_empty()), (model.len(), model.is_empty()));
                let oldest = model.iter().filter(|message| !message.is_received).map(|message| message.offset).min();
                prop_assert_eq!(outgoing.oldest(), oldest);
            }
        }
    }

    #[test]
    fn identifiers_go_round_and_are_never_in_use_twice() {
        let mut outgoing = OutgoingMessages::default();
        for n in 0..u64::from(u16::MAX) {
            assert_eq!(outgoing.send(n, QoS::AtLeastOnce), Some(n as u16 + 1));
        }
        assert_eq!(outgoing.send(1, QoS::AtLeastOnce), None);
        assert!(matches!(outgoing.puback(7), AckOutcome::Done(_)));
        assert!(matches!(outgoing.puback(65_535), AckOutcome::Done(_)));
        assert_eq!(outgoing.send(1, QoS::AtLeastOnce), Some(7));
        assert_eq!(outgoing.send(1, QoS::AtLeastOnce), Some(65_535));
        assert_eq!(outgoing.puback(0), AckOutcome::Unknown);
    }
}
