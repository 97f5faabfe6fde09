//! The combined settings of the sections `lake`, `query` and `memory`, with all defaults filled in.

use std::time::Duration;

use thalweg_config::{Config, Diagnostics, Fields, Pos};
use thalweg_lake::ingest::EntryLimits;
use thalweg_lake_flow::SignalBatchLimits;
use thalweg_log::Durability;
use thalweg_otlp::ReceiverOptions;
use thalweg_query::QueryOptions;

use crate::log_memory::LogMemory;
use crate::memory_shares::{self, DefaultShare, FlowShare, MemoryShare, MemoryShares};
use crate::{events, ingest, lake, mqtt, queues};

/// Shares of `memory.limit` that the file does not give.
const LAKE: DefaultShare = DefaultShare::percent(30).at_most(768 << 20);
const QUERY: DefaultShare = DefaultShare::percent(25).at_most(1 << 30);
const CACHE: DefaultShare = DefaultShare::percent(5).at_most(128 << 20);
/// All queues with durability `memory`.
const QUEUES: DefaultShare = DefaultShare::percent(10);
/// Dedup-ids of all queues, if there are queues.
const DEDUP: DefaultShare = DefaultShare::percent(5).at_most(512 << 20);
/// State of all consumer groups, if there are queues.
const STATE: DefaultShare = DefaultShare::percent(5).at_most(512 << 20);
/// The log, if there is one, and data on its way to it.
const LOG: DefaultShare = DefaultShare::percent(10);
/// Requests of receivers that are not stored yet, if there are receivers.
const INGEST: DefaultShare = DefaultShare::percent(10).at_most(256 << 20);
/// Merges of files, if there are tables.
const COMPACTION: DefaultShare = DefaultShare::percent(15).at_most(384 << 20);
/// Requests to the event store and its indexes, if there is one.
const EVENTS: DefaultShare = DefaultShare::percent(10).at_most(1 << 30);
const EVENTS_BYTES_MIN: u64 = 16 << 20;
/// The minimum if all messages are in memory.
const EVENTS_IN_MEMORY_BYTES_MIN: u64 = 384 << 20;
/// Connections of the MQTT broker, its filters and interest lists, if there is one.
const MQTT: DefaultShare = DefaultShare::percent(10).at_most(1 << 30);
/// Below this, not even a small table can be sorted.
const QUERY_BYTES_MIN: u64 = 8 << 20;

const CONCURRENCY_MAX: i64 = 1_000;
const QUEUE_MAX: i64 = 100_000;

/// The settings of everything but flows, and the memory of each flow.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub lake: lake::LakeSection,
    pub ingest: Option<ingest::IngestSection>,
    pub query: QueryOptions,
    pub store: queues::LogAndQueuesSection,
    pub events: events::EventsSection,
    pub mqtt: Option<mqtt::MqttSection>,
    /// Bytes that may wait in each flow, in file order.
    pub flows: Vec<FlowShare<usize>>,
}

/// What the flows of a file need.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlowRequirements {
    /// Queues, and so the log.
    pub queues: bool,
    pub events: bool,
    /// Tables of the lake.
    pub lake: bool,
}

impl Settings {
    /// Mistakes go to the diagnostics.
    pub fn read(config: &Config, used: FlowRequirements, diagnostics: &Diagnostics) -> Settings {
        let sections = UndividedSections::read(config, used, diagnostics);
        let shares = sections.shares(config);
        sections.with_memory(memory_shares::divide(config, &shares, diagnostics))
    }

    /// Limits for messages that become rows of logs, metrics and traces.
    pub fn records(&self) -> SignalBatchLimits {
        let receiver = self.ingest.as_ref().map(|ingest| &ingest.receiver);
        SignalBatchLimits {
            walk: receiver.map(|receiver| receiver.walk).unwrap_or_default(),
            window: self.entries().window,
            decoded_bytes_max: receiver.map_or(ReceiverOptions::default().decoded_bytes_max, |receiver| {
                receiver.decoded_bytes_max
            }),
        }
    }

    /// Limits for entries of the lake.
    pub fn entries(&self) -> EntryLimits {
        let ingest = self.ingest.as_ref();
        ingest.map_or_else(EntryLimits::default, |ingest| EntryLimits {
            window: ingest.window,
            ..EntryLimits::default()
        })
    }
}

/// The sections before `memory.limit` is divided between them.
struct UndividedSections {
    lake: lake::LakeSection,
    ingest: Option<ingest::IngestSection>,
    query: QuerySection,
    store: queues::LogAndQueuesSection,
    events: events::EventsSection,
    mqtt: Option<mqtt::MqttSection>,
    /// Queues, and so the log.
    has_queues: bool,
    has_events: bool,
    has_tables: bool,
}

impl UndividedSections {
    fn read(config: &Config, used: FlowRequirements, diagnostics: &Diagnostics) -> UndividedSections {
        let events = events::section(config, used.events, diagnostics);
        let ingest = ingest::section(config, diagnostics);
        let lake = lake::section(config, diagnostics);
        let needs_log = events.needs_log(used.events);
        if let Some(pos) = lake.events
            && !needs_log
        {
            let error = "lake.events.enabled: there is no event store in the log of this process; add the section events, without \
                         db_url, or remove this";
            diagnostics.error_at(pos, error);
        }
        let has_tables = used.lake || ingest.is_some() || lake.events.is_some();
        let query = query_section(config, diagnostics);
        let store = queues::section(config, diagnostics);
        let mqtt = mqtt::section(config, diagnostics);
        if let Some(mqtt) = mqtt.as_ref().filter(|mqtt| mqtt.durability.is_none())
            && store.durability() == Durability::Memory
        {
            let error =
                "mqtt: log.durability is memory, which stores nothing; set mqtt.durability to fsync, interval or os";
            diagnostics.error_at(mqtt.pos, error);
        }
        UndividedSections {
            has_queues: used.queues || mqtt.is_some() || needs_log || has_tables || store.is_given(),
            has_events: events.is_on(used.events),
            has_tables,
            lake,
            ingest,
            query,
            store,
            events,
            mqtt,
        }
    }

    /// The share of each user of memory.
    fn shares(&self, config: &Config) -> MemoryShares<MemoryShare> {
        let part = |name, default, floor, given| MemoryShare::part(name, config, default, floor, given);
        let queues = &self.store.queues;
        let dedup = || part("queues.dedup_memory", DEDUP, 0, queues.dedup_memory);
        let state = || part("queues.state_memory", STATE, 0, queues.state_memory);
        let events_min = match self.events.is_in_memory() {
            true => EVENTS_IN_MEMORY_BYTES_MIN,
            false => EVENTS_BYTES_MIN,
        };
        let inflight = |ingest: &ingest::IngestSection| {
            part("ingest.inflight_bytes", INGEST, ingest::INFLIGHT_MIN, ingest.inflight)
        };
        let mqtt = |mqtt: &mqtt::MqttSection| part("mqtt.memory", MQTT, mqtt::MEMORY_MIN, mqtt.memory);
        let given = self.lake.compaction_memory;
        let compaction = || part("lake.compaction.memory", COMPACTION, lake::COMPACTION_MEMORY_MIN, given);
        MemoryShares {
            lake: part("lake.memory", LAKE, lake::MEMORY_MIN, self.lake.memory),
            query: part("query.memory", QUERY, QUERY_BYTES_MIN, self.query.memory),
            query_cache: part("query.cache", CACHE, 0, self.query.cache),
            queues: part("queues.memory", QUEUES, 0, queues.memory),
            queue_dedup: self.has_queues.then(dedup),
            queue_state: self.has_queues.then(state),
            log: self.has_queues.then(|| self.log_share(config)),
            events: self.has_events.then(|| part("events", EVENTS, events_min, None)),
            ingest: self.ingest.as_ref().map(inflight),
            mqtt: self.mqtt.as_ref().map(mqtt),
            compaction: self.has_tables.then(compaction),
            flows: memory_shares::of_flows(config),
            dead_letter: memory_shares::of_dead_letter(config),
        }
    }

    fn log_share(&self, config: &Config) -> MemoryShare {
        let disks = self.store.disks();
        let floor = LogMemory::floor(disks) as u64;
        let default = LOG.at_most(LogMemory::most(disks) as u64);
        let mut log = MemoryShare::part("log.memory", config, default, floor, self.store.memory_of_log());
        log.wanted = log.wanted.max(if log.given.is_some() { 0 } else { floor });
        log
    }

    /// The settings with the bytes of each user of memory.
    fn with_memory(mut self, bytes: MemoryShares<usize>) -> Settings {
        self.lake.options.memory_bytes = bytes.lake;
        self.query.options.memory_bytes = bytes.query;
        self.query.options.cache_bytes = bytes.query_cache;
        self.store.memory_bytes = bytes.queues;
        self.store.dedup_bytes = bytes.queue_dedup.unwrap_or(0);
        self.store.state_bytes = bytes.queue_state.unwrap_or(0);
        let disks = self.store.disks();
        let log = bytes.log.unwrap_or_else(|| LogMemory::floor(disks));
        self.store.log_memory = LogMemory::of(log, disks);
        self.events.memory_bytes = bytes.events.unwrap_or(0);
        if let Some(ingest) = &mut self.ingest {
            ingest.receiver.inflight_bytes_max = bytes.ingest.unwrap_or(0);
        }
        if let Some(mqtt) = &mut self.mqtt {
            mqtt.broker.memory = bytes.mqtt.unwrap_or(0);
        }
        if let Some(compaction) = bytes.compaction {
            self.lake.options.maintenance.compaction.memory = compaction as u64;
        }
        Settings {
            lake: self.lake,
            ingest: self.ingest,
            query: self.query.options,
            store: self.store,
            events: self.events,
            mqtt: self.mqtt,
            flows: bytes.flows,
        }
    }
}

struct QuerySection {
    options: QueryOptions,
    memory: Option<(u64, Pos)>,
    cache: Option<(u64, Pos)>,
}

fn query_section(config: &Config, diagnostics: &Diagnostics) -> QuerySection {
    let mut options = QueryOptions::default();
    let Some(node) = &config.query else {
        return QuerySection {
            options,
            memory: None,
            cache: None,
        };
    };
    let mut fields = Fields::new(node, diagnostics);
    options.timeout = fields.duration("timeout", "60s");
    if options.timeout < Duration::from_millis(1) {
        fields.error("timeout", "the timeout must not be zero; use a duration such as 60s");
    }
    let count = |number: i64| usize::try_from(number).unwrap_or(usize::MAX);
    let concurrency = i64::try_from(options.concurrency).unwrap_or(CONCURRENCY_MAX);
    options.concurrency = count(fields.int_in("concurrency", concurrency, 1..=CONCURRENCY_MAX));
    options.queue = count(fields.int_in("queue", 64, 0..=QUEUE_MAX));
    options.spill_bytes = fields.size("spill", "64GiB");
    let mut size = |name| Some((fields.opt_size(name)?, fields.pos_of(name)));
    let memory = size("memory");
    let cache = size("cache");
    fields.finish();
    QuerySection { options, memory, cache }
}

#[cfg(test)]
mod tests {
    use thalweg_config::{LoadOptions, SourceText, load};

    use super::*;

    const FLOW: &str = "input: {stdin: {}}\noutput: {drop: {}}\n";

    fn read(text: &str) -> (Settings, String) {
        let text = format!("{text}{FLOW}");
        let loaded = load(
            &SourceText::new("f.yaml", text.as_str()),
            &|_| None,
            &LoadOptions::default(),
        );
        assert_eq!(loaded.diagnostics.to_string(), "");
        let diagnostics = Diagnostics::new("f.yaml");
        let settings = Settings::read(&loaded.config, FlowRequirements::default(), &diagnostics);
        (settings, diagnostics.to_string())
    }

    #[test]
    fn defaults_are_parts_of_the_memory_limit_with_an_upper_bound() {
        const MIB: usize = 1 << 20;
        // A percentage rounds to the nearest MiB.
        let mib = |bytes: usize| (bytes + MIB / 2) / MIB;
        for (limit, expected) in [
            ("1000MiB", "lake 300, query 250, cache 50, queues 100, flow 128"),
            ("100MiB", "lake 30, query 25, cache 5, queues 10, flow 25"),
            ("64GiB", "lake 768, query 1024, cache 128, queues 6554, flow 128"),
        ] {
            let (settings, messages) = read(&format!("memory: {{limit: {limit}}}\n"));
            assert_eq!(messages, "");
            let lake = mib(settings.lake.options.memory_bytes);
            let query = mib(settings.query.memory_bytes);
            let cache = mib(settings.query.cache_bytes);
            let queues = mib(settings.store.memory_bytes);
            let flow = mib(settings.flows[0].share);
            let sizes = format!("lake {lake}, query {query}, cache {cache}, queues {queues}, flow {flow}");
            assert_eq!(sizes, expected, "of {limit}");
        }
    }

    #[test]
    fn the_log_has_a_part_of_the_memory_limit_only_where_there_is_one() {
        let of = |text: &str| read(text).0;
        let sum = |settings: &Settings| {
            let log = settings.store.log_memory;
            settings.lake.options.memory_bytes
                + settings.query.memory_bytes
                + settings.query.cache_bytes
                + settings.store.memory_bytes
                + settings.store.dedup_bytes
                + settings.store.state_bytes
                + settings.flows.iter().map(|flow| flow.share).sum::<usize>()
                + log.bodies
                + 2 * log.waiting
                + log.tail
                + log.index
        };
        let (without, with) = (
            of("memory: {limit: 100MiB}\n"),
            of("memory: {limit: 100MiB}\nlog: {}\n"),
        );
        assert!(without.lake.options.memory_bytes > with.lake.options.memory_bytes);
        for limit in ["64MiB", "100MiB", "1GiB", "64GiB"] {
            let (settings, messages) = read(&format!("memory: {{limit: {limit}}}\nlog: {{}}\n"));
            assert_eq!(messages, "");
            let limit = limit.replace("GiB", "000").replace("MiB", "").parse::<usize>().unwrap() << 20;
            assert!(sum(&settings) <= limit / 1000 * 1024, "{limit}: {settings:?}");
        }
        let (given, messages) = read("memory: {limit: 1GiB}\nlog: {memory: 62MiB}\n");
        assert_eq!(messages, "");
        assert_eq!(given.store.log_memory, LogMemory::of(62 << 20, 1));
        let (_, messages) = read("memory: {limit: 1GiB}\nlog: {memory: 8MiB}\n");
        assert_eq!(messages, "f.yaml:2:15: log.memory: expected at least 31 MiB\n");
    }

    #[test]
    fn the_section_query_is_read() {
        let text = "memory: {limit: 2GiB}\nquery: {timeout: 5s, memory: 100MiB, concurrency: 3, queue: 4, cache: 1MiB, \
                    spill: 1GiB}\n";
        let (settings, messages) = read(text);
        assert_eq!(messages, "");
        let query = settings.query;
        assert_eq!((query.timeout, query.memory_bytes), (Duration::from_secs(5), 100 << 20));
        assert_eq!((query.concurrency, query.queue), (3, 4));
        assert_eq!((query.cache_bytes, query.spill_bytes), (1 << 20, 1 << 30));
    }

    #[test]
    fn mistakes_in_the_sections_are_reported_at_their_place() {
        for (text, expected) in [
            (
                "query: {timout: 5s}\n",
                "f.yaml:1:9: unknown field \"timout\" in query, did you mean \"timeout\"?\n",
            ),
            (
                "query: {timeout: 0s}\n",
                "f.yaml:1:18: query.timeout: the timeout must not be zero; use a duration such as 60s\n",
            ),
            (
                "memory: {limit: 1GiB}\nlake: {memory: 2GiB}\n",
                "f.yaml:2:16: lake.memory: 2 GiB are more than memory.limit (1 GiB), of which it is a part; lower it or \
                 raise memory.limit\n",
            ),
            (
                "memory: {limit: 1GiB}\nlake: {memory: 1MiB}\n",
                "f.yaml:2:16: lake.memory: expected at least 16 MiB\n",
            ),
            (
                "memory: {limit: 1GiB}\nlake: {memory: 700MiB}\nquery: {memory: 400MiB}\n",
                "f.yaml:2:16: the parts of memory.limit add up to at least 1101 MiB (lake.memory 700 MiB, query.memory 400 \
                 MiB), and memory.limit is 1 GiB; lower one of them or raise memory.limit\n",
            ),
            (
                "memory: {limit: 1GiB}\nqueues: {memory: 2GiB}\n",
                "f.yaml:2:18: queues.memory: 2 GiB are more than memory.limit (1 GiB), of which it is a part; lower it or \
                 raise memory.limit\n",
            ),
            (
                "lake: {rollup: {lateness: 1m}, tags: {bloom: [tag]}}\n",
                "f.yaml:1:27: lake.rollup.lateness: expected a mapping of fields, got the text \"1m\"\n\
                 f.yaml:1:46: lake.tags.bloom: not in this version, which writes no Bloom filters; remove it\n",
            ),
            (
                "lake: {logs: {types: {attr_n: int, body: long, attr_Http.Code: long, resource_service_name: string, x.y: double}}}\n",
                "f.yaml:1:22: lake.logs.types: attr_n: \"int\" is no type; the types are long, double, boolean, string\n\
                 f.yaml:1:22: lake.logs.types: body is a column of every table logs, and has the type string\n\
                 f.yaml:1:22: lake.logs.types: attr_Http.Code is no name of a column; the attribute's column is attr_http_code\n\
                 f.yaml:1:22: lake.logs.types: resource_service_name is a column of every table logs, and has the type string\n\
                 f.yaml:1:22: lake.logs.types: x.y is no column of an attribute; the names of these begin with attr_, \
                 resource_ or scope_, as in attr_x_y\n",
            ),
            (
                "lake: {events: {types: [attr_n]}, tags: {types: {attr_n: double, resource_host__0123abcd: boolean}}}\n",
                "f.yaml:1:24: lake.events.types: expected a mapping of fields, got a list\n",
            ),
            (
                "lake: {compaction: {target: 1KiB, zstd: 0}, vacuum: {retain: 1s}}\n",
                "f.yaml:1:29: lake.compaction.target: expected 1MiB to 4GiB\n\
                 f.yaml:1:41: lake.compaction.zstd: expected a whole number from 1 to 22, got the number 0\n\
                 f.yaml:1:62: lake.vacuum.retain: expected at least 1m: queries and other readers may use older versions\n",
            ),
            (
                "lake: {flush: {zstd: 40}}\n",
                "f.yaml:1:22: lake.flush.zstd: expected a whole number from 1 to 22, got the number 40\n",
            ),
        ] {
            assert_eq!(read(text).1, expected, "for {text}");
        }
    }

    #[test]
    fn how_files_are_written_can_be_set() {
        let (settings, messages) = read("lake: {flush: {zstd: 7, interval: 1s}, parquet: {row_group_bytes: 8MiB}}\n");
        assert_eq!(messages, "");
        assert_eq!(
            (
                settings.lake.options.files.zstd_level,
                settings.lake.options.files.row_group_bytes
            ),
            (7, 8 << 20)
        );
        assert_eq!(settings.lake.options.flush_interval, Duration::from_secs(1));
    }
}
