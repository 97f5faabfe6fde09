//! The task of a publisher: connects again and again, sends what waits, and settles what the broker answers.
//!
//! A message that the broker refuses for now is sent again, before anything that was not sent yet: nothing new leaves until
//! all that is in flight has an answer. What was in flight with it and was accepted may so have overtaken it.
//!
//! A broker may also end the connection because of a message that it never takes, without saying which. Then one message at a
//! time is sent until it is found, and that one is refused for good.

use std::collections::VecDeque;
use std::time::Duration;

use thalweg_flow::{Backoff, Component, Connection, Rejection};
use thalweg_kit::clock;
use thalweg_mqtt_wire::{Packet, Properties, QoS, ReasonCode};
use thalweg_record::DropReason;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::accounts::{MessageKey, QueuedPublish, WriteAccounts};
use super::{LAST_PACKETS, PublisherOptions, PublisherRequest};
use crate::dial::{Dialer, Dialled, refused};
use crate::input::PAUSES;
use crate::link::Link;
use crate::outgoing::{Outgoing, Settled};

/// A connection that lasted this long was no failure.
const STABLE: Duration = Duration::from_secs(5);

pub struct PublisherTask {
    dialer: Dialer,
    options: PublisherOptions,
    component: Component,
    connection: Connection,
    requests: mpsc::UnboundedReceiver<PublisherRequest>,
    /// What was not sent yet, in order.
    queue: VecDeque<QueuedPublish>,
    outgoing: Outgoing<MessageKey>,
    /// QoS 0 messages until they have left, with the count of bytes up to their end.
    leaving: VecDeque<(u64, QueuedPublish)>,
    accounts: WriteAccounts,
    /// What the broker refused for now.
    failed: Vec<QueuedPublish>,
    /// It has refused messages for now, and nothing since has shown that it takes them.
    is_refusing: bool,
    retry: Option<Instant>,
    retry_pauses: Backoff,
    /// One message at a time is sent up to this place in the order.
    single_until: Option<u64>,
    closing: Option<oneshot::Sender<()>>,
}

/// Why a connection is not used any more.
enum ServeEnd {
    Closed,
    Lost(String),
}

impl From<String> for ServeEnd {
    fn from(why: String) -> ServeEnd {
        ServeEnd::Lost(why)
    }
}

/// What the broker of a connection takes.
struct BrokerLimits {
    session_present: bool,
    window: usize,
    retain_available: bool,
    packet_bytes_max: usize,
}

impl PublisherTask {
    pub fn new(
        dialer: Dialer,
        options: PublisherOptions,
        component: Component,
        connection: Connection,
        requests: mpsc::UnboundedReceiver<PublisherRequest>,
    ) -> PublisherTask {
        PublisherTask {
            dialer,
            options,
            component,
            connection,
            requests,
            queue: VecDeque::new(),
            outgoing: Outgoing::default(),
            leaving: VecDeque::new(),
            accounts: WriteAccounts::default(),
            failed: Vec::new(),
            is_refusing: false,
            retry: None,
            retry_pauses: PAUSES,
            single_until: None,
            closing: None,
        }
    }

    /// Ends when the output is closed or dropped.
    pub async fn run(mut self, first: Dialled) {
        let mut pauses = PAUSES;
        let mut dialled = Some(first);
        while let Some(connected) = dialled {
            let (url, since) = (connected.url.clone(), clock::now());
            match self.serve(connected).await {
                ServeEnd::Closed => break,
                ServeEnd::Lost(why) => self.connection.lost(&format!("{url}: {why}")),
            }
            if since.elapsed() >= STABLE {
                pauses.reset();
            }
            dialled = self.reconnect(&mut pauses).await;
        }
        if let Some(closing) = self.closing.take() {
            let _ = closing.send(());
        }
    }

    /// `None`: the output was closed or dropped meanwhile.
    async fn reconnect(&mut self, pauses: &mut Backoff) -> Option<Dialled> {
        let session = self.options.session(false);
        loop {
            let pause = pauses.next_pause();
            let options = self.options;
            let dialer = &mut self.dialer;
            let attempt = async {
                sleep(pause).await;
                let dialled = dialer.dial(session).await?;
                if let Err(error) = options.check(&dialled) {
                    dialer.avoid_this_one();
                    return Err(error);
                }
                Ok(dialled)
            };
            tokio::pin!(attempt);
            let result: Result<Dialled, String> = loop {
                tokio::select! {
                    result = &mut attempt => break result,
                    request = self.requests.recv() => match request {
                        Some(PublisherRequest::Write(write)) => self.queue.extend(self.accounts.begin(write)),
                        // All writes have ended, or are given up.
                        Some(PublisherRequest::Close(reply)) => {
                            self.closing = Some(reply);
                            return None;
                        }
                        None => return None,
                    },
                }
            };
            match result {
                Ok(dialled) => return Some(dialled),
                Err(why) => self.connection.failed(&why),
            }
        }
    }

    async fn serve(&mut self, dialled: Dialled) -> ServeEnd {
        let limits = BrokerLimits {
            session_present: dialled.session_present,
            window: usize::from(self.options.window.min(dialled.receive_maximum)),
            retain_available: dialled.retain_available,
            packet_bytes_max: dialled.packet_bytes_max,
        };
        let mut link = dialled.link;
        self.outgoing.begin(link.version(), limits.session_present);
        // What has not left the other connection for sure leaves again.
        while let Some((_, message)) = self.leaving.pop_back() {
            self.queue.push_front(message);
        }
        if self.options.needs_5 && !link.version().is_5() {
            self.component.warn_limited("version", 1, || {
                format!(
                    "{} speaks MQTT 3.1.1 only: messages leave without content_type, user_properties and message_expiry",
                    dialled.url
                )
            });
        }
        self.connection.up();
        let ended = self.work(&mut link, &limits).await;
        match &ended {
            Ok(()) => drop(timeout(LAST_PACKETS, link.disconnect(true)).await),
            Err(_) => drop(timeout(LAST_PACKETS, link.flush_and_close()).await),
        }
        ended.err().unwrap_or(ServeEnd::Closed)
    }

    /// Returns `Ok` when the output is closed or dropped.
    async fn work(&mut self, link: &mut Link, limits: &BrokerLimits) -> Result<(), ServeEnd> {
        let mut answered = clock::tokio_now();
        loop {
            while let Some(packet) = link.buffered()? {
                answered = clock::tokio_now();
                self.receive(link, packet)?;
            }
            self.retry_failed();
            let was_idle = self.outgoing.open() == 0;
            self.fill(link, limits);
            self.settle_left(link);
            if was_idle {
                answered = clock::tokio_now();
            }
            if self.closing.is_some() && self.accounts.is_empty() {
                return Ok(());
            }
            let retry = self.retry;
            tokio::select! {
                biased;
                progress = link.progress(true) => progress?,
                request = self.requests.recv(), if self.closing.is_none() => match request {
                    Some(PublisherRequest::Write(write)) => self.queue.extend(self.accounts.begin(write)),
                    Some(PublisherRequest::Close(reply)) => self.closing = Some(reply),
                    None => return Ok(()),
                },
                () = sleep_until(retry.unwrap_or(answered)), if retry.is_some() => self.retry = None,
                () = sleep_until(answered + self.options.write_timeout), if self.outgoing.open() > 0 => {
                    let seconds = self.options.write_timeout.as_secs_f64();
                    let why = format!("the broker has acknowledged nothing for {seconds} s (write_timeout)");
                    return Err(ServeEnd::Lost(why));
                }
            }
        }
    }

    /// Sends what may be sent now.
    fn fill(&mut self, link: &mut Link, limits: &BrokerLimits) {
        let next = self.queue.front().map(|next| next.key.order);
        if self.outgoing.unsettled() == 0
            && self
                .single_until
                .is_some_and(|last| next.is_none_or(|next| next > last))
        {
            self.single_until = None;
        }
        let window = if self.single_until.is_some() { 1 } else { limits.window };
        while link.has_room() {
            if !self.outgoing.is_resent() {
                if self.outgoing.open() >= window {
                    return;
                }
                link.put(|out| {
                    self.outgoing.resend(limits.session_present, out);
                });
                continue;
            }
            if self.retry.is_some() || !self.failed.is_empty() {
                return;
            }
            let Some(next) = self.queue.front() else { return };
            if next.publish.qos != QoS::AtMostOnce && !self.outgoing.has_room(window) {
                return;
            }
            let is_taken = limits.takes(&next.publish, link);
            let Some(next) = self.queue.pop_front() else { return };
            match is_taken {
                Err((reason, why)) => {
                    let rejection = |index| Rejection::permanent(index, reason, why);
                    self.accounts.end(next.key, Some(rejection));
                }
                Ok(()) if next.publish.qos == QoS::AtMostOnce => {
                    let version = link.version();
                    let count = link.put(|out| next.publish.write(0, false, version, out));
                    self.leaving.push_back((count, next));
                }
                Ok(()) => {
                    link.put(|out| self.outgoing.send(next.key, next.publish, out));
                }
            }
        }
    }

    /// QoS 0 messages end when they have left.
    fn settle_left(&mut self, link: &Link) {
        while let Some((count, _)) = self.leaving.front()
            && link.has_left(*count)
            && let Some((_, message)) = self.leaving.pop_front()
        {
            self.accounts.end(message.key, None::<fn(usize) -> Rejection>);
        }
    }

    fn receive(&mut self, link: &mut Link, packet: Packet) -> Result<(), ServeEnd> {
        let (settled, properties) = match packet {
            Packet::PubAck(ack) => (self.outgoing.puback(ack.packet_id, ack.reason), ack.properties),
            Packet::PubComp(ack) => (self.outgoing.pubcomp(ack.packet_id), ack.properties),
            Packet::PubRec(ack) => {
                let mut settled = None;
                link.put(|out| settled = self.outgoing.pubrec(ack.packet_id, ack.reason, out));
                (settled, ack.properties)
            }
            Packet::PingResp => return Ok(()),
            Packet::Disconnect(disconnect) => {
                self.look_for_culprit(disconnect.reason, &disconnect.properties);
                let what = "the broker ends the connection";
                return Err(refused(what, disconnect.reason, &disconnect.properties).into());
            }
            _ => return Err("the broker sent a packet that nothing asked for".to_owned().into()),
        };
        if let Some(settled) = settled {
            self.settle(settled, &properties);
        }
        Ok(())
    }

    fn settle(&mut self, settled: Settled<MessageKey>, properties: &Properties) {
        let Settled { key, publish, reason } = settled;
        if !reason.is_failure() {
            if self.is_refusing && self.failed.is_empty() {
                self.is_refusing = false;
                self.connection.up();
                self.retry_pauses.reset();
            }
            self.accounts.end(key, None::<fn(usize) -> Rejection>);
            return;
        }
        let why = refused(
            &format!("the broker refuses a message of {}", publish.topic),
            reason,
            properties,
        );
        match permanent(reason) {
            Some(reason) => {
                let rejection = |index| Rejection::permanent(index, reason, why);
                self.accounts.end(key, Some(rejection));
            }
            None => {
                if self.failed.is_empty() {
                    self.is_refusing = true;
                    self.connection.lost(&why);
                }
                self.failed.push(QueuedPublish { key, publish });
            }
        }
    }

    /// The broker has ended the connection, maybe because of a message.
    fn look_for_culprit(&mut self, reason: ReasonCode, properties: &Properties) {
        let is_of_a_message = matches!(
            reason,
            ReasonCode::TopicNameInvalid | ReasonCode::PacketTooLarge | ReasonCode::PayloadFormatInvalid
        );
        if !is_of_a_message {
            return;
        }
        match self.outgoing.only_open() {
            Some(packet_id) => {
                if let Some(settled) = self.outgoing.refuse(packet_id, reason) {
                    self.settle(settled, properties);
                }
            }
            None => self.single_until = self.outgoing.newest().map(|key| key.order),
        }
    }

    /// When nothing is in flight any more, what the broker refused for now waits in front of everything else.
    fn retry_failed(&mut self) {
        if self.failed.is_empty() || self.outgoing.unsettled() > 0 {
            return;
        }
        self.failed.sort_unstable_by_key(|message| message.key);
        while let Some(message) = self.failed.pop() {
            self.queue.push_front(message);
        }
        self.retry = Some(clock::tokio_now() + self.retry_pauses.next_pause());
    }
}

impl BrokerLimits {
    /// Why this broker never takes a message.
    fn takes(&self, publish: &crate::outgoing::OutgoingPublish, link: &Link) -> Result<(), (DropReason, String)> {
        let (len, max) = (publish.packet_len(link.version()), self.packet_bytes_max);
        if len > max {
            let why = format!("a packet of {len} bytes exceeds what the broker takes ({max})");
            return Err((DropReason::TooLarge, why));
        }
        match publish.retain && !self.retain_available {
            true => Err((
                DropReason::OutputRejected,
                "the broker keeps no retained messages".to_owned(),
            )),
            false => Ok(()),
        }
    }
}

/// The codes after which no further attempt succeeds.
fn permanent(reason: ReasonCode) -> Option<DropReason> {
    match reason {
        ReasonCode::NotAuthorized => Some(DropReason::OutputRejected),
        ReasonCode::TopicNameInvalid => Some(DropReason::InvalidTopic),
        ReasonCode::PacketTooLarge => Some(DropReason::TooLarge),
        ReasonCode::PayloadFormatInvalid => Some(DropReason::InvalidPayload),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
