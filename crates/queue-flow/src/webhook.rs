//! `dlq.webhook` posts each dead letter to a URL, in the form of the dead letter query.
//!
//! A queue announces a letter and goes on. Up to [`WAITING_MAX`] letters of a queue wait here, by offset only; more are
//! dropped and counted. Each queue posts its letters one after another, so a URL that hangs delays no other queue.
//! Nothing is stored: letters that still wait when the process stops are never posted. The letters themselves stay in
//! `dlq.<queue>`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use parking_lot::Mutex;
use smol_str::SmolStr;
use thalweg_http::tls_client::tls_config;
use thalweg_kit::blocking;
use thalweg_log::Offset;
use thalweg_queue::{DeadLetterListener, Message, Queue};
use thalweg_telemetry::{IntCounterVec, LogDecision, LogLimiter, MetricDoc, MetricFamilies, Metrics, metric_group};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};

const WAITING_MAX: usize = 1000;
const TIMEOUT: Duration = Duration::from_secs(10);
/// Pauses before the second and the third attempt, which is the last.
const BACKOFF: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// Concurrent posts of all queues. Each takes a thread, and disk reads need some, too.
const POSTS_MAX: usize = 32;
/// A queue task without letters ends after this time.
const IDLE: Duration = Duration::from_secs(60);

/// Formats a message of a queue partition like the dead letter query; the implementer of that query provides it.
pub type DeadLetterText = fn(&Queue, u32, &Message) -> String;

/// All webhooks of the process.
pub struct Webhooks {
    me: Weak<Webhooks>,
    runtime: Handle,
    client: Arc<Client>,
    text: DeadLetterText,
    meters: WebhookMetrics,
    posts: Semaphore,
    queues: Mutex<HashMap<SmolStr, mpsc::Sender<Letter>>>,
    waiting: AtomicU64,
    log: LogLimiter,
}

struct Letter {
    queue: Arc<Queue>,
    offset: Offset,
}

/// Why a letter was not posted although no server refused it.
#[derive(Clone, Copy)]
enum WebhookDropCause {
    /// Too many letters wait.
    Overflow,
    /// The letter was redriven or deleted before its turn, or the webhook was removed.
    Gone,
}

impl Webhooks {
    /// Must be called on a tokio runtime.
    pub fn new(metrics: &Metrics, text: DeadLetterText) -> Arc<Webhooks> {
        let meters = WebhookMetrics::new();
        let told = meters.clone();
        metrics.tell(&SENT, move |to| told.tell(to));
        Arc::new_cyclic(|me| Webhooks {
            me: me.clone(),
            runtime: Handle::current(),
            client: Arc::default(),
            text,
            meters,
            posts: Semaphore::new(POSTS_MAX),
            queues: Mutex::default(),
            waiting: AtomicU64::new(0),
            log: LogLimiter::default(),
        })
    }

    /// Logs how many letters will not be posted.
    pub fn stop(&self) {
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting > 0 {
            tracing::warn!(
                waiting,
                "the process stops before these dead letters were posted to dlq.webhook; they stay in dlq.<queue>"
            );
        }
    }

    fn start(&self, name: SmolStr) -> mpsc::Sender<Letter> {
        let (sender, mut letters) = mpsc::channel::<Letter>(WAITING_MAX);
        let me = self.me.clone();
        self.runtime.spawn(async move {
            loop {
                let next = timeout(IDLE, letters.recv()).await;
                let Some(webhooks) = me.upgrade() else { return };
                match next {
                    Ok(Some(letter)) => webhooks.post(letter).await,
                    Ok(None) => return,
                    Err(_) => {
                        // Checked under the lock under which letters are added.
                        let mut queues = webhooks.queues.lock();
                        if letters.is_empty() {
                            queues.remove(&name);
                            return;
                        }
                    }
                }
            }
        });
        sender
    }

    /// Posts a letter in up to three attempts and counts the outcome.
    async fn post(&self, letter: Letter) {
        let name = letter.queue.name().clone();
        match self.deliver(&letter).await {
            Ok(true) => self.meters.sent.with_label_values(&[name.as_str()]).inc(),
            Ok(false) => self.meters.dropped(&name, WebhookDropCause::Gone),
            Err(error) => {
                self.meters.failed.with_label_values(&[name.as_str()]).inc();
                if let LogDecision::Log { held_back } = self.log.check("failed", 1) {
                    let letter = letter.offset;
                    tracing::warn!(
                        queue = %name, letter, held_back,
                        "dlq.webhook did not accept a dead letter: {error:#}; it stays in dlq.{name}"
                    );
                }
            }
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns false if there is nothing left to post.
    async fn deliver(&self, letter: &Letter) -> Result<bool> {
        let mut backoff = BACKOFF.into_iter();
        loop {
            let url = letter.queue.settings().dlq.webhook.clone();
            let found = letter
                .queue
                .dead_letter(letter.offset)
                .await
                .context("it cannot be read")?;
            let (Some(url), Some((dead, message))) = (url, found) else {
                return Ok(false);
            };
            let body = (self.text)(&dead, 0, &message);
            let permit = self.posts.acquire().await.context("no more posts")?;
            let client = self.client.clone();
            let posted = blocking::spawn(move || client.post(&url, &body)).await;
            drop(permit);
            match (posted.unwrap_or_else(|panic| Err(anyhow!("{panic}"))), backoff.next()) {
                (Ok(()), _) => return Ok(true),
                (Err(_), Some(wait)) => sleep(wait).await,
                (Err(error), None) => return Err(error.context("the last of 3 tries")),
            }
        }
    }
}

impl DeadLetterListener for Webhooks {
    fn dead_letter(&self, queue: &Arc<Queue>, offset: Offset) {
        self.meters.know(queue);
        let name = queue.name();
        let letter = Letter {
            queue: queue.clone(),
            offset,
        };
        let mut queues = self.queues.lock();
        let sender = queues.entry(name.clone()).or_insert_with(|| self.start(name.clone()));
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if sender.try_send(letter).is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.meters.dropped(name, WebhookDropCause::Overflow);
            if let LogDecision::Log { held_back } = self.log.check("overflow", 1) {
                tracing::warn!(queue = %name, held_back, "dlq.webhook is too slow: {WAITING_MAX} are waiting, and this dead letter is not posted");
            }
        }
    }
}

/// Created on first use, because trusted certificates are read from disk.
#[derive(Default)]
struct Client {
    plain: OnceLock<ureq::Agent>,
    encrypted: OnceLock<ureq::Agent>,
}

impl Client {
    fn post(&self, url: &str, body: &str) -> Result<()> {
        let config = || {
            ureq::Agent::config_builder()
                .http_status_as_error(false)
                .max_redirects(0)
                .max_redirects_will_error(false)
                .user_agent(concat!("thalweg/", env!("CARGO_PKG_VERSION")))
                .timeout_global(Some(TIMEOUT))
        };
        let agent = if url.starts_with("https:") {
            match self.encrypted.get() {
                Some(agent) => agent,
                None => {
                    let made = config().tls_config(tls_config()?).build().into();
                    self.encrypted.get_or_init(|| made)
                }
            }
        } else {
            self.plain.get_or_init(|| config().build().into())
        };
        let response = agent.post(url).header("content-type", "application/json").send(body);
        let status = response.map_err(|error| no_answer(url, error))?.status();
        ensure!(
            status.is_success(),
            "{url} answered {status}; redirects are not followed"
        );
        Ok(())
    }
}

fn no_answer(url: &str, error: ureq::Error) -> anyhow::Error {
    let no_trust = match &error {
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) => true,
        ureq::Error::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
        _ => false,
    };
    let what = match no_trust && url.starts_with("https:") {
        true => {
            "is not trusted; have its certificate signed by an authority of this machine for this host, or name a file of \
                authorities with SSL_CERT_FILE, and start again"
        }
        false => "cannot be reached",
    };
    anyhow::Error::new(error).context(format!("{url} {what}"))
}

metric_group! {
    pub(crate) WEBHOOK_METRICS("Webhooks of dead letters", &[]) {
        SENT = MetricDoc::counter("thalweg_queue_webhook_sent_total", "Dead letters that dlq.webhook accepted.")
            .with_labels(&["queue"]);
        FAILED = MetricDoc::counter(
            "thalweg_queue_webhook_failed_total",
            "Dead letters that dlq.webhook did not accept in 3 attempts.",
        )
        .with_labels(&["queue"]);
        DROPPED = MetricDoc::counter(
            "thalweg_queue_webhook_dropped_total",
            "Dead letters that were not posted, because too many were waiting or they were gone before their turn.",
        )
        .with_labels(&["queue", "reason"]);
    }
}

/// By queue; the metrics of deleted queues are removed.
#[derive(Clone)]
struct WebhookMetrics {
    sent: IntCounterVec,
    failed: IntCounterVec,
    dropped: IntCounterVec,
    known: Arc<Mutex<HashMap<SmolStr, Weak<Queue>>>>,
}

impl WebhookMetrics {
    fn new() -> WebhookMetrics {
        WebhookMetrics {
            sent: SENT.counters(),
            failed: FAILED.counters(),
            dropped: DROPPED.counters(),
            known: Arc::default(),
        }
    }

    fn know(&self, queue: &Arc<Queue>) {
        let mut known = self.known.lock();
        if !known.contains_key(queue.name()) {
            known.insert(queue.name().clone(), Arc::downgrade(queue));
        }
    }

    fn dropped(&self, queue: &str, why: WebhookDropCause) {
        self.dropped.with_label_values(&[queue, why.name()]).inc();
    }

    fn tell(&self, to: &mut MetricFamilies) {
        self.known.lock().retain(|name, queue| {
            let there = queue.upgrade().is_some_and(|queue| !queue.is_removed());
            if !there {
                let _ = self.sent.remove_label_values(&[name]);
                let _ = self.failed.remove_label_values(&[name]);
                for why in WebhookDropCause::ALL {
                    let _ = self.dropped.remove_label_values(&[name, why.name()]);
                }
            }
            there
        });
        for counters in [&self.sent, &self.failed, &self.dropped] {
            to.counters(counters);
        }
    }
}

impl WebhookDropCause {
    const ALL: [WebhookDropCause; 2] = [WebhookDropCause::Overflow, WebhookDropCause::Gone];

    fn name(self) -> &'static str {
        match self {
            WebhookDropCause::Overflow => "overflow",
            WebhookDropCause::Gone => "gone",
        }
    }
}

#[cfg(test)]
mod tests;
