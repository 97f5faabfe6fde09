//! Compares typical queries with plain DataFusion over the same files:
//! `cargo bench --profile release -p thalweg-query [-- PART OF A NAME] [--quick]`.
//!
//! The difference is what this crate adds to a plan: table versions, bounded functions, operators that check the width
//! of rows, a deadline. Both run alternately, so that other load on the machine affects both. CPU time is that of all
//! threads. A query fails if the two results differ in the number of rows.
//!
//! The target is that a query over some hundred thousand rows costs at most some percent of extra CPU time. On two
//! cores of an AMD EPYC with 500,000 rows the difference is -33 % (`filter_text`, whose files are pruned) to +4 %;
//! `all_columns` is +15 %, but its rows have one more column, that of the partition. `constant` shows the cost of a
//! query that reads nothing: 0.4 ms.
#![allow(clippy::print_stderr, clippy::unwrap_used)]

#[allow(dead_code, reason = "other programs use what is not used here")]
#[path = "../../../log/benches/support/environment.rs"]
mod environment;
mod table;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::StreamExt as _;
use thalweg_query::{Engine, QueryMetrics, QueryOptions};
use thalweg_telemetry::cpu_time;
use tokio::runtime::Runtime;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The settings of the thalweg binary.
#[unsafe(export_name = "malloc_conf")]
pub static MALLOC_CONF: &[u8] = thalweg_telemetry::alloc::JEMALLOC_SETTINGS;

const RUNS: usize = 15;
const RUNS_QUICK: usize = 5;

const QUERIES: [(&str, &str); 16] = [
    ("constant", "select 1"),
    ("count", "select count(*) from tags where value_int >= 0"),
    ("projection", "select tag, time, value from tags"),
    ("all_columns", "select * from tags"),
    ("filter_number", "select tag, value from tags where value_int > 900"),
    ("filter_like", "select count(*) from tags where tag like '%press-1%'"),
    (
        "filter_text",
        "select count(*) from tags where lower(tag) like '%press-1%' and upper(attr_site_name) = 'NORTH'",
    ),
    ("filter_regex", "select count(*) from tags where tag ~ 'press-1[0-9]/'"),
    (
        "text",
        "select max(length(replace(tag, '-', '_') || '/' || attr_site_name)) from tags",
    ),
    (
        "concat",
        "select max(length(concat(tag, '.', attr_site_name, '.', value_int))) from tags",
    ),
    (
        "coalesce",
        "select sum(coalesce(value, 0)) from tags where coalesce(attr_site_name, 'x') <> 'x'",
    ),
    (
        "group",
        "select tag, count(*), avg(value), max(value) from tags group by tag",
    ),
    (
        "group_part",
        "select split_part(tag, '/', 2) as line, count(*), avg(value) from tags group by 1",
    ),
    (
        "time_bucket",
        "select date_bin(interval '5 minutes', time) as bucket, avg(value) from tags group by 1 order by 1",
    ),
    (
        "join",
        "select count(*), sum(a.value) from tags a join (select distinct tag, attr_site_name from tags) b on a.tag = b.tag",
    ),
    (
        "sort",
        "select tag, value, attr_site_name from tags order by value, tag",
    ),
];

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let is_quick = arguments.iter().any(|argument| argument == "--quick");
    let wanted = arguments.iter().find(|argument| !argument.starts_with("--"));
    let folder = tempfile::tempdir().unwrap();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(table::fill(folder.path()));
    let engine = Engine::open(folder.path(), QueryOptions::default(), QueryMetrics::unregistered()).unwrap();
    let plain = runtime.block_on(plain(&thalweg_lake::folder(folder.path())));
    eprintln!(
        "\n{}\n\nqueries over {} rows: medians of milliseconds\n{:<16} {:>9} {:>9} {:>7} {:>11} {:>11} {:>9}",
        environment::text(&environment::facts(folder.path())),
        table::ROWS,
        "query",
        "CPU",
        "plain CPU",
        "CPU",
        "wall",
        "plain wall",
        "rows"
    );
    let runs = if is_quick { RUNS_QUICK } else { RUNS };
    for (name, sql) in QUERIES {
        if wanted.is_none_or(|wanted| name.contains(wanted.as_str())) {
            compare(&runtime, (&engine, &plain), (name, sql), runs);
        }
    }
}

fn compare(runtime: &Runtime, (engine, plain): (&Engine, &SessionContext), (name, sql): (&str, &str), runs: usize) {
    let (mut here, mut there) = (Vec::new(), Vec::new());
    // The first run of each fills caches.
    for run in 0..=runs {
        let (own_rows, own) = measured(|| runtime.block_on(by_engine(engine, sql)));
        let (plain_rows, other) = measured(|| runtime.block_on(by_plain(plain, sql)));
        assert_eq!(own_rows, plain_rows, "{sql}");
        if run > 0 {
            here.push((own, own_rows));
            there.push((other, plain_rows));
        }
    }
    let rows = here.first().map_or(0, |(_, rows)| *rows);
    let median = |costs: &[(Cost, usize)], of: fn(&Cost) -> Duration| {
        let mut all: Vec<Duration> = costs.iter().map(|(cost, _)| of(cost)).collect();
        all.sort_unstable();
        all[all.len() / 2].as_secs_f64() * 1e3
    };
    let (cpu, plain_cpu) = (median(&here, |cost| cost.cpu), median(&there, |cost| cost.cpu));
    let (wall, plain_wall) = (median(&here, |cost| cost.wall), median(&there, |cost| cost.wall));
    let more = (cpu / plain_cpu - 1.0) * 100.0;
    eprintln!("{name:<16} {cpu:>9.2} {plain_cpu:>9.2} {more:>+6.1}% {wall:>11.2} {plain_wall:>11.2} {rows:>9}");
}

struct Cost {
    cpu: Duration,
    wall: Duration,
}

fn measured(run: impl FnOnce() -> usize) -> (usize, Cost) {
    let (begun, cpu) = (Instant::now(), cpu_time());
    let rows = run();
    let cost = Cost {
        cpu: cpu_time() - cpu,
        wall: begun.elapsed(),
    };
    (rows, cost)
}

async fn by_engine(engine: &Engine, sql: &str) -> usize {
    let mut answer = engine.execute(sql).await.unwrap();
    let mut rows = 0;
    while let Some(batch) = answer.next().await {
        rows += batch.unwrap().num_rows();
    }
    rows
}

async fn by_plain(context: &SessionContext, sql: &str) -> usize {
    let mut answer = context.sql(sql).await.unwrap().execute_stream().await.unwrap();
    let mut rows = 0;
    while let Some(batch) = answer.next().await {
        rows += batch.unwrap().num_rows();
    }
    rows
}

/// Uses the engine's settings that affect speed.
async fn plain(lake: &Path) -> SessionContext {
    let mut config = SessionConfig::new();
    let options = config.options_mut();
    options.execution.parquet.pushdown_filters = true;
    options.execution.parquet.reorder_filters = true;
    options.optimizer.expand_views_at_output = true;
    let context = SessionContext::new_with_config(config);
    let files = table::files(&lake.join("tags"));
    let urls = files
        .iter()
        .map(|path| ListingTableUrl::parse(path.to_str().unwrap()).unwrap());
    let listing = ListingTableConfig::new_with_multi_paths(urls.collect());
    let listing = listing.with_listing_options(ListingOptions::new(Arc::new(ParquetFormat::default())));
    let listing = listing.infer_schema(&context.state()).await.unwrap();
    context
        .register_table("tags", Arc::new(ListingTable::try_new(listing).unwrap()))
        .unwrap();
    context
}
