//! CONNECT (specification section 3): who may have which session.

use std::sync::Arc;
use std::time::Duration;

use thalweg_kit::{clock, random};
use thalweg_mqtt_store::{Message, MessageParts, StoredWill};
use thalweg_mqtt_wire::encode::PropertyWriter;
use thalweg_mqtt_wire::{
    Connect, ConnectRefusal, DecodeContext, PropertyId, ProtocolVersion, ReasonCode, Sender, Will, encode,
};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use super::ClientConnection;
use crate::access::ClientAccess;
use crate::action::{Action, ActionSource, ConnectAction, PendingActions};
use crate::broker::Broker;
use crate::counters::LocalCounters;
use crate::listener::PeerIdentity;
use crate::outbox::{ConnectionEnd, Outbox, TouchedOutboxes};
use crate::session::{Attachment, Session};

/// A client that wants to connect.
pub(crate) struct ConnectRequest {
    pub broker: Arc<Broker>,
    pub outbox: Arc<Outbox>,
    pub peer: PeerIdentity,
}

/// Gives the client of a CONNECT its session. `None`: it is refused, and what the outbox has is the answer.
pub(crate) async fn accept(
    request: ConnectRequest,
    connect: Result<Connect, ConnectRefusal>,
) -> Option<ClientConnection> {
    let ConnectRequest { broker, outbox, peer } = request;
    let connect = match connect {
        Ok(connect) => connect,
        Err(refusal) => {
            refuse(&outbox, &refusal);
            return None;
        }
    };
    let terms = match terms(&broker, &connect, &peer).await {
        Ok(terms) => terms,
        Err(code) => {
            broker.counters.connected(code);
            refuse_with(&outbox, connect.version, code);
            return None;
        }
    };
    if !terms.fits_answer() {
        return None;
    }
    // Clients that fight over an id are slowed.
    let existing = broker.sessions.lock().get(terms.client.id.as_str()).cloned();
    let is_fight = existing.is_some_and(|session| session.lock().is_fought_over(clock::now()));
    if is_fight {
        tokio::time::sleep(FIGHT_PAUSE).await;
    }
    let number = broker.next_connection();
    let session = match session_of(&broker, &connect, &terms, (number, &outbox)).await {
        Ok(session) => session,
        Err(code) => {
            broker.counters.connected(code);
            refuse_with(&outbox, connect.version, code);
            return None;
        }
    };
    broker.counters.connected(ReasonCode::Success);
    Some(ClientConnection {
        revocation: revocation(&terms.access, &outbox),
        access: terms.access,
        counted: LocalCounters::default(),
        aliases: Vec::new(),
        touched: TouchedOutboxes::new(&broker.counters),
        context: DecodeContext {
            version: connect.version,
            sender: Sender::Client,
            strict_utf8: broker.settings.strict_utf8,
        },
        source: ActionSource {
            session,
            number,
            outbox,
            version: connect.version,
            pending: Arc::new(PendingActions::default()),
        },
        keep_alive: terms.keep_alive,
        has_left: false,
        broker,
    })
}

/// The session that a connection gets, once that is stored.
async fn session_of(
    broker: &Broker,
    connect: &Connect,
    terms: &SessionTerms,
    (number, outbox): (u64, &Arc<Outbox>),
) -> Result<Arc<Session>, ReasonCode> {
    let (reply, session) = oneshot::channel();
    broker.journal.push(Action::Connect(Box::new(ConnectAction {
        will: connect.will.as_ref().map(|will| stored_will(will, &terms.client.id)),
        client_id: terms.client.id.as_str().into(),
        user: terms.access.user.to_string(),
        clean_start: connect.clean_start,
        expiry: terms.expiry,
        connection: Attachment {
            number,
            outbox: outbox.clone(),
            version: connect.version,
            inflight_max: terms.inflight_max,
            packet_max: terms.packet_max,
            access: terms.access.clone(),
        },
        answer: terms.answer.clone(),
        reply,
    })));
    session.await.unwrap_or(Err(ReasonCode::ServerShuttingDown))
}

/// How long a client waits whose id others want, too.
const FIGHT_PAUSE: Duration = Duration::from_secs(1);

/// In the order of the specification: who it is, its client id, its will.
async fn terms(broker: &Broker, connect: &Connect, peer: &PeerIdentity) -> Result<SessionTerms, ReasonCode> {
    if connect.has_authentication_method {
        return Err(ReasonCode::BadAuthenticationMethod);
    }
    let client_id = connect.client_id.as_deref().unwrap_or_default();
    let rules = broker.rules.clone();
    let mut access = ClientAccess::of(&broker.logins, &broker.settings, rules, connect, peer, client_id).await?;
    if !access.is_allowed_anything() {
        return Err(ReasonCode::NotAuthorized);
    }
    let client = ClientIdentity::of(connect)?;
    access.set_client_id(&client.id);
    check_will(broker, connect, &access)?;
    Ok(SessionTerms::new(broker, connect, client, Arc::new(access)))
}

/// Ends the connection when its login is revoked.
fn revocation(access: &ClientAccess, outbox: &Arc<Outbox>) -> Option<AbortOnDropHandle<()>> {
    let (ended, outbox) = (access.ended.clone()?, Arc::downgrade(outbox));
    Some(AbortOnDropHandle::new(tokio::spawn(async move {
        ended.cancelled().await;
        if let Some(outbox) = outbox.upgrade() {
            let sentence = "the login of this client was removed".to_owned();
            outbox.end(ConnectionEnd::Code(ReasonCode::NotAuthorized, sentence));
        }
    })))
}

/// What a client and the broker agree on.
struct SessionTerms {
    access: Arc<ClientAccess>,
    client: ClientIdentity,
    /// Seconds that the session outlives its connection.
    expiry: u32,
    /// Seconds.
    keep_alive: u16,
    inflight_max: usize,
    /// Bytes of the largest packet that the client takes.
    packet_max: usize,
    /// The properties of the CONNACK of 5.0.
    answer: Vec<u8>,
}

impl SessionTerms {
    fn new(broker: &Broker, connect: &Connect, client: ClientIdentity, access: Arc<ClientAccess>) -> SessionTerms {
        let settings = &broker.settings;
        let is_5 = connect.version.is_5();
        let expiry = match (is_5, connect.clean_start) {
            (true, _) => connect.session_expiry.min(settings.max_session_expiry),
            (false, true) => 0,
            (false, false) => settings.v3_session_expiry,
        };
        let keep_alive = match settings.max_keep_alive {
            cap if is_5 && cap > 0 && (connect.keep_alive == 0 || connect.keep_alive > cap) => cap,
            _ => connect.keep_alive,
        };
        let receive_maximum = if is_5 {
            connect.receive_maximum
        } else {
            settings.max_inflight
        };
        SessionTerms {
            access,
            answer: answer(broker, connect, &client, expiry, keep_alive),
            client,
            expiry,
            keep_alive,
            inflight_max: receive_maximum.min(settings.max_inflight).into(),
            packet_max: connect.maximum_packet_size.map_or(usize::MAX, |max| max as usize),
        }
    }

    /// Whether the client takes its CONNACK.
    fn fits_answer(&self) -> bool {
        let mut connack = Vec::new();
        encode::connack(&mut connack, true, ReasonCode::Success, &self.answer);
        connack.len() <= self.packet_max
    }
}

fn stored_will(will: &Will, client_id: &str) -> StoredWill {
    let mut expiry = None;
    let mut properties = Vec::new();
    for property in will.properties.iter() {
        match property.id {
            PropertyId::MessageExpiryInterval => expiry = Some(property.value.number()),
            PropertyId::WillDelayInterval => {}
            _ => properties.extend_from_slice(property.bytes),
        }
    }
    let message = Message::new(&MessageParts {
        topic: &will.topic,
        qos: will.qos,
        retain: will.retain,
        publisher: client_id,
        expires: None,
        properties: &properties,
        payload: &will.payload,
    });
    StoredWill {
        message: message.record().to_vec(),
        delay: will.delay,
        expiry,
    }
}

struct ClientIdentity {
    id: String,
    is_assigned: bool,
}

/// Random bits of an assigned client id, and its letters.
const ASSIGNED_LEN: usize = 22;
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

impl ClientIdentity {
    fn of(connect: &Connect) -> Result<ClientIdentity, ReasonCode> {
        let id = connect.client_id.clone().map_err(|error| error.code)?;
        if !id.is_empty() {
            return Ok(ClientIdentity { id, is_assigned: false });
        }
        // [MQTT-3.1.3-8] of 3.1.1
        if !connect.version.is_5() && !connect.clean_start {
            return Err(ReasonCode::ClientIdentifierNotValid);
        }
        let mut bytes = [0; 16];
        random::fill(&mut bytes).map_err(|_| ReasonCode::ServerUnavailable)?;
        let mut rest = u128::from_be_bytes(bytes);
        let letters = std::iter::repeat_with(|| {
            let letter = BASE62.get((rest % 62) as usize).copied().unwrap_or(b'0');
            rest /= 62;
            char::from(letter)
        });
        Ok(ClientIdentity {
            id: "auto-".chars().chain(letters.take(ASSIGNED_LEN)).collect(),
            is_assigned: true,
        })
    }
}

fn check_will(broker: &Broker, connect: &Connect, access: &ClientAccess) -> Result<(), ReasonCode> {
    let Some(will) = &connect.will else {
        return Ok(());
    };
    if will.topic.starts_with('$') {
        return Err(ReasonCode::TopicNameInvalid);
    }
    if will.qos > broker.settings.max_qos {
        return Err(ReasonCode::QoSNotSupported);
    }
    if will.retain && !broker.settings.retain_available {
        return Err(ReasonCode::RetainNotSupported);
    }
    match access.may_publish(&will.topic) {
        true => Ok(()),
        false => Err(ReasonCode::NotAuthorized),
    }
}

/// The properties of the CONNACK of 5.0.
fn answer(broker: &Broker, connect: &Connect, client: &ClientIdentity, expiry: u32, keep_alive: u16) -> Vec<u8> {
    let settings = &broker.settings;
    let mut properties = PropertyWriter::default();
    if !connect.version.is_5() {
        return Vec::new();
    }
    if expiry != connect.session_expiry {
        properties.number(PropertyId::SessionExpiryInterval, expiry);
    }
    properties.two(PropertyId::ReceiveMaximum, settings.receive_maximum);
    if settings.max_qos.number() < 2 {
        properties.byte(PropertyId::MaximumQoS, settings.max_qos.number());
    }
    if !settings.retain_available {
        properties.byte(PropertyId::RetainAvailable, 0);
    }
    properties.number(PropertyId::MaximumPacketSize, settings.max_packet_size as u32);
    if client.is_assigned {
        properties.text(PropertyId::AssignedClientIdentifier, &client.id);
    }
    properties.two(PropertyId::TopicAliasMaximum, settings.topic_alias_max);
    if keep_alive != connect.keep_alive {
        properties.two(PropertyId::ServerKeepAlive, keep_alive);
    }
    if let Some(information) = settings
        .response_information
        .as_ref()
        .filter(|_| connect.request_response_information)
    {
        let user = connect.user_name.as_deref().unwrap_or_default();
        let information = information.replace("%c", &client.id).replace("%u", user);
        properties.text(PropertyId::ResponseInformation, &information);
    }
    properties.user("durability", settings.durability.name());
    properties.bytes().to_vec()
}

fn refuse(outbox: &Outbox, refusal: &ConnectRefusal) {
    match refusal {
        ConnectRefusal::Silent(_) => {}
        ConnectRefusal::Level(level) if *level < 5 || level & 0x80 != 0 => {
            outbox.append(|out| encode::connack_v3(out, false, 1));
        }
        ConnectRefusal::Level(_) => refuse_with(outbox, ProtocolVersion::V5, ReasonCode::UnsupportedProtocolVersion),
        ConnectRefusal::Code(version, error) => refuse_with(outbox, *version, error.code),
    }
}

fn refuse_with(outbox: &Outbox, version: ProtocolVersion, code: ReasonCode) {
    match (version.is_5(), code.connack_v3()) {
        (true, _) => outbox.append(|out| encode::connack(out, false, code, &[])),
        (false, Some(code)) => outbox.append(|out| encode::connack_v3(out, false, code)),
        (false, None) => false,
    };
}
