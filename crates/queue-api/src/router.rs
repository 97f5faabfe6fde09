//! The router, built from the table: axum selects by path and method; the action after a colon is selected here,
//! because axum's router matches only whole segments.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{RawPathParams, RawQuery, Request};
use axum::http::Method;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodFilter, on};
use thalweg_config::nearest;
use thalweg_telemetry::{Access, Mount};

use crate::json::cut;
use crate::problem::{Problem, Result};
use crate::request::{ApiRequest, ApiState};
use crate::routes::{BASE, ENDPOINTS, Endpoint};

/// Endpoints with the same path and method, which differ in their action.
type RouteEndpoints = Vec<&'static Endpoint>;

/// All routes, by the access that they require.
pub fn mounts(shared: &Arc<ApiState>) -> Vec<Mount> {
    let mut routes: BTreeMap<(&'static str, &'static str), RouteEndpoints> = BTreeMap::new();
    for endpoint in ENDPOINTS {
        let place = (endpoint.route(), endpoint.method.as_str());
        routes.entry(place).or_default().push(endpoint);
    }
    let mut mounts: BTreeMap<Access, Router> = BTreeMap::new();
    for ((route, _), choice) in routes {
        let Some(access) = choice.iter().map(|endpoint| endpoint.access).max() else {
            continue;
        };
        let router = mounts.remove(&access).unwrap_or_default();
        mounts.insert(access, add(router, route, choice, shared.clone()));
    }
    let mount = |(access, router)| Mount {
        router,
        access,
        under_root_path: false,
    };
    mounts.into_iter().map(mount).collect()
}

fn add(router: Router, route: &str, choice: RouteEndpoints, shared: Arc<ApiState>) -> Router {
    let method = choice.first().map_or(Method::GET, |endpoint| endpoint.method.clone());
    let Ok(filter) = MethodFilter::try_from(method) else {
        return router;
    };
    let choice = Arc::new(choice);
    let answer = move |names: std::result::Result<RawPathParams, _>, RawQuery(query), request: Request| {
        let (choice, shared) = (choice.clone(), shared.clone());
        async move {
            // A path that is not UTF-8 names nothing.
            let names = names.map_err(|_: axum::extract::rejection::RawPathParamsRejection| {
                Problem::no_such_path("the path is not UTF-8; names of queues and groups have only ASCII characters")
            });
            let answered = match names {
                Ok(names) => {
                    let names = names
                        .iter()
                        .map(|(part, name)| (part.to_owned(), name.to_owned()))
                        .collect();
                    choose(&choice, shared, names, query.unwrap_or_default(), request).await
                }
                Err(problem) => Err(problem),
            };
            answered.unwrap_or_else(|problem| problem.into_response())
        }
    };
    router.route(&format!("{BASE}{route}"), on(filter, answer))
}

/// Selects the endpoint of a request and calls it.
async fn choose(
    choice: &RouteEndpoints,
    shared: Arc<ApiState>,
    mut names: Vec<(String, String)>,
    query: String,
    request: Request,
) -> Result<Response> {
    let named = names.last().and_then(|(_, name)| name.split_once(':'));
    let action = named.map(|(_, action)| action.to_owned());
    let with_actions = choice.iter().any(|endpoint| endpoint.action().is_some());
    let endpoint = match &action {
        Some(action) if with_actions => {
            let actions = || choice.iter().filter_map(|endpoint| endpoint.action());
            let found = choice.iter().find(|endpoint| endpoint.action() == Some(action));
            found.ok_or_else(|| {
                let near = nearest(action, actions());
                Problem::no_such_path(format!("there is no action {:?}{near}", cut(action)))
            })?
        }
        _ => {
            let found = choice.iter().find(|endpoint| endpoint.action().is_none());
            found.ok_or_else(|| {
                let actions: Vec<&str> = choice.iter().filter_map(|endpoint| endpoint.action()).collect();
                let actions = actions.join(", :");
                Problem::no_such_path(format!("a POST here needs an action after the name: :{actions}"))
            })?
        }
    };
    if let (Some(action), Some((_, name)), true) = (&action, names.last_mut(), with_actions) {
        name.truncate(name.len() - action.len() - 1);
    }
    if endpoint.is_stream() && *request.method() == Method::HEAD {
        return Err(Problem::no_such_method("a stream of messages is opened with GET"));
    }
    let (parts, body) = request.into_parts();
    let call = ApiRequest {
        shared,
        names,
        query: parameters(endpoint, &query)?,
        headers: parts.headers,
        body: Mutex::new(body),
        memory: None,
    };
    if !endpoint.outlives_client() {
        return (endpoint.handler)(call).await;
    }
    tokio::spawn((endpoint.handler)(call)).await.unwrap_or_else(|panic| {
        tracing::error!(request = endpoint.id, %panic, "a request failed because of a bug in the program");
        Err(Problem::internal())
    })
}

/// The query parameters, each known and given once.
fn parameters(endpoint: &Endpoint, query: &str) -> Result<Vec<(String, String)>> {
    let mut found: Vec<(String, String)> = Vec::new();
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()).into_owned() {
        if !endpoint.query.contains(&name.as_str()) {
            let near = nearest(&name, endpoint.query);
            return Err(Problem::invalid(format!("?{}: unknown parameter{near}", cut(&name))));
        }
        if found.iter().any(|(other, _)| *other == name) {
            return Err(Problem::invalid(format!("?{name}: given twice")));
        }
        found.push((name, value));
    }
    Ok(found)
}
