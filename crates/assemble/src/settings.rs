//! The combined settings of the sections `lake`, `query` and `memory`, with all defaults filled in.

use std::time::Duration;

use thalweg_config::{Config, Diagnostics, Fields, Pos};
use thalweg_lake::ingest::EntryLimits;
use thalweg_lake_flow::SignalBatchLimits;
use thalweg_otlp::ReceiverOptions;
use thalweg_query::QueryOptions;

use crate::log_memory::LogMemory;
use crate::memory_shares::{self, MemoryShare};
use crate::{events, ingest, lake, queues};

/// Shares of `memory.limit`: percent, and the maximum in bytes.
const LAKE: (u64, u64) = (30, 768 << 20);
const QUERY: (u64, u64) = (25, 1 << 30);
const CACHE: (u64, u64) = (5, 128 << 20);
/// All queues with durability `memory`.
const QUEUES: (u64, u64) = (10, u64::MAX);
/// Dedup-ids of all queues, if there are queues.
const DEDUP: (u64, u64) = (5, 512 << 20);
/// State of all consumer groups, if there are queues.
const STATE: (u64, u64) = (5, 512 << 20);
/// The log, if there is one, and data on its way to it.
const LOG: u64 = 10;
/// Requests of receivers that are not stored yet, if there are receivers.
const INGEST: (u64, u64) = (10, 256 << 20);
/// Merges of files, if there are tables.
const COMPACTION: (u64, u64) = (15, 384 << 20);
/// Requests to the event store and its indexes, if there is one.
const EVENTS: (u64, u64) = (10, 1 << 30);
const EVENTS_BYTES_MIN: u64 = 16 << 20;
/// The minimum if all messages are in memory.
const EVENTS_IN_MEMORY_BYTES_MIN: u64 = 384 << 20;
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
    /// Bytes that may wait in each flow, in file order.
    pub flows: Vec<(String, usize)>,
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
        let mut events = events::section(config, used.events, diagnostics);
        let mut ingest = ingest::section(config, diagnostics);
        let mut lake = lake::section(config, diagnostics);
        if let Some(pos) = lake.events
            && !events.needs_log(used.events)
        {
            let error = "lake.events.enabled: there is no event store in the log of this process; add the section events, without \
                         db_url, or remove this";
            diagnostics.error_at(pos, error);
        }
        let has_tables = used.lake || ingest.is_some() || lake.events.is_some();
        let with_log = used.queues || events.needs_log(used.events) || has_tables;
        let mut query = query_section(config, diagnostics);
        let mut store = queues::section(config, diagnostics);
        let part = |name, (percent, max), floor, given| MemoryShare::part(name, config, percent, max, floor, given);
        let mut all = vec![
            part("lake.memory", LAKE, lake::MEMORY_MIN, lake.memory),
            part("query.memory", QUERY, QUERY_BYTES_MIN, query.memory),
            part("query.cache", CACHE, 0, query.cache),
            part("queues.memory", QUEUES, 0, store.queues.memory),
        ];
        let has_queues = with_log || store.is_given();
        let dedup = || part("queues.dedup_memory", DEDUP, 0, store.queues.dedup_memory);
        all.extend(has_queues.then(dedup));
        let state = || part("queues.state_memory", STATE, 0, store.queues.state_memory);
        all.extend(has_queues.then(state));
        let disks = store.disks();
        let log = has_queues.then(|| {
            let (most, floor) = (LogMemory::most(disks) as u64, LogMemory::floor(disks) as u64);
            let mut log = part("log.memory", (LOG, most), floor, store.memory_of_log());
            log.wanted = log.wanted.max(if log.given.is_some() { 0 } else { floor });
            log
        });
        let has_log = log.is_some();
        all.extend(log);
        let has_events = events.is_on(used.events);
        let of_events = match events.is_in_memory() {
            true => EVENTS_IN_MEMORY_BYTES_MIN,
            false => EVENTS_BYTES_MIN,
        };
        all.extend(has_events.then(|| part("events", EVENTS, of_events, None)));
        let inflight = |ingest: &ingest::IngestSection| {
            part("ingest.inflight_bytes", INGEST, ingest::INFLIGHT_MIN, ingest.inflight)
        };
        all.extend(ingest.as_ref().map(inflight));
        let given = lake.compaction_memory;
        let compaction = || part("lake.compaction.memory", COMPACTION, lake::COMPACTION_MEMORY_MIN, given);
        all.extend(has_tables.then(compaction));
        let (flows, dead_letter) = memory_shares::of_flows(config);
        all.extend(flows);
        all.extend(dead_letter);
        let mut sizes = memory_shares::divide(config, &all, diagnostics).into_iter();
        let mut next = || sizes.next().unwrap_or_default();
        lake.options.memory_bytes = next();
        query.options.memory_bytes = next();
        query.options.cache_bytes = next();
        store.memory_bytes = next();
        store.dedup_bytes = if has_queues { next() } else { 0 };
        store.state_bytes = if has_queues { next() } else { 0 };
        let log = if has_log { next() } else { LogMemory::floor(disks) };
        store.log_memory = LogMemory::of(log, disks);
        events.memory_bytes = if has_events { next() } else { 0 };
        if let Some(ingest) = &mut ingest {
            ingest.receiver.inflight_bytes_max = next();
        }
        if has_tables {
            lake.options.upkeep.compaction.memory = next() as u64;
        }
        let flows = config.flows.iter().map(|flow| (flow.name.clone(), next())).collect();
        Settings {
            lake,
            ingest,
            query: query.options,
            store,
            events,
            flows,
        }
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
    let (memory, cache) = (size("memory"), size("cache"));
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
        for (limit, [lake, query, cache, queues, flow]) in [
            ("1000MiB", [300, 250, 50, 100, 128]),
            ("100MiB", [30, 25, 5, 10, 25]),
            ("64GiB", [768, 1024, 128, 6554, 128]),
        ] {
            let (settings, messages) = read(&format!("memory: {{limit: {limit}}}\n"));
            assert_eq!(messages, "");
            let sizes = [
                settings.lake.options.memory_bytes,
                settings.query.memory_bytes,
                settings.query.cache_bytes,
                settings.store.memory_bytes,
                settings.flows[0].1,
            ];
            // A percentage rounds to the nearest MiB.
            assert_eq!(
                sizes.map(|bytes| (bytes + MIB / 2) / MIB),
                [lake, query, cache, queues, flow],
                "of {limit}"
            );
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
                + settings.flows.iter().map(|(_, bytes)| bytes).sum::<usize>()
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
