//! `ns.*`: namespaces, and the streams and categories of a namespace.

use std::cmp::Reverse;

use thalweg_events::limits::check_namespace;
use thalweg_events::{EventsError, NamespaceInfo, NewNamespace, Scopes, Token, new_token, time};

use super::{RpcCall, RpcResponse};
use crate::args::CallOptions;
use crate::auth::RequiredScope;
use crate::json_text::{array, instant, number, text};
use crate::problem::{Problem, Result};

const STREAMS: i64 = 100;
const STREAMS_MAX: i64 = 1000;
/// The limit for a description and for metadata: both are in the list of all namespaces, which is in memory.
const ABOUT_BYTES_MAX: usize = 1 << 20;

pub(super) async fn call(name: &str, call: RpcCall<'_>) -> Option<Result<RpcResponse>> {
    Some(match name {
        "create" => create(call).await,
        "delete" => delete(call).await,
        "list" => list(call).await,
        "info" => info(call).await,
        "streams" => streams(call).await,
        "categories" => categories(call).await,
        _ => return None,
    })
}

async fn create(call: RpcCall<'_>) -> Result<RpcResponse> {
    let args = call.args;
    args.at_least(1, "ns.create requires at least 1 argument: namespace ID")?;
    let id = args.namespace(0)?;
    check_namespace(&id)?;
    let options = args.options(1)?;
    let description = options.string("description")?.unwrap_or_default().into_owned();
    let given = given_token(options, &id)?;
    let metadata = options.object("metadata")?.map(|json| json.text().to_owned());
    for (told, len) in [
        ("description", description.len()),
        ("metadata", metadata.as_ref().map_or(0, String::len)),
    ] {
        if len > ABOUT_BYTES_MAX {
            return Err(Problem::invalid(format!(
                "options.{told} exceeds {ABOUT_BYTES_MAX} bytes"
            )));
        }
    }
    call.caller.may(call.server.admin())?;
    let (token, shown) = match given {
        Some(given) => given,
        None => new_token(&id).map_err(Problem::of("create namespace"))?,
    };
    let new = NewNamespace {
        name: id.into_owned(),
        description,
        metadata,
        digest: *token.digest(),
        scopes: Scopes::READ_WRITE,
    };
    let made = call.server.store()?.create(new).await;
    let info = made.map_err(Problem::of("create namespace"))?;
    let mut out = String::from("{\"createdAt\":");
    instant(&mut out, Some(info.created_at));
    out.push_str(",\"namespace\":");
    text(&mut out, &info.name);
    out.push_str(",\"token\":");
    text(&mut out, &shown);
    out.push('}');
    Ok(RpcResponse::Text(out))
}

/// A token that the caller chose for this namespace.
pub(super) fn given_token(options: CallOptions<'_>, id: &str) -> Result<Option<(Token, String)>> {
    let Some(given) = options.string("token")? else {
        return Ok(None);
    };
    let wrong = |error| Problem::invalid(format!("Invalid token format: {error}"));
    let token = Token::parse(&given).map_err(wrong)?;
    match token.namespace() {
        other if other != id => Err(Problem::invalid(format!(
            "Token is for namespace '{other}', not '{id}'"
        ))),
        _ => Ok(Some((token, given.into_owned()))),
    }
}

async fn delete(call: RpcCall<'_>) -> Result<RpcResponse> {
    call.args.at_least(1, "ns.delete requires 1 argument: namespace ID")?;
    let id = call.args.namespace(0)?;
    call.caller.may(call.server.admin())?;
    let deleted = call.server.store()?.delete(&id).await;
    let messages = deleted.map_err(Problem::of("delete namespace"))?;
    call.server.meters.forget(&id);
    call.server.subscriptions.forget(&id);
    let mut out = String::from("{\"deletedAt\":");
    text(&mut out, &time::text(time::now()));
    out.push_str(",\"messagesDeleted\":");
    number(&mut out, messages);
    out.push_str(",\"namespace\":");
    text(&mut out, &id);
    out.push('}');
    Ok(RpcResponse::Text(out))
}

/// Without `admin`, only the caller's own namespace.
async fn list(call: RpcCall<'_>) -> Result<RpcResponse> {
    if !call.sees_all() {
        call.caller.may(RequiredScope::Read)?;
    }
    let action = Problem::of("list namespaces");
    let mut infos = Vec::new();
    for namespace in call.server.store()?.namespaces().await.map_err(&action)? {
        if !call.sees_all() && namespace.name() != call.caller.name {
            continue;
        }
        match namespace.info().await {
            Ok(info) => infos.push(info),
            // The namespace was deleted meanwhile.
            Err(EventsError::NamespaceNotFound(_)) => {}
            Err(error) => return Err(action(error)),
        }
    }
    infos.sort_by(|one, other| (Reverse(one.created_at), &one.name).cmp(&(Reverse(other.created_at), &other.name)));
    Ok(RpcResponse::Text(array(&infos, |out, info| {
        out.push_str("{\"createdAt\":");
        instant(out, Some(info.created_at));
        out.push_str(",\"description\":");
        text(out, &info.description);
        out.push_str(",\"messageCount\":");
        number(out, info.messages);
        out.push_str(",\"namespace\":");
        text(out, &info.name);
        out.push('}');
    })))
}

async fn info(call: RpcCall<'_>) -> Result<RpcResponse> {
    call.args.at_least(1, "ns.info requires 1 argument: namespace ID")?;
    let id = call.args.namespace(0)?;
    if id != call.caller.name {
        call.caller.may(call.server.admin())?;
    }
    let action = Problem::of("get namespace");
    let namespace = call.server.store()?.namespace(&id).await.map_err(&action)?;
    let info: NamespaceInfo = namespace.info().await.map_err(&action)?;
    let mut out = String::from("{\"createdAt\":");
    instant(&mut out, Some(info.created_at));
    out.push_str(",\"description\":");
    text(&mut out, &info.description);
    out.push_str(",\"lastActivity\":");
    instant(&mut out, info.last_activity);
    out.push_str(",\"messageCount\":");
    number(&mut out, info.messages);
    out.push_str(",\"namespace\":");
    text(&mut out, &info.name);
    out.push_str(",\"streamCount\":");
    number(&mut out, info.streams);
    out.push_str(",\"metadata\":");
    out.push_str(info.metadata.as_deref().unwrap_or("null"));
    out.push('}');
    Ok(RpcResponse::Text(out))
}

async fn streams(call: RpcCall<'_>) -> Result<RpcResponse> {
    let options = call.args.options(0)?;
    let prefix = options.string_named("prefix", "prefix")?.unwrap_or_default();
    let cursor = options.string_named("cursor", "cursor")?.unwrap_or_default();
    let limit = options.number_named("limit", "limit")?.unwrap_or(STREAMS);
    if !(1..=STREAMS_MAX).contains(&limit) {
        return Err(Problem::invalid("limit must be between 1 and 1000"));
    }
    call.caller.may(RequiredScope::Read)?;
    let found = call.caller.namespace()?.streams(&prefix, &cursor, limit as usize).await;
    let found = found.map_err(Problem::of("list streams"))?;
    Ok(RpcResponse::Text(array(&found, |out, stream| {
        out.push_str("{\"lastActivity\":");
        instant(out, Some(stream.last_activity));
        out.push_str(",\"stream\":");
        text(out, &stream.stream);
        out.push_str(",\"version\":");
        number(out, stream.version);
        out.push('}');
    })))
}

async fn categories(call: RpcCall<'_>) -> Result<RpcResponse> {
    call.caller.may(RequiredScope::Read)?;
    let found = call.caller.namespace()?.categories().await;
    let found = found.map_err(Problem::of("list categories"))?;
    Ok(RpcResponse::Text(array(&found, |out, category| {
        out.push_str("{\"category\":");
        text(out, &category.category);
        out.push_str(",\"messageCount\":");
        number(out, category.messages);
        out.push_str(",\"streamCount\":");
        number(out, category.streams);
        out.push('}');
    })))
}

impl RpcCall<'_> {
    /// Whether the caller sees other namespaces.
    fn sees_all(&self) -> bool {
        self.caller.is_admin() || self.server.options.open_admin
    }
}
