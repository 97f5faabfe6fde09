//! What the other servers did, as the database tells it: notifications, and a look at the rows each second, against those that
//! were lost. `m` namespace, last position, change, cleared: something is to be read. `d` namespace: it is deleted. `t`
//! namespace, token: it is revoked. `c` namespace: its tokens changed.

use std::sync::Weak;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client};

use crate::failure::reason;
use crate::store::Core;

const POLL: Duration = Duration::from_secs(1);
/// One look at the rows takes no longer, or the connection is given up.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

type Failure = tokio_postgres::Error;

/// Works until the store is dropped.
pub(crate) async fn listen(core: Weak<Core>) {
    let mut pause = PAUSE_FIRST;
    let mut was_lost = false;
    loop {
        let Some(strong) = core.upgrade() else { return };
        let database = strong.links.database.clone();
        drop(strong);
        let why = match connect(&database).await {
            Ok((client, told)) => {
                pause = PAUSE_FIRST;
                if was_lost {
                    tracing::info!(database = database.place, "the database is reached again");
                }
                follow(&core, &client, told).await
            }
            Err(error) => Some(format!(
                "cannot reach the database at {}: {}",
                database.place,
                reason(&error)
            )),
        };
        let (Some(strong), Some(why)) = (core.upgrade(), why) else {
            return;
        };
        if !was_lost || pause == PAUSE_FIRST {
            tracing::warn!("{why}; writes are refused until it answers");
        }
        was_lost = true;
        strong.lost(&why);
        drop(strong);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

async fn connect(
    database: &crate::database::Database,
) -> Result<(Client, mpsc::UnboundedReceiver<AsyncMessage>), Failure> {
    let (client, mut connection) = database.config.connect(database.tls.clone()).await?;
    let (tell, told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut messages = futures::stream::poll_fn(move |context| connection.poll_message(context));
        while let Some(Ok(message)) = futures::StreamExt::next(&mut messages).await {
            if tell.send(message).is_err() {
                return;
            }
        }
    });
    client
        .batch_execute("SET search_path = thalweg_events, pg_catalog; LISTEN thalweg_events")
        .await?;
    Ok((client, told))
}

/// Why it ended; `None` if the store is dropped.
async fn follow(core: &Weak<Core>, client: &Client, mut told: mpsc::UnboundedReceiver<AsyncMessage>) -> Option<String> {
    // What was told before nobody heard.
    core.upgrade()?.forget_all_tokens();
    let mut tick = tokio::time::interval(POLL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            message = told.recv() => match message {
                Some(AsyncMessage::Notification(told)) => core.upgrade()?.told(told.payload()),
                Some(_) => {}
                None => {
                    let place = core.upgrade()?.links.place().to_owned();
                    return Some(format!("the connection to the database at {place} is lost"));
                }
            },
            _ = tick.tick() => {
                let core = core.upgrade()?;
                let place = core.links.place();
                match tokio::time::timeout(ANSWER_MAX, look(&core, client)).await {
                    Ok(Ok(())) => core.heard(),
                    Ok(Err(error)) => return Some(format!("the database at {place}: {}", reason(&error))),
                    Err(_) => return Some(format!("the database at {place} does not answer")),
                }
            }
        }
    }
}

/// At the rows of what is open here.
async fn look(core: &Core, client: &Client) -> Result<(), Failure> {
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
    // Nobody works with these any more.
    grants.retain(|_, granted| granted.valid.receiver_count() > 0);
    Ok(())
}

impl Core {
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
            _ => tracing::debug!(payload, "a notification that this version does not know"),
        }
    }
}
