//! Events under load: writers, a reader of the category, consumers of a persistent subscription, subscribers that come and go,
//! and namespaces with all their content that are created and removed all the time. Each acknowledged message must be read.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::Scope;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::client::{self, Client};
use super::ledger::{Account, Numbers};
use super::{Chance, Soak};

const WRITERS: u64 = 2;
const CONSUMERS: u64 = 2;
const SUBSCRIBERS: u64 = 3;
const STREAMS: u64 = 50;
const BATCH: u64 = 20;
const PAGE: u64 = 1000;
const SUBSCRIPTION: &str = "workers";
/// For a namespace that is created and removed.
const CHURNED: u64 = 10;
const DRAINED_WITHIN: Duration = Duration::from_secs(120);

#[derive(Default)]
pub struct Events {
    next: AtomicU64,
    stored: Numbers,
    read: Numbers,
    handed: Numbers,
    told: AtomicU64,
    subscribers: AtomicU64,
    removed: AtomicU64,
    churned: AtomicU64,
    churned_came: AtomicU64,
}

impl Events {
    pub fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, soak: &'scope Soak) {
        let options = json!({"category": "soak", "ackTimeoutMs": 2000, "maxAttempts": 1000, "maxInFlight": 1000});
        if let Err(error) = soak
            .client()
            .rpc(&soak.token, &json!(["sub.create", SUBSCRIPTION, options]))
        {
            soak.fault("persistent subscription", format!("{error:#}"));
        }
        for number in 0..WRITERS {
            scope.spawn(move || self.write(soak, Chance(200 + number)));
        }
        for number in 0..CONSUMERS {
            scope.spawn(move || self.consume(soak, number));
        }
        for number in 0..SUBSCRIBERS {
            scope.spawn(move || self.subscribe(soak, number));
        }
        scope.spawn(move || self.read(soak));
        scope.spawn(move || self.churn(soak));
    }

    pub fn line(&self) -> String {
        format!(
            "{} events, {} namespaces created and removed",
            self.stored.count(),
            self.removed.load(Relaxed)
        )
    }

    fn write(&self, soak: &Soak, mut chance: Chance) {
        let client = soak.client();
        while soak.goes_on() {
            let count = if chance.one_of(10) { BATCH } else { 1 };
            let first = self.next.fetch_add(count, Relaxed);
            let message = |n: u64| json!({"type": "Soaked", "data": {"n": n, "text": "x".repeat(200)}});
            let stream = format!("soak-{}", chance.below(STREAMS));
            let call = match count {
                1 => json!(["stream.write", stream, message(first)]),
                _ => json!([
                    "stream.append",
                    stream,
                    (first..first + count).map(message).collect::<Vec<_>>()
                ]),
            };
            match client.rpc(&soak.token, &call) {
                Ok(_) => self.stored.add(first..first + count),
                Err(error) => soak.fault("writer of events", format!("{error:#}")),
            }
            soak.pause(Duration::from_millis(30));
        }
    }

    /// Reads the whole category, in order; after the end until nothing more comes.
    fn read(&self, soak: &Soak) {
        let (client, mut position, mut over_since) = (soak.client(), 1, None);
        loop {
            if !soak.goes_on() {
                let since = *over_since.get_or_insert_with(Instant::now);
                if self.stored.without(&self.read).is_empty() || since.elapsed() > DRAINED_WITHIN {
                    return;
                }
            }
            let call = json!(["category.get", "soak", {"position": position, "batchSize": PAGE}]);
            let rows = match client.rpc(&soak.token, &call) {
                Ok(rows) => rows,
                Err(error) => {
                    soak.fault("reader of events", format!("{error:#}"));
                    Value::Null
                }
            };
            let rows = rows.as_array().map(Vec::as_slice).unwrap_or_default();
            self.read.add(rows.iter().filter_map(|row| row[5]["n"].as_u64()));
            match rows.last().and_then(|row| row[4].as_u64()) {
                Some(last) => position = last + 1,
                None => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    /// Continues after the end until everything was delivered.
    fn consume(&self, soak: &Soak, number: u64) {
        let (client, mut chance, mut over_since) = (soak.client(), Chance(300 + number), None);
        loop {
            if !soak.goes_on() {
                let since = *over_since.get_or_insert_with(Instant::now);
                if self.stored.without(&self.handed).is_empty() || since.elapsed() > DRAINED_WITHIN {
                    return;
                }
            }
            if let Err(error) = self.consume_once(soak, &client, &mut chance, number) {
                soak.fault("consumer of events", format!("{error:#}"));
                std::thread::sleep(Duration::from_millis(500));
            }
        }
    }

    fn consume_once(&self, soak: &Soak, client: &Client, chance: &mut Chance, number: u64) -> Result<()> {
        let consumer = format!("worker-{number}");
        let fetch = json!(["sub.fetch", SUBSCRIPTION, {"consumer": consumer, "max": 200, "waitMs": 500}]);
        let fetched = client.rpc(&soak.token, &fetch)?;
        let messages = fetched.as_array().map(Vec::as_slice).unwrap_or_default();
        let numbers = messages.iter().filter_map(|one| one["message"][5]["n"].as_u64());
        self.handed.add(numbers);
        // Sometimes it disconnects with messages in flight.
        if messages.is_empty() || soak.goes_on() && chance.one_of(50) {
            return Ok(());
        }
        let leases: Vec<&Value> = messages.iter().map(|one| &one["lease"]).collect();
        client.rpc(&soak.token, &json!(["sub.ack", SUBSCRIPTION, leases]))?;
        Ok(())
    }

    /// Connects, listens and disconnects. One of the subscribers receives messages of the persistent subscription and
    /// acknowledges none.
    fn subscribe(&self, soak: &Soak, number: u64) {
        let mut chance = Chance(400 + number);
        while soak.goes_on() {
            let path = match number {
                0 => format!("/subscribe?subscription={SUBSCRIPTION}&consumer=push&max=16"),
                1 => "/subscribe?category=soak&data=true".to_owned(),
                _ => format!("/subscribe?stream=soak-{}", chance.below(STREAMS)),
            };
            let length = Duration::from_millis(200 + chance.below(3000));
            let told = |_: &str| {
                self.told.fetch_add(1, Relaxed);
            };
            if let Err(error) = client::listen(&soak.address, &path, Some(&soak.token), length, told) {
                soak.fault("subscriber", format!("{error:#}"));
            }
            self.subscribers.fetch_add(1, Relaxed);
            soak.pause(Duration::from_millis(chance.below(500)));
        }
    }

    fn churn(&self, soak: &Soak) {
        let (client, mut life) = (soak.client(), 0);
        while soak.goes_on() {
            if let Err(error) = self.live(soak, &client, life) {
                soak.fault("namespaces that are removed", format!("{error:#}"));
            }
            life += 1;
            soak.pause(Duration::from_millis(300));
        }
    }

    /// Creates one namespace with one of everything in it, and removes it.
    fn live(&self, soak: &Soak, client: &Client, life: u64) -> Result<()> {
        let name = format!("life-{life}");
        let made = client.rpc(&soak.token, &json!(["ns.create", name, {}]))?;
        let token = made["token"].as_str().context("a namespace without a token")?;
        let rpc = |call: Value| client.rpc(token, &call);
        rpc(json!(["sub.create", "s", {"category": "a"}]))?;
        for n in 0..CHURNED {
            rpc(json!(["stream.write", format!("a-{n}"), {"type": "T", "data": {"n": n}}]))?;
        }
        self.churned.fetch_add(CHURNED, Relaxed);
        let rows = rpc(json!(["category.get", "a"]))?;
        let came = Numbers::default();
        came.add(
            rows.as_array()
                .into_iter()
                .flatten()
                .filter_map(|row| row[5]["n"].as_u64()),
        );
        self.churned_came.fetch_add(came.count(), Relaxed);
        let fetched = rpc(json!(["sub.fetch", "s", {"max": 10}]))?;
        ensure!(
            fetched.as_array().is_some_and(|all| !all.is_empty()),
            "sub.fetch: {fetched}"
        );
        rpc(json!(["snapshot.put", "a-1", {"version": 0, "type": "T", "data": {}}]))?;
        rpc(json!(["stream.delete", "a-1"]))?;
        client::listen(
            &soak.address,
            "/subscribe?all=true",
            Some(token),
            Duration::from_millis(200),
            |_| {},
        )?;
        if life.is_multiple_of(2) {
            rpc(json!(["sub.delete", "s"]))?;
        }
        client.rpc(&soak.token, &json!(["ns.delete", name]))?;
        self.removed.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Called when all threads have ended.
    pub fn close(&self) -> Vec<Account> {
        let (churned, churned_came) = (self.churned.load(Relaxed), self.churned_came.load(Relaxed));
        vec![
            Account::of(
                "events read",
                &self.stored,
                &self.read,
                format!(
                    "{} subscribers connected and got {} notifications",
                    self.subscribers.load(Relaxed),
                    self.told.load(Relaxed)
                ),
            ),
            Account::of(
                "events handed out",
                &self.stored,
                &self.handed,
                "by the persistent subscription".to_owned(),
            ),
            Account {
                name: "namespaces that are removed".to_owned(),
                acknowledged: churned,
                came: churned_came,
                missing: churned.saturating_sub(churned_came),
                note: format!("{} namespaces", self.removed.load(Relaxed)),
            },
        ]
    }
}
