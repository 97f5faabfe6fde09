//! Queries over HTTP: the engine on the lake of this process, which also sees uncommitted rows.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use thalweg_delta::store::LakeStorage;
use thalweg_lake::LakeMetrics;
use thalweg_lake::memtable_view::MemtableReader;
use thalweg_query::{Engine, QueryMetrics, QueryOptions};
use thalweg_telemetry::{Access, HttpRoutes, Metrics, Mount};

/// `/api/sql` of the process.
struct SqlRoutes(Engine);

impl HttpRoutes for SqlRoutes {
    fn mounts(&self) -> Vec<Mount> {
        vec![Mount {
            router: thalweg_query::http::router(self.0.clone()),
            access: Access::Read,
            under_root_path: false,
        }]
    }

    fn endpoints(&self) -> Vec<(String, String)> {
        vec![(
            thalweg_query::http::PATH.to_owned(),
            "SQL over the lake: POST a query, or GET ?q=".to_owned(),
        )]
    }

    fn acting_reads(&self) -> Vec<String> {
        vec![thalweg_query::http::PATH.to_owned()]
    }
}

pub(crate) fn routes(
    (site, data_dir, options): (LakeStorage, &Path, QueryOptions),
    metrics: &Metrics,
    lake: &LakeMetrics,
    live: Arc<dyn MemtableReader>,
) -> Result<Arc<dyn HttpRoutes>> {
    let memory = options.memory_bytes as u64;
    let cache = options.cache_bytes as u64;
    let engine = Engine::open_at(site, data_dir, options, QueryMetrics::register(metrics))?;
    engine.set_live(live);
    let watched = engine.clone();
    lake.watch_share("query.memory", memory, move || watched.memory_used() as u64);
    let watched = engine.clone();
    lake.watch_share("query.cache", cache, move || watched.cache_used() as u64);
    Ok(Arc::new(SqlRoutes(engine)))
}
