//! What goes through the journal: everything that changes stored state, and everything whose answer must wait for its turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thalweg_mqtt_store::{Message, Offset, RoutedDelivery, StoredWill, Subscription};
use thalweg_mqtt_wire::{ProtocolVersion, QoS, ReasonCode};
use tokio::sync::{Notify, oneshot};

use crate::outbox::Outbox;
use crate::session::{Attachment, Session};
use crate::shared::SharedSubscription;

/// What each action but a publish holds of its connection's share.
pub(crate) const ACTION_BYTES: usize = 64;

/// The connection that an action comes from.
#[derive(Clone)]
pub(crate) struct ActionSource {
    pub session: Arc<Session>,
    /// Of the connection.
    pub number: u64,
    pub outbox: Arc<Outbox>,
    pub version: ProtocolVersion,
    pub pending: Arc<PendingActions>,
}

/// What a connection has in the journal.
#[derive(Debug, Default)]
pub(crate) struct PendingActions {
    /// Actions with an answer.
    answers: AtomicUsize,
    /// Messages of QoS 0.
    unanswered: AtomicUsize,
    bytes: AtomicUsize,
    fewer: Notify,
}

impl PendingActions {
    pub fn add(&self, qos: QoS, bytes: usize) {
        self.counter(qos).fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn remove(&self, qos: QoS, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.counter(qos).fetch_sub(1, Ordering::Release);
        self.fewer.notify_one();
    }

    fn counter(&self, qos: QoS) -> &AtomicUsize {
        match qos {
            QoS::AtMostOnce => &self.unanswered,
            QoS::AtLeastOnce | QoS::ExactlyOnce => &self.answers,
        }
    }

    /// Whether a message of this QoS, or an answer, must follow one that is in the journal.
    pub fn has(&self, qos: QoS) -> bool {
        self.counter(qos).load(Ordering::Acquire) > 0
    }

    /// Waits until the actions hold less than this.
    pub async fn fewer_than(&self, bytes: usize) {
        while self.bytes.load(Ordering::Acquire) >= bytes {
            self.fewer.notified().await;
        }
    }
}

/// A message that a client has published.
pub(crate) struct PublishAction {
    pub source: ActionSource,
    pub message: Message,
    /// 0 with QoS 0.
    pub packet_id: u16,
    pub qos: QoS,
}

/// A client connects.
pub(crate) struct ConnectAction {
    pub client_id: Box<str>,
    pub user: String,
    pub clean_start: bool,
    /// Seconds.
    pub expiry: u32,
    pub connection: Attachment,
    pub will: Option<StoredWill>,
    /// The properties of the CONNACK of 5.0.
    pub answer: Vec<u8>,
    pub reply: oneshot::Sender<Result<Arc<Session>, ReasonCode>>,
}

pub(crate) struct DisconnectAction {
    pub source: ActionSource,
    /// DISCONNECT 0x00: the will is not sent [MQTT-3.14.4-3].
    pub discards_will: bool,
    /// Seconds, if the client has changed it.
    pub expiry: Option<u32>,
}

pub(crate) struct SubscribeAction {
    pub source: ActionSource,
    pub packet_id: u16,
    /// `Err`: refused with this code.
    pub filters: Vec<Result<(Box<str>, Subscription), ReasonCode>>,
}

pub(crate) struct UnsubscribeAction {
    pub source: ActionSource,
    pub packet_id: u16,
    pub filters: Vec<Box<str>>,
}

/// A message of QoS 2 that a session has read from the log is about to be sent.
pub(crate) struct SendAction {
    pub session: Arc<Session>,
    /// Of the connection.
    pub number: u64,
    pub offset: Offset,
    pub packet_id: u16,
    pub message: Message,
    pub delivery: RoutedDelivery,
    /// The shared subscription that it comes from.
    pub shared: Option<Box<str>>,
}

/// Sessions and groups whose clients have acknowledged something.
#[derive(Default)]
pub(crate) struct ProgressAction {
    pub sessions: Vec<Arc<Session>>,
    pub groups: Vec<Arc<SharedSubscription>>,
}

/// Some sessions of a checkpoint.
pub(crate) struct CheckpointAction {
    pub sessions: Vec<Arc<Session>>,
    pub is_first: bool,
    pub is_last: bool,
}

pub(crate) enum Action {
    Publish(PublishAction),
    Connect(Box<ConnectAction>),
    Disconnect(DisconnectAction),
    Subscribe(SubscribeAction),
    Unsubscribe(UnsubscribeAction),
    /// PUBREC of a client: PUBREL is the answer.
    Received {
        source: ActionSource,
        packet_id: u16,
    },
    /// PUBREL of a client: PUBCOMP is the answer, with this code.
    Released {
        source: ActionSource,
        packet_id: u16,
        code: ReasonCode,
    },
    Send(Box<SendAction>),
    /// What clients have acknowledged is stored.
    Progress(ProgressAction),
    /// The will of a session that has lost its connection is due.
    SendWill(Arc<Session>),
    /// A session ends that nobody has come back to.
    Expire(Arc<Session>),
    Checkpoint(CheckpointAction),
    /// A session that ends with its connection has more waiting than memory takes.
    Spill(Arc<Session>),
    /// It has caught up.
    Unspill(Arc<Session>),
}

impl Action {
    /// Bytes that it holds of its connection's share.
    pub fn bytes(&self) -> usize {
        match self {
            Action::Publish(publish) => publish.message.bytes(),
            _ => ACTION_BYTES,
        }
    }

    /// The QoS of a message; other actions are answered as messages of QoS 1 are.
    pub fn qos(&self) -> QoS {
        match self {
            Action::Publish(publish) => publish.qos,
            _ => QoS::AtLeastOnce,
        }
    }
}
