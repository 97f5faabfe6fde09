//! The section `ingest`.

use thalweg_columns::rows::record_limits::RecordLimits;
use thalweg_columns::rows::times::ArrivalWindow;
use thalweg_config::{Config, Diagnostics, Fields, ListenerConfig, Pos};
use thalweg_otlp::ReceiverOptions;

use crate::lake::not_there;

const GRPC: (&str, &str) = ("ingest.otlp.grpc", "127.0.0.1:4317");
const HTTP: (&str, &str) = ("ingest.otlp.http", "127.0.0.1:4318");
/// Below this, one request of usual size would fill the budget.
pub(crate) const INFLIGHT_MIN: u64 = 8 << 20;

/// The receivers, if the section is given.
#[derive(Clone, Debug)]
pub(crate) struct IngestSection {
    pub grpc: ListenerConfig,
    pub http: ListenerConfig,
    pub receiver: ReceiverOptions,
    pub window: ArrivalWindow,
    /// `inflight_bytes`, if given; the value in the options is set when the memory is divided.
    pub inflight: Option<(u64, Pos)>,
}

/// Reads the section; mistakes go to the diagnostics.
pub(crate) fn section(config: &Config, diagnostics: &Diagnostics) -> Option<IngestSection> {
    let mut fields = Fields::new(config.ingest.as_ref()?, diagnostics);
    let mut otlp = fields.fields("otlp");
    let grpc = ListenerConfig::read(GRPC.0, otlp.fields("grpc"), GRPC.1);
    let http = ListenerConfig::read_for_pages(HTTP.0, otlp.fields("http"), HTTP.1);
    otlp.finish();
    let receiver = receiver(&mut fields);
    let nanos = |time: std::time::Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
    let window = ArrivalWindow {
        past: nanos(fields.duration("past_max", "87660h")),
        future: nanos(fields.duration("future_max", "24h")),
    };
    let inflight = fields.opt_size("inflight_bytes");
    let inflight = inflight.map(|bytes| (bytes, fields.pos_of("inflight_bytes")));
    not_there(&mut fields, "watch", "takes files with thalweg lake ingest only");
    fields.finish();
    Some(IngestSection {
        grpc,
        http,
        receiver,
        window,
        inflight,
    })
}

const BODY_BYTES_MAX: usize = 31 << 20;

fn receiver(fields: &mut Fields<'_>) -> ReceiverOptions {
    let count = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let body_bytes_max = count(fields.size("max_body_bytes", "16MiB"));
    if body_bytes_max > BODY_BYTES_MAX {
        fields.error(
            "max_body_bytes",
            "expected at most 31MiB, because the log accepts 32MiB at once, including the entry header",
        );
    }
    ReceiverOptions {
        body_bytes_max,
        decoded_bytes_max: count(fields.size("max_decoded_bytes", "64MiB")),
        ratio_max: count(fields.int_in("max_ratio", 1000, 1..=1_000_000).unsigned_abs()),
        zstd_window_max: count(fields.size("zstd_window", "8MiB")),
        requests_max: count(fields.int_in("max_requests", 4096, 1..=1_000_000).unsigned_abs()),
        body_timeout: fields.duration("body_timeout", "30s"),
        walk: RecordLimits {
            nesting: count(fields.int_in("max_nesting", 64, 1..=256).unsigned_abs()),
            attributes: count(fields.int_in("max_attributes", 1024, 1..=65_535).unsigned_abs()),
            name_bytes: count(fields.size("max_name_bytes", "512B")),
            value_bytes: count(fields.size("max_value_bytes", "1MiB")),
            cut_values: fields.one_of("on_long_value", &["reject", "truncate"], "reject") == "truncate",
        },
        ..ReceiverOptions::default()
    }
}
