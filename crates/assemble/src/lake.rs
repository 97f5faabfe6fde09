//! The section `lake`.

use std::collections::BTreeMap;
use std::time::Duration;

use thalweg_columns::attribute_types::AttributeType;
use thalweg_columns::attributes::{AttributePromotion, column_name};
use thalweg_columns::compaction::CompactionOptions;
use thalweg_columns::rows::attribute_columns::AttributeSource;
use thalweg_columns::tables::{EVENTS, TAGS, TableSpec};
use thalweg_config::{Config, Diagnostics, Fields, Pos, kind};
use thalweg_delta::schema::ColumnType;
use thalweg_lake::Signal;
use thalweg_lake::rollup::job::RollupOptions;
use thalweg_lake_flow::LakeOptions;

use crate::lake_site::LakeSite;

/// Below this there is no room for memtables, rows being committed, and their files.
pub(crate) const MEMORY_MIN: u64 = 16 << 20;
const FLUSH_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// The content of the section.
#[derive(Clone, Debug)]
pub(crate) struct LakeSection {
    pub options: LakeOptions,
    pub site: LakeSite,
    /// Set if the table `events` is enabled.
    pub events: Option<Pos>,
    /// `lake.memory`, if given; the value in the options is set when the memory is divided.
    pub memory: Option<(u64, Pos)>,
    /// `lake.compaction.memory`, if given.
    pub compaction_memory: Option<(u64, Pos)>,
}

/// Resolutions of rollups by their names in settings.
const RESOLUTIONS: [&str; 5] = ["10s", "1m", "5m", "20m", "1h"];

/// Fields of later versions, and what this version does instead.
const NOT_THERE: [(&str, &str); 1] = [("publish", "publishes Delta tables only")];

/// Reads the section `lake`; mistakes go to the diagnostics.
pub(crate) fn section(config: &Config, diagnostics: &Diagnostics) -> LakeSection {
    let mut section = LakeSection {
        options: LakeOptions::default(),
        site: LakeSite::default(),
        events: None,
        memory: None,
        compaction_memory: None,
    };
    let Some(node) = &config.lake else { return section };
    let options = &mut section.options;
    let mut fields = Fields::new(node, diagnostics);
    let memory = fields.opt_size("memory");
    section.memory = memory.map(|bytes| (bytes, fields.pos_of("memory")));
    read_flush(fields.fields("flush"), options);
    // New rows do not appear more often.
    let look_every = options.flush_interval;
    let maintenance = &mut options.maintenance;
    maintenance.look_every = look_every.clamp(LOOK_EVERY_MIN, maintenance.look_every);
    maintenance.bytes_per_second = fields.size("io_bytes_per_second", "256MiB");
    section.compaction_memory = read_compaction(fields.fields("compaction"), &mut maintenance.compaction);
    section.site = LakeSite::read(&mut fields, maintenance.compaction.target);
    let mut retention = fields.fields("retention");
    for name in OTLP_TABLES.into_iter().chain(["tags", "events"]) {
        let days = retention.int_in(name, 0, 0..=DAYS_MAX);
        maintenance.retention.push((name, u32::try_from(days).unwrap_or(0)));
    }
    for table in ["metrics_rollup", "tags_rollup"] {
        let mut rollup = retention.fields(table);
        let days = RESOLUTIONS.map(|name| u32::try_from(rollup.int_in(name, 0, 0..=DAYS_MAX)).unwrap_or(0));
        maintenance.rollup_retention.push((table, days));
        rollup.finish();
    }
    retention.finish();
    read_rollup(fields.fields("rollup"), &mut maintenance.rollup);
    let mut vacuum = fields.fields("vacuum");
    maintenance.vacuum_retain = vacuum.duration("retain", "24h");
    if maintenance.vacuum_retain < VACUUM_RETAIN_MIN {
        vacuum.error(
            "retain",
            "expected at least 1m: queries and other readers may use older versions",
        );
    }
    vacuum.finish();
    let mut parquet = fields.fields("parquet");
    let row_group = parquet.size("row_group_bytes", "32MiB");
    if !(ROW_GROUP_BYTES_MIN..=ROW_GROUP_BYTES_MAX).contains(&row_group) {
        parquet.error("row_group_bytes", "expected 1MiB to 1GiB");
    }
    options.files.row_group_bytes = usize::try_from(row_group).unwrap_or(options.files.row_group_bytes);
    not_there(&mut parquet, "encodings", "writes the encodings that every reader has");
    parquet.finish();
    options.tags_promotion = promotion(fields.fields(TAGS.name), &TAGS).unwrap_or_default();
    let mut events = fields.fields(EVENTS.name);
    if events.bool("enabled", false) {
        section.events = Some(events.pos_of("enabled"));
    }
    options.events_promotion = promotion(events, &EVENTS).unwrap_or_default();
    for (signal, of) in Signal::ALL.into_iter().zip(&mut options.promotions) {
        let mut table = fields.fields(signal.name());
        if signal == Signal::Logs {
            not_there(&mut table, "sort", "orders rows by service and time");
        }
        *of = promotion(table, signal.table()).unwrap_or_default();
    }
    for (name, instead) in NOT_THERE {
        not_there(&mut fields, name, instead);
    }
    fields.finish();
    section
}

/// The tables that receivers of OpenTelemetry data feed.
pub(crate) const OTLP_TABLES: [&str; 3] = ["logs", "metrics", "traces"];

/// Which attributes of a table get columns, and of which types.
fn promotion(mut table: Fields<'_>, spec: &TableSpec) -> Option<AttributePromotion> {
    let promoted = usize::try_from(table.int_in("max_promoted", 256, 0..=10_000)).unwrap_or(256);
    let (promote, never) = (table.string_list("promote"), table.string_list("never_promote"));
    let promotion = AttributePromotion::new(promoted, promote, &never);
    if let Err(error) = &promotion {
        table.error("never_promote", error);
    }
    let types = types(&mut table, spec);
    not_there(&mut table, "bloom", "writes no Bloom filters");
    table.finish();
    Some(promotion.ok()?.with_types(types))
}

/// The types of attribute columns.
fn types(table: &mut Fields<'_>, spec: &TableSpec) -> BTreeMap<String, ColumnType> {
    let mut types = BTreeMap::new();
    for (column, name) in table.string_map("types") {
        let kind = AttributeType::declared(&name).ok_or_else(|| {
            let known = AttributeType::DECLARED.join(", ");
            format!("{column}: {name:?} is no type; the types are {known}")
        });
        match kind.and_then(|kind| attribute_column(&column, spec).map(|()| kind)) {
            Ok(kind) => drop(types.insert(column, kind)),
            Err(error) => table.error("types", error),
        }
    }
    types
}

/// Whether an attribute of a table may have a column of this name.
fn attribute_column(name: &str, spec: &TableSpec) -> Result<(), String> {
    let columns = (spec.columns)();
    if let Some(column) = columns.column(name) {
        let (kind, table) = (column.kind.name(), spec.name);
        return Err(format!(
            "{name} is a column of every table {table}, and has the type {kind}"
        ));
    }
    let in_form = AttributeSource::ALL.into_iter().find_map(|source| {
        let source = source.as_str();
        Some(column_name(
            source,
            name.strip_prefix(source)?.strip_prefix(['_', '.'])?,
        ))
    });
    match in_form {
        Some(in_form) if in_form == name => Ok(()),
        Some(in_form) => Err(format!(
            "{name} is no name of a column; the attribute's column is {in_form}"
        )),
        None => Err(format!(
            "{name} is no column of an attribute; the names of these begin with attr_, resource_ or scope_, as in {}",
            column_name(AttributeSource::Attr.as_str(), name)
        )),
    }
}

const TARGET_MIN: u64 = 1 << 20;
const TARGET_MAX: u64 = 4 << 30;
/// Two open files, and a row group.
pub(crate) const COMPACTION_MEMORY_MIN: u64 = 16 << 20;
const LOOK_EVERY_MIN: Duration = Duration::from_millis(100);
const DAYS_MAX: i64 = 36_500;
const VACUUM_RETAIN_MIN: Duration = Duration::from_secs(60);
const ROW_GROUP_BYTES_MIN: u64 = 1 << 20;
const ROW_GROUP_BYTES_MAX: u64 = 1 << 30;

fn read_compaction(mut fields: Fields<'_>, options: &mut CompactionOptions) -> Option<(u64, Pos)> {
    options.target = fields.size("target", "256MiB");
    if !(TARGET_MIN..=TARGET_MAX).contains(&options.target) {
        fields.error("target", "expected 1MiB to 4GiB");
    }
    options.seal_after = fields.duration("seal_after", "2h");
    options.zstd_level = i32::try_from(fields.int_in("zstd", 3, 1..=22)).unwrap_or(3);
    let memory = fields.opt_size("memory").map(|bytes| (bytes, fields.pos_of("memory")));
    fields.finish();
    memory
}

fn read_rollup(mut fields: Fields<'_>, options: &mut RollupOptions) {
    let mut lateness = fields.fields("lateness");
    let defaults = ["30s", "60s", "120s", "300s", "300s"];
    for ((name, default), late) in RESOLUTIONS.into_iter().zip(defaults).zip(&mut options.lateness) {
        *late = lateness.duration(name, default);
    }
    lateness.finish();
    options.late_every = fields.duration("late_interval", "5m");
    options.max_percent = u64::try_from(fields.int_in("max_percent", 100, 0..=1_000_000)).unwrap_or(0);
    fields.finish();
}

fn read_flush(mut flush: Fields<'_>, options: &mut LakeOptions) {
    options.flush_bytes = usize::try_from(flush.size("bytes", "64MiB")).unwrap_or(options.flush_bytes);
    options.flush_interval = flush.duration("interval", "60s");
    if options.flush_interval < FLUSH_INTERVAL_MIN {
        flush.error("interval", "expected at least 10ms");
        options.flush_interval = FLUSH_INTERVAL_MIN;
    }
    options.files.zstd_level = i32::try_from(flush.int_in("zstd", 1, 1..=22)).unwrap_or(1);
    flush.finish();
}

/// Reports a field that the format knows and this version does not support.
pub(crate) fn not_there(fields: &mut Fields<'_>, name: &str, instead: &str) {
    if fields.node(name, kind::NOT_THERE).is_some() {
        fields.error(name, format!("not in this version, which {instead}; remove it"));
    }
}
