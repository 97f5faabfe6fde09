//! The event store inside the main process: the section `events`, a store on the log of the process, and its routes on
//! the shared HTTP listener.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use parking_lot::Mutex;
use thalweg_config::{Config, Diagnostics, Fields};
use thalweg_events::{EmbeddedStore, Store, Token};
use thalweg_events_api::{EventsApiOptions, EventsApiServer, routes_within};
use thalweg_events_flow::SharedStore;
use thalweg_log::{Durability, Log};
use thalweg_telemetry::{HttpRoutes, Metrics};

use super::opening::{
    GeneratedToken, RecoveryOptions, TokenDestination, embedded, given_token, make_default, open_in_memory,
    open_postgres,
};

const MESSAGE_BYTES: &str = "16MiB";
const MESSAGE_BYTES_MAX: u64 = 24 << 20;

/// The section `events`.
#[derive(Clone, Debug)]
pub(crate) struct EventsSection {
    given: bool,
    enabled: bool,
    token: Option<Token>,
    db_url: Option<String>,
    /// `None`: the durability of the log.
    durability: Option<Durability>,
    message_bytes_max: usize,
    open_admin: bool,
    metrics_per_namespace: bool,
    /// Its share of the memory limit.
    pub memory_bytes: usize,
}

/// Reads the section; mistakes go to the diagnostics. `wanted` means that a flow uses the store.
pub(crate) fn section(config: &Config, wanted: bool, diagnostics: &Diagnostics) -> EventsSection {
    let empty = thalweg_config::Node::empty_map();
    let mut fields = Fields::new(config.events.as_ref().unwrap_or(&empty), diagnostics);
    let enabled = fields.bool("enabled", true);
    if wanted && !enabled {
        fields.error("enabled", "a flow uses the event store; remove it, or the flow");
    }
    let token = fields.opt_string("token").filter(|text| !text.is_empty());
    let token = token.and_then(|text| match given_token(&text) {
        Ok(token) => Some(token),
        Err(error) => {
            fields.error("token", error);
            None
        }
    });
    let db_url = fields.opt_string("db_url").filter(|text| !text.is_empty());
    if let Some(url) = &db_url
        && !is_postgres(url)
    {
        fields.error(
            "db_url",
            "expected an address of Postgres, postgres://user:password@host/database; leave it out for the log of this process",
        );
    }
    let durability = fields.opt_one_of("durability", &["fsync", "interval", "os", "memory"]);
    let message_bytes = fields.size("max_message_bytes", MESSAGE_BYTES);
    if !(1..=MESSAGE_BYTES_MAX).contains(&message_bytes) {
        let most = MESSAGE_BYTES_MAX >> 20;
        fields.error("max_message_bytes", format!("expected 1 byte to {most} MiB"));
    }
    let section = EventsSection {
        given: config.events.is_some(),
        enabled: enabled || wanted,
        token,
        db_url,
        durability: durability.map(durability_of),
        message_bytes_max: usize::try_from(message_bytes).unwrap_or(usize::MAX),
        open_admin: fields.bool("open_admin", false),
        metrics_per_namespace: fields.bool("metrics_per_namespace", false),
        memory_bytes: 0,
    };
    fields.finish();
    section
}

pub(crate) fn is_postgres(url: &str) -> bool {
    url.starts_with("postgres://") || url.starts_with("postgresql://")
}

fn durability_of(word: &str) -> Durability {
    match word {
        "interval" => Durability::Interval,
        "os" => Durability::Os,
        "memory" => Durability::Memory,
        _ => Durability::Fsync,
    }
}

impl EventsSection {
    /// Whether this process has a store.
    pub fn is_on(&self, wanted: bool) -> bool {
        wanted || self.given && self.enabled
    }

    /// Whether it needs the log of the process.
    pub fn needs_log(&self, wanted: bool) -> bool {
        self.is_on(wanted) && self.db_url.is_none() && !self.is_in_memory()
    }

    /// Whether its messages are lost with the process.
    pub fn is_in_memory(&self) -> bool {
        self.db_url.is_none() && self.durability == Some(Durability::Memory)
    }
}

/// The event store of the process.
#[derive(Default)]
pub(crate) struct EventsService {
    /// For the components of flows.
    pub shared: Arc<SharedStore>,
    server: Mutex<Option<Arc<EventsApiServer>>>,
    /// Set if the store is on the log of the process.
    embedded: Mutex<Option<Arc<EmbeddedStore>>>,
}

impl EventsService {
    /// Opens the store on the log, if the configuration needs it. `keeps` decides whether deleted namespaces are kept
    /// for the lake. Returns where the token of the namespace `default` is, if it was created now.
    pub async fn start(
        &self,
        section: &EventsSection,
        log: Option<(Arc<dyn Log>, Durability)>,
        data_dir: &Path,
        keeps: RecoveryOptions,
        metrics: &Arc<Metrics>,
    ) -> Result<Option<GeneratedToken>> {
        if !section.is_on(self.shared.is_wanted()) {
            return Ok(None);
        }
        let store: Arc<dyn Store> = match (&section.db_url, log) {
            (Some(url), _) => open_postgres(url).await?,
            (None, _) if section.is_in_memory() => {
                let bytes = section.memory_bytes;
                open_in_memory(bytes as u64 / 2, bytes / 4).await?.0
            }
            (None, Some((log, durability))) => {
                let durability = section.durability.unwrap_or(durability);
                let memory = section.memory_bytes / 2;
                let store = Arc::new(embedded(log, durability, data_dir, memory, keeps).await?);
                *self.embedded.lock() = Some(store.clone());
                store
            }
            (None, None) => anyhow::bail!("the event store needs the log, which was not opened"),
        };
        let to = TokenDestination::seen(Some(TokenDestination::file_in(data_dir)));
        let new_token = make_default(store.as_ref(), section.token.clone(), &to).await?;
        tracing::info!(
            backend = store.backend(),
            durability = store.durability(),
            "the event store is open"
        );
        self.shared.open(store.clone(), section.message_bytes_max);
        let api = EventsApiOptions {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            test_mode: false,
            open_admin: section.open_admin,
            message_bytes_max: section.message_bytes_max,
            metrics_per_namespace: section.metrics_per_namespace,
            memory_bytes: match section.is_in_memory() {
                true => section.memory_bytes / 4,
                false => section.memory_bytes / 2,
            },
            ..EventsApiOptions::default()
        };
        *self.server.lock() = Some(EventsApiServer::new(store, api, metrics.clone()));
        Ok(new_token)
    }

    /// The store, if its messages are in the log of the process.
    pub fn embedded(&self) -> Option<Arc<EmbeddedStore>> {
        self.embedded.lock().clone()
    }

    pub fn is_open(&self) -> bool {
        self.server.lock().is_some()
    }

    /// Provides the number of open connections.
    pub fn count_connections(&self, count: impl Fn() -> u64 + Send + Sync + 'static) {
        if let Some(server) = self.server.lock().as_ref() {
            server.count_connections(count);
        }
    }

    /// Ends subscriptions properly and refuses new calls. Returns when pending calls can be answered.
    pub async fn stop(&self, within: Duration) {
        let Some(server) = self.server.lock().clone() else {
            return;
        };
        server.stop();
        let _given_up = tokio::time::timeout(within, server.settled()).await;
    }

    /// Its routes, if there is a store.
    pub fn routes(&self) -> Option<Arc<dyn HttpRoutes>> {
        let server = self.server.lock().clone()?;
        Some(Arc::new(routes_within(&server)))
    }
}

#[cfg(test)]
mod tests {
    use thalweg_config::{LoadOptions, SourceText, load};

    use super::*;

    const FLOW: &str = "input: {stdin: {}}\noutput: {drop: {}}\n";

    fn read(text: &str, wanted: bool) -> (EventsSection, String) {
        let source = SourceText::new("f.yaml", format!("{text}{FLOW}"));
        let loaded = load(&source, &|_| None, &LoadOptions::default());
        assert_eq!(loaded.diagnostics.to_string(), "");
        let diagnostics = Diagnostics::new("f.yaml");
        let section = section(&loaded.config, wanted, &diagnostics);
        (section, diagnostics.to_string())
    }

    #[test]
    fn the_store_is_there_when_its_section_or_a_flow_asks_for_it() {
        for (text, wanted, is_on, needs_log) in [
            ("", false, false, false),
            ("", true, true, true),
            ("events: {}\n", false, true, true),
            ("events: {enabled: false}\n", false, false, false),
            ("events: {db_url: \"postgres://h/d\"}\n", false, true, false),
            ("events: {durability: memory}\n", false, true, false),
        ] {
            let (section, messages) = read(text, wanted);
            assert_eq!(messages, "");
            assert_eq!(
                (section.is_on(wanted), section.needs_log(wanted)),
                (is_on, needs_log),
                "{text}"
            );
        }
    }

    #[test]
    fn the_section_is_read_and_its_mistakes_are_told_at_their_place() {
        let zeros = "0".repeat(64);
        let (section, messages) = read(
            &format!(
                "events: {{token: ns_ZGVmYXVsdA_{zeros}, durability: os, max_message_bytes: 24MiB, open_admin: true}}\n"
            ),
            false,
        );
        assert_eq!(messages, "");
        assert!(section.token.is_some() && section.open_admin && !section.metrics_per_namespace);
        assert_eq!(
            (section.durability, section.message_bytes_max),
            (Some(Durability::Os), 24 << 20)
        );
        for (text, wanted, expected) in [
            (
                "events: {tokn: a}\n".to_owned(),
                false,
                "f.yaml:1:10: unknown field \"tokn\" in events, did you mean \"token\"?\n",
            ),
            (
                "events: {token: a}\n".to_owned(),
                false,
                "f.yaml:1:17: events.token: invalid token format: missing 'ns_' prefix\n",
            ),
            (
                format!("events: {{token: ns_YQ_{zeros}}}\n"),
                false,
                "f.yaml:1:17: events.token: provided token is for namespace 'a', expected 'default'\n",
            ),
            (
                "events: {max_message_bytes: 25MiB}\n".to_owned(),
                false,
                "f.yaml:1:29: events.max_message_bytes: expected 1 byte to 24 MiB\n",
            ),
            (
                "events: {enabled: false}\n".to_owned(),
                true,
                "f.yaml:1:19: events.enabled: a flow uses the event store; remove it, or the flow\n",
            ),
            (
                "events: {db_url: \"mysql://h\"}\n".to_owned(),
                false,
                "f.yaml:1:18: events.db_url: expected an address of Postgres, postgres://user:password@host/database; leave \
                 it out for the log of this process\n",
            ),
        ] {
            assert_eq!(read(&text, wanted).1, expected, "for {text}");
        }
    }
}
