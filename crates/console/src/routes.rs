//! All paths of the listener in one router: Thalweg's own, those of other components, and again under `http.root_path`
//! those that clients of the reference system expect there.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, Uri, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use thalweg_config::HttpConfig;
use thalweg_telemetry::{Access, ActingPaths, HostNames, HttpRoutes, LinkablePaths, Mount, OriginPolicy, host_of};
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::SizeAbove;

use crate::body::BodyLimits;
use crate::guard::{AccessGuard, AccessRequirement};
use crate::refusal::{ListenerErrorKind, ProblemPaths, refusal};
use crate::{ConsoleOptions, StartError, cors, debug, health, page, refusal, status};

/// Compressing smaller answers costs more than it saves.
const COMPRESS_ABOVE_BYTES: u16 = 4096;

/// The status page and its files.
const PAGES: [&str; 2] = ["/", "/console/"];

/// Paths that show something at no more cost than a page.
const PLAIN: [&str; 6] = ["/ping", "/ready", "/version", "/endpoints", "/metrics", "/stats"];

/// A CPU profile is recorded during the request.
const ACTING: [&str; 1] = ["/debug/pprof/profile"];

pub fn build(
    options: &ConsoleOptions,
    state: &Arc<status::ConsoleState>,
    guard: Arc<AccessGuard>,
    others: &[Arc<dyn HttpRoutes>],
) -> Result<Router, StartError> {
    let own = own(options, state).into_iter().map(|mount| (mount, None));
    let others_mounts = others.iter().flat_map(|other| {
        other
            .mounts()
            .into_iter()
            .map(move |mount| (mount, Some(other.clone())))
    });
    let mounts = own.chain(others_mounts);
    let problems = ProblemPaths::new(others.iter().flat_map(|other| other.problem_paths()).collect());
    let limits = BodyLimits {
        limits: options.limits,
        own: Arc::new(others.iter().flat_map(|other| other.own_body_limits()).collect()),
    };
    let allowed = &guard.origins().allowed.clone();
    let mut all = Router::new();
    let mut under_root_path = Router::new();
    for (mount, owner) in mounts {
        let Mount {
            router,
            access,
            under_root_path: of_reference,
        } = mount;
        let guard = guard.clone();
        let guarded = router.layer(from_fn(move |request: Request, next| {
            let own = owner
                .as_ref()
                .and_then(|owner: &Arc<dyn HttpRoutes>| owner.access(request.method(), request.uri().path()));
            let access = own.unwrap_or(access);
            guard
                .clone()
                .check(AccessRequirement { access, of_reference }, request, next)
        }));
        if of_reference {
            under_root_path = merge(under_root_path, guarded.clone())?;
        }
        all = merge(all, guarded)?;
    }
    let all = match root_path(&options.http.root_path)? {
        Some(path) => all.nest(&path, under_root_path),
        None => all,
    };
    let rules = Arc::new(RequestRules { problems, limits });
    // One layer, because each layer clones everything below it for every request.
    let all = all
        .fallback(not_found)
        .layer((from_fn_with_state(rules, around), DefaultBodyLimit::disable()));
    Ok(cors::around(all, allowed))
}

/// Which origins may send requests, and what a link on any page may open.
pub fn origins(http: &HttpConfig, others: &[Arc<dyn HttpRoutes>]) -> Result<OriginPolicy, StartError> {
    let setting = cors::setting("http");
    let allowed = cors::allowed(&setting, &http.cors)?;
    let root = root_path(&http.root_path)?.unwrap_or_default();
    let under_root = PLAIN.map(|path| format!("{root}{path}"));
    let links = PAGES
        .iter()
        .chain(&PLAIN)
        .copied()
        .chain(under_root.iter().map(String::as_str));
    Ok(OriginPolicy {
        allowed,
        setting,
        own_name: host_of(&http.address).map(str::to_ascii_lowercase),
        links: LinkablePaths::new(links),
        acting: ActingPaths::new(
            ACTING
                .iter()
                .map(|path| (*path).to_owned())
                .chain(
                    ACTING
                        .iter()
                        .filter(|_| !root.is_empty())
                        .map(|path| format!("{root}{path}")),
                )
                .chain(others.iter().flat_map(|other| other.acting_reads())),
        ),
        tokens_in_address: others.iter().flat_map(|other| other.tokens_in_address()).collect(),
        names: HostNames::Any,
    })
}

fn own(options: &ConsoleOptions, state: &Arc<status::ConsoleState>) -> Vec<Mount> {
    let compress = || CompressionLayer::new().compress_when(SizeAbove::new(COMPRESS_ABOVE_BYTES));
    let mut mounts = vec![
        Mount {
            router: health::open(state),
            access: Access::Open,
            under_root_path: true,
        },
        Mount {
            router: health::readable(state).layer(compress()),
            access: Access::ReadWrite,
            under_root_path: true,
        },
        Mount {
            router: status::router(state).layer(compress()),
            access: Access::ReadWrite,
            under_root_path: false,
        },
        Mount {
            router: page::router().layer(compress()),
            access: Access::ReadWrite,
            under_root_path: false,
        },
    ];
    // Profiles are compressed already.
    let debug = match options.http.debug_endpoints {
        true => debug::router(options.config.clone()),
        false => debug::switched_off(),
    };
    mounts.push(Mount {
        router: debug,
        access: Access::Admin,
        under_root_path: true,
    });
    mounts
}

/// Paths that this crate serves, with their descriptions.
pub fn own_endpoints(debug: bool) -> Vec<(&'static str, &'static str)> {
    let mut endpoints = vec![
        ("/", "Status page."),
        ("/ping", "Answers pong while the process runs."),
        (
            "/ready",
            "Status 200 when data can flow, else 503 and what prevents it.",
        ),
        ("/version", "Version and build."),
        ("/endpoints", "This list."),
        ("/metrics", "Metrics in the Prometheus text format."),
        ("/stats", "The same as /metrics."),
        ("/api/v1/status", "State of flows, tables and process as JSON."),
        ("/api/v1/status/history", "Totals of the last minutes as JSON."),
    ];
    if debug {
        endpoints.extend([
            ("/debug/config/json", "Effective configuration, secrets masked."),
            ("/debug/config/yaml", "Effective configuration, secrets masked."),
            ("/debug/stack", "Threads with their states and kernel stacks as text."),
            ("/debug/pprof/profile", "CPU profile of ?seconds=30 in pprof format."),
            ("/debug/pprof/heap", "Live heap in pprof format, when profiling is on."),
            (
                "/debug/pprof/goroutine",
                "Threads with their states and kernel stacks in pprof format.",
            ),
        ]);
    }
    endpoints
}

/// The list for `/endpoints`. A path that two components declare is an error.
pub fn endpoints(debug: bool, others: &[Arc<dyn HttpRoutes>]) -> Result<BTreeMap<String, String>, StartError> {
    let own = own_endpoints(debug)
        .into_iter()
        .map(|(path, about)| (path.to_owned(), about.to_owned()));
    let mut list: BTreeMap<String, String> = own.collect();
    for other in others {
        // One component may declare a path once per method.
        let declared: HashMap<String, String> = other.endpoints().into_iter().collect();
        for (path, about) in declared {
            if list.contains_key(&path) {
                return Err(StartError::PathTaken { path });
            }
            list.insert(path, about);
        }
    }
    Ok(list)
}

/// axum panics when two routers have the same path. Components that declare their paths never cause a clash here; this
/// is for those that do not.
fn merge(into: Router, router: Router) -> Result<Router, StartError> {
    catch_unwind(AssertUnwindSafe(move || into.merge(router))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        StartError::PathsClash {
            problem: text.unwrap_or_default(),
        }
    })
}

/// Without a trailing slash; `None` for the root itself.
fn root_path(configured: &str) -> Result<Option<String>, StartError> {
    let path = configured.trim_end_matches('/');
    if path.is_empty() {
        return Ok(None);
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.~".contains(c);
    if !path.starts_with('/') || !path.chars().all(plain) || path.contains("//") {
        return Err(StartError::RootPath {
            path: configured.to_owned(),
        });
    }
    Ok(Some(path.to_owned()))
}

/// Rules that apply to every path.
struct RequestRules {
    problems: ProblemPaths,
    limits: BodyLimits,
}

/// Middleware around everything that reads a body or refuses something.
async fn around(State(rules): State<Arc<RequestRules>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let form = rules.problems.form(&parts);
    let response = match rules.limits.watch(&parts, body).await {
        Ok((body, watched)) => {
            let response = next.run(Request::from_parts(parts, body)).await;
            watched.judge(response).await
        }
        Err(refused) => refused,
    };
    let mut response = refusal::in_form(form, response);
    // Browsers must not guess another type than the declared one.
    response
        .headers_mut()
        .insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

async fn not_found(uri: Uri) -> Response {
    let path: String = uri.path().chars().take(200).collect();
    refusal(
        ListenerErrorKind::NotFound,
        format!("there is no path {path} here; /endpoints lists the existing ones"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_path_is_plain_or_refused() {
        assert_eq!(root_path("/benthos").unwrap().as_deref(), Some("/benthos"));
        assert_eq!(root_path("/a/b/").unwrap().as_deref(), Some("/a/b"));
        assert_eq!(root_path("/").unwrap(), None);
        assert_eq!(root_path("").unwrap(), None);
        for wrong in ["benthos", "/{x}", "/*y", "/a b", "/a//b", "/ä"] {
            assert!(root_path(wrong).is_err(), "{wrong}");
        }
    }
}
