//! Queues under load: producers, consumers that ack, refuse and disconnect, dead letters that are resent or discarded, and
//! queues and groups that are created and removed all the time. Each acknowledged message must be delivered.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::Scope;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::client::{self, Client};
use super::ledger::{Account, Numbers};
use super::{Chance, Soak};

const ORDERS: &str = "/api/v1/queues/orders";
const CLAIM: &str = "/api/v1/queues/orders/groups/work/claim";
const SETTLE: &str = "/api/v1/queues/orders/groups/work/settle";
const PRODUCERS: u64 = 2;
const CONSUMERS: u64 = 3;
const BATCH_MAX: u64 = 40;
const KEYS: u64 = 1000;
/// Maximum backlog, so that consumers keep up.
const WAITING_MAX: u64 = 5_000;
/// For a queue that is created and removed.
const CHURNED: u64 = 20;
/// Unsettled leases end long before this.
const DRAINED_WITHIN: Duration = Duration::from_secs(120);

#[derive(Default)]
pub struct Queues {
    next: AtomicU64,
    stored: Numbers,
    came: Numbers,
    acked: Numbers,
    rejected: AtomicU64,
    /// Dead letters that were resent or discarded.
    buried: AtomicU64,
    left: AtomicU64,
    /// Queues that were created and removed, their acknowledged messages, and the received ones.
    removed: AtomicU64,
    churned: AtomicU64,
    churned_came: AtomicU64,
}

impl Queues {
    pub fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, soak: &'scope Soak) {
        for number in 0..PRODUCERS {
            scope.spawn(move || self.produce(soak, Chance(number)));
        }
        for number in 0..CONSUMERS {
            scope.spawn(move || self.consume(soak, number));
        }
        scope.spawn(move || self.bury(soak));
        scope.spawn(move || self.churn(soak));
    }

    pub fn line(&self) -> String {
        format!(
            "{} messages, {} queues created and removed",
            self.stored.count(),
            self.removed.load(Relaxed)
        )
    }

    fn produce(&self, soak: &Soak, mut chance: Chance) {
        let client = soak.client();
        while soak.goes_on() {
            if self.stored.count() > self.acked.count() + self.rejected.load(Relaxed) + WAITING_MAX {
                soak.pause(Duration::from_millis(50));
                continue;
            }
            let count = 1 + chance.below(BATCH_MAX);
            let first = self.next.fetch_add(count, Relaxed);
            let line = |n: u64| format!("{}\n", json!({"key": (n % KEYS).to_string(), "text": n.to_string()}));
            let lines: String = (first..first + count).map(line).collect();
            match client.ask("POST", &format!("{ORDERS}/messages:batch"), &lines) {
                Ok(answer) if matches!(answer.status, 200 | 201) => self.stored.add(first..first + count),
                other => soak.fault("producer", format!("{other:?}")),
            }
            soak.pause(Duration::from_millis(100));
        }
    }

    /// Continues after the end until everything has arrived.
    fn consume(&self, soak: &Soak, number: u64) {
        let (client, mut chance) = (soak.client(), Chance(100 + number));
        let (mut lives, mut over_since) = (0, None);
        loop {
            if !soak.goes_on() {
                let since = *over_since.get_or_insert_with(Instant::now);
                if self.stored.without(&self.came).is_empty() || since.elapsed() > DRAINED_WITHIN {
                    return;
                }
            }
            let claim = json!({"consumer": format!("c{number}-{lives}"), "max": 50, "wait": "500ms"}).to_string();
            if soak.goes_on() && chance.one_of(100) {
                client::leave(&soak.address, CLAIM, &claim);
                self.left.fetch_add(1, Relaxed);
                // The next consumer has another name.
                lives += 1;
                continue;
            }
            match client.ask("POST", CLAIM, &claim) {
                Ok(answer) if answer.status == 200 => self.settle(soak, &client, &mut chance, &answer.json),
                Ok(answer) if answer.status == 204 => {}
                other => {
                    soak.fault("consumer", format!("{other:?}"));
                    std::thread::sleep(Duration::from_millis(500));
                }
            }
        }
    }

    fn settle(&self, soak: &Soak, client: &Client, chance: &mut Chance, claimed: &Value) {
        let (mut ack, mut nack, mut reject, mut acked) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for message in claimed["messages"].as_array().into_iter().flatten() {
            let (Some(number), receipt) = (number_of(message), &message["receipt"]) else {
                soak.fault("consumer", format!("a message that was never produced: {message}"));
                continue;
            };
            self.came.add([number]);
            match chance.below(20) {
                0 if soak.goes_on() => nack.push(json!({"r": receipt, "delay": "100ms"})),
                1 if soak.goes_on() => reject.push(json!({"r": receipt, "reason": "soak"})),
                _ => {
                    ack.push(receipt);
                    acked.push(number);
                }
            }
        }
        if soak.goes_on() && chance.one_of(200) {
            // Its leases end, and others get its messages.
            self.left.fetch_add(1, Relaxed);
            return;
        }
        let settle = json!({"ack": ack, "nack": nack, "reject": reject}).to_string();
        match client.ask("POST", SETTLE, &settle) {
            Ok(answer) if answer.status == 200 => {
                let failed = answer.json["failed"].as_array().map_or(0, Vec::len);
                let rejected = (reject.len().saturating_sub(failed)) as u64;
                self.rejected.fetch_add(rejected, Relaxed);
                self.acked.add(acked);
            }
            other => soak.fault("consumer", format!("{other:?}")),
        }
    }

    fn bury(&self, soak: &Soak) {
        let (client, mut turn) = (soak.client(), 0);
        while soak.goes_on() {
            soak.pause(Duration::from_secs(5));
            turn += 1;
            self.bury_once(soak, &client, if turn % 2 == 0 { "purge" } else { "resend" });
        }
    }

    fn bury_once(&self, soak: &Soak, client: &Client, how: &str) {
        match client.ask("POST", &format!("{ORDERS}/dlq:{how}"), r#"{"filter": {}}"#) {
            Ok(answer) if answer.status == 200 => {
                let count = answer.json["resent"].as_u64().or(answer.json["purged"].as_u64());
                self.buried.fetch_add(count.unwrap_or_default(), Relaxed);
            }
            other => soak.fault("dead letters", format!("{how}: {other:?}")),
        }
    }

    fn churn(&self, soak: &Soak) {
        let (client, mut life) = (soak.client(), 0);
        while soak.goes_on() {
            if let Err(error) = self.live(soak, &client, life) {
                soak.fault("queues that are removed", format!("{error:#}"));
            }
            life += 1;
            soak.pause(Duration::from_millis(300));
        }
    }

    /// Creates, uses and removes one queue.
    fn live(&self, soak: &Soak, client: &Client, life: u64) -> Result<()> {
        let name = format!("churn-{}", life % 7);
        let base = format!("/api/v1/queues/{name}");
        let ask = |method: &str, path: &str, body: &str, expected: &[u16]| -> Result<Value> {
            let answer = client.ask(method, path, body)?;
            ensure!(
                expected.contains(&answer.status),
                "{method} {path}: {} {}",
                answer.status,
                answer.json
            );
            Ok(answer.json)
        };
        let settings = json!({
            "partitions": 1 + life % 8, "groups": [{"name": "g"}], "dedup_window": if life.is_multiple_of(2) { "0s" } else { "10m" },
        });
        ask("PUT", &base, &settings.to_string(), &[201])?;
        let lines: String = (0..CHURNED)
            .map(|n| {
                format!(
                    "{}\n",
                    json!({"key": n.to_string(), "text": n.to_string(), "dedup_id": format!("{life}-{n}")})
                )
            })
            .collect();
        ask("POST", &format!("{base}/messages:batch"), &lines, &[200, 201])?;
        self.churned.fetch_add(CHURNED, Relaxed);
        ask("PUT", &format!("{base}/groups/h"), r#"{"mode": "stream"}"#, &[201])?;
        let events = format!("{base}/groups/h/events?consumer=screen");
        client::listen(&soak.address, &events, None, Duration::from_millis(300), |_| {})?;
        let (came, until) = (Numbers::default(), Instant::now() + Duration::from_secs(20));
        while came.count() < CHURNED && Instant::now() < until {
            let claim = json!({"consumer": format!("c-{life}"), "max": 50, "wait": "500ms"}).to_string();
            let claimed = ask("POST", &format!("{base}/groups/g/claim"), &claim, &[200, 204])?;
            let messages = claimed["messages"].as_array().cloned().unwrap_or_default();
            came.add(messages.iter().filter_map(number_of));
            // Half of them are leased when the queue is removed.
            let half: Vec<&Value> = messages.iter().step_by(2).map(|message| &message["receipt"]).collect();
            if !half.is_empty() {
                let settle = json!({"ack": half}).to_string();
                ask("POST", &format!("{base}/groups/g/settle"), &settle, &[200])?;
            }
        }
        self.churned_came.fetch_add(came.count(), Relaxed);
        ask("DELETE", &format!("{base}/groups/h"), "", &[204])?;
        ask("DELETE", &format!("{base}?force=true"), "", &[204])?;
        ask(
            "DELETE",
            &format!("/api/v1/queues/dlq.{name}?force=true"),
            "",
            &[204, 404],
        )?;
        self.removed.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Called when all threads have ended.
    pub fn close(&self, soak: &Soak) -> Vec<Account> {
        let (client, until) = (soak.client(), Instant::now() + Duration::from_secs(30));
        let rejected = self.rejected.load(Relaxed);
        while self.buried.load(Relaxed) < rejected && Instant::now() < until {
            self.bury_once(soak, &client, "purge");
            std::thread::sleep(Duration::from_millis(200));
        }
        let buried = self.buried.load(Relaxed);
        let (churned, churned_came) = (self.churned.load(Relaxed), self.churned_came.load(Relaxed));
        vec![
            Account::of(
                "queue orders",
                &self.stored,
                &self.came,
                format!(
                    "{} acked, {} clients disconnected",
                    self.acked.count(),
                    self.left.load(Relaxed)
                ),
            ),
            Account {
                name: "dead letters".to_owned(),
                acknowledged: rejected,
                came: buried,
                missing: rejected.saturating_sub(buried),
                note: "rejected; sent again or thrown away".to_owned(),
            },
            Account {
                name: "queues that are removed".to_owned(),
                acknowledged: churned,
                came: churned_came,
                missing: churned.saturating_sub(churned_came),
                note: format!("{} queues", self.removed.load(Relaxed)),
            },
        ]
    }
}

fn number_of(message: &Value) -> Option<u64> {
    message["text"].as_str()?.parse().ok()
}
