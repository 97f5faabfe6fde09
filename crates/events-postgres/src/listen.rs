//! Learns what the other servers did: from notifications, and from a poll each second in case one was lost. `m`
//! namespace, last position, change, cleared: there is something to read. `d` namespace: it was deleted. `t` namespace,
//! token: the token was revoked. `c` namespace: its tokens changed.

use std::sync::Weak;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_postgres::{AsyncMessage, Client};

use crate::connection_pool::PAUSES;
use crate::database::{ConnectAttempt, ConnectError, ConnectedClient, Database};
use crate::failure::reason;
use crate::store::StoreCore;

const POLL: Duration = Duration::from_secs(1);
/// The timeout of a poll, after which the connection is abandoned. The server's own timeouts are shorter, so reaching
/// this one means that the server is silent, not that a lock is busy.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const LISTEN: &str = "SET search_path = thalweg_events, pg_catalog; SET lock_timeout = '8s'; SET statement_timeout = '9s'; \
     LISTEN thalweg_events";
/// Identifies the server process: another server, or the same one after a restart, returns another value.
const SERVER: &str = "SELECT concat_ws(' ', pg_postmaster_start_time(), inet_server_addr(), inet_server_port())";

type PostgresError = tokio_postgres::Error;

/// Why listening ended.
enum ListenError {
    Ended(String),
    /// The server did not answer a query.
    Silent(String),
}

/// The listening session; its connection ends with it.
struct ListenSession {
    client: Client,
    told: mpsc::UnboundedReceiver<AsyncMessage>,
    /// Identifies the server: several may share one address.
    server: String,
    driver: AbortHandle,
}

impl Drop for ListenSession {
    fn drop(&mut self) {
        // Otherwise the driver would wait for pending answers and occupy its slot at the server for that long.
        self.driver.abort();
    }
}

/// Runs until the store is dropped.
pub(crate) async fn listen(core: Weak<StoreCore>) {
    let mut pauses = PAUSES;
    let mut was_lost = false;
    // The server of the last session; empty before the first.
    let mut server = String::new();
    // Whether that server did not answer since then.
    let mut is_silent = false;
    loop {
        let Some(strong) = core.upgrade() else { return };
        let database = strong.links.database.clone();
        drop(strong);
        let (connected, was_silent) = connect(&database).await;
        let is_given_up = match &connected {
            Ok(listening) => is_silent && (was_silent || listening.server != server),
            // Nobody lets it in, and a host is silent: pending requests may be at that one.
            Err(_) => was_silent,
        };
        if is_given_up {
            let Some(strong) = core.upgrade() else { return };
            strong.links.give_up();
        }
        let was_connected = connected.is_ok();
        let lost = match connected {
            Ok(mut listening) => {
                server = std::mem::take(&mut listening.server);
                pauses.reset();
                if was_lost {
                    tracing::info!(database = database.place, "the database is reachable again");
                }
                let lost = follow(&core, &mut listening).await;
                is_silent = matches!(lost, Some(ListenError::Silent(_)));
                lost
            }
            Err(why) => {
                is_silent |= was_silent || matches!(why, ConnectError::Silent(_));
                Some(ListenError::Ended(format!(
                    "cannot reach the database at {}: {why}",
                    database.place
                )))
            }
        };
        let (Some(strong), Some(ListenError::Ended(why) | ListenError::Silent(why))) = (core.upgrade(), lost) else {
            return;
        };
        if !was_lost || was_connected {
            tracing::warn!("{why}; requests fail until it answers");
        }
        was_lost = true;
        strong.lost(&why);
        drop(strong);
        tokio::time::sleep(pauses.next_pause()).await;
    }
}

/// Also returns whether a host did not respond.
async fn connect(database: &Database) -> (Result<ListenSession, ConnectError>, bool) {
    let ConnectAttempt { connected, was_silent } = database.connect().await;
    let listening = match connected {
        Ok(connected) => begin(connected).await,
        Err(why) => Err(why),
    };
    (listening, was_silent)
}

async fn begin((client, mut connection): ConnectedClient) -> Result<ListenSession, ConnectError> {
    let (tell, told) = mpsc::unbounded_channel();
    let driver = tokio::spawn(async move {
        let mut messages = futures::stream::poll_fn(move |context| connection.poll_message(context));
        while let Some(Ok(message)) = futures::StreamExt::next(&mut messages).await {
            if tell.send(message).is_err() {
                return;
            }
        }
    });
    let mut listening = ListenSession {
        client,
        told,
        server: String::new(),
        driver: driver.abort_handle(),
    };
    let client = &listening.client;
    let asked = async {
        client.batch_execute(LISTEN).await?;
        client.query_one(SERVER, &[]).await?.try_get::<_, String>(0)
    };
    let asked = tokio::time::timeout(ANSWER_MAX, asked).await;
    let asked = asked.map_err(|_| ConnectError::Silent(ANSWER_MAX))?;
    listening.server = asked.map_err(ConnectError::Failed)?;
    Ok(listening)
}

/// Returns why it ended, or `None` if the store was dropped.
async fn follow(core: &Weak<StoreCore>, listening: &mut ListenSession) -> Option<ListenError> {
    // Earlier notifications may have been lost.
    core.upgrade()?.forget_all_tokens();
    let mut tick = tokio::time::interval(POLL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            message = listening.told.recv() => match message {
                Some(AsyncMessage::Notification(told)) => core.upgrade()?.told(told.payload()),
                Some(_) => {}
                None => {
                    let place = core.upgrade()?.links.place().to_owned();
                    return Some(ListenError::Ended(format!("the connection to the database at {place} is lost")));
                }
            },
            _ = tick.tick() => {
                let core = core.upgrade()?;
                let place = core.links.place();
                match tokio::time::timeout(ANSWER_MAX, look(&core, &listening.client)).await {
                    Ok(Ok(())) => {
                        core.links.reached();
                        core.heard();
                    }
                    Ok(Err(error)) => {
                        return Some(ListenError::Ended(format!("the database at {place}: {}", reason(&error))));
                    }
                    Err(_) => return Some(ListenError::Silent(format!("the database at {place} does not answer"))),
                }
            }
        }
    }
}

/// Polls the rows of the open namespaces.
async fn look(core: &StoreCore, client: &Client) -> Result<(), PostgresError> {
    let open = core.open_ids();
    let sql = "SELECT id, last_global, change, cleared, tokens_change FROM namespaces WHERE id = ANY($1)";
    let rows = client.query(sql, &[&open]).await?;
    let mut found = std::collections::HashSet::new();
    for row in &rows {
        let id: i64 = row.try_get(0)?;
        found.insert(id);
        core.looked(id, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?, row.try_get(4)?);
    }
    for id in open.into_iter().filter(|id| !found.contains(id)) {
        core.close(id);
    }
    let granted: Vec<i64> = core.grants.lock().keys().copied().collect();
    if granted.is_empty() {
        return Ok(());
    }
    let rows = client
        .query("SELECT number FROM tokens WHERE number = ANY($1)", &[&granted])
        .await?;
    let mut valid = std::collections::HashSet::new();
    for row in &rows {
        valid.insert(row.try_get::<_, i64>(0)?);
    }
    let mut grants = core.grants.lock();
    for number in granted.iter().filter(|number| !valid.contains(number)) {
        grants.remove(number);
    }
    // Nothing uses these grants any more.
    grants.retain(|_, granted| granted.valid.receiver_count() > 0);
    Ok(())
}

impl StoreCore {
    fn told(&self, payload: &str) {
        let mut words = payload.split(' ');
        let what = words.next().unwrap_or_default();
        let numbers: Vec<i64> = words.map_while(|word| word.parse().ok()).collect();
        match (what, numbers.as_slice()) {
            ("m", [id, last, change, cleared]) => {
                if let Some(namespace) = self.opened_by_id(*id) {
                    namespace.seen.tell(*last, *change, *cleared);
                }
            }
            ("d", [id, ..]) => self.close(*id),
            ("t" | "c", [id, number]) => {
                if let Some(namespace) = self.opened_by_id(*id) {
                    namespace.forget_tokens();
                }
                if what == "t" {
                    self.grants.lock().remove(number);
                }
            }
            _ => tracing::debug!(payload, "unknown notification"),
        }
    }
}
