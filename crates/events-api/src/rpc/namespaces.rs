//! `ns.*`: namespaces, and the streams and categories of one.

use std::cmp::Reverse;

use thalweg_events::{NamespaceInfo, NewNamespace, Scopes, Token, new_token, time};

use super::{Answer, Call};
use crate::auth::Need;
use crate::problem::{Problem, Result};
use crate::write::{instant, number, text};

const ID_BYTES_MAX: usize = 255;
const STREAMS: i64 = 100;
const STREAMS_MAX: i64 = 1000;

pub(super) async fn create(call: Call<'_>) -> Result<Answer> {
    let args = call.args;
    args.at_least(1, "ns.create requires at least 1 argument: namespace ID")?;
    let id = args.namespace(0)?;
    if !is_valid(&id) {
        return Err(Problem::invalid("namespace ID contains invalid characters"));
    }
    let options = args.options(1)?;
    let description = options.string("description")?.unwrap_or_default().into_owned();
    let given = options.string("token")?;
    let given = given.map(|token| Token::parse(&token).map(|parsed| (parsed, token.into_owned())));
    let given = given
        .transpose()
        .map_err(|error| Problem::invalid(format!("Invalid token format: {error}")))?;
    if let Some((token, _)) = &given
        && token.namespace() != id
    {
        let other = token.namespace();
        return Err(Problem::invalid(format!(
            "Token is for namespace '{other}', not '{id}'"
        )));
    }
    let metadata = options.object("metadata")?.map(|json| json.text().to_owned());
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
    let info = call
        .server
        .store
        .create(new)
        .await
        .map_err(Problem::of("create namespace"))?;
    let mut out = String::from("{\"createdAt\":");
    instant(&mut out, Some(info.created_at));
    out.push_str(",\"namespace\":");
    text(&mut out, &info.name);
    out.push_str(",\"token\":");
    text(&mut out, &shown);
    out.push('}');
    Ok(Answer::Text(out))
}

fn is_valid(id: &str) -> bool {
    id.len() <= ID_BYTES_MAX
        && !matches!(id, "." | "..")
        && !id.contains(|c: char| c.is_control() || matches!(c, '/' | '\\'))
}

pub(super) async fn delete(call: Call<'_>) -> Result<Answer> {
    call.args.at_least(1, "ns.delete requires 1 argument: namespace ID")?;
    let id = call.args.namespace(0)?;
    call.caller.may(call.server.admin())?;
    let messages = call
        .server
        .store
        .delete(&id)
        .await
        .map_err(Problem::of("delete namespace"))?;
    let mut out = String::from("{\"deletedAt\":");
    text(&mut out, &time::text(time::now()));
    out.push_str(",\"messagesDeleted\":");
    number(&mut out, messages);
    out.push_str(",\"namespace\":");
    text(&mut out, &id);
    out.push('}');
    Ok(Answer::Text(out))
}

/// Without `admin`, the caller's own.
pub(super) async fn list(call: Call<'_>) -> Result<Answer> {
    call.caller.may(Need::Read)?;
    let action = Problem::of("list namespaces");
    let mut infos = Vec::new();
    for namespace in call.server.store.namespaces().await.map_err(&action)? {
        if call.sees_all() || namespace.name() == call.caller.name {
            infos.push(namespace.info().await.map_err(&action)?);
        }
    }
    infos.sort_by(|one, other| (Reverse(one.created_at), &one.name).cmp(&(Reverse(other.created_at), &other.name)));
    Ok(Answer::Text(array(&infos, |out, info| {
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

pub(super) async fn info(call: Call<'_>) -> Result<Answer> {
    call.args.at_least(1, "ns.info requires 1 argument: namespace ID")?;
    let id = call.args.namespace(0)?;
    if id != call.caller.name {
        call.caller.may(call.server.admin())?;
    }
    let action = Problem::of("get namespace");
    let namespace = call.server.store.namespace(&id).await.map_err(&action)?;
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
    Ok(Answer::Text(out))
}

pub(super) async fn streams(call: Call<'_>) -> Result<Answer> {
    let options = call.args.options(0)?;
    let prefix = options.string_named("prefix", "prefix")?.unwrap_or_default();
    let cursor = options.string_named("cursor", "cursor")?.unwrap_or_default();
    let limit = options.number_named("limit", "limit")?.unwrap_or(STREAMS);
    if !(1..=STREAMS_MAX).contains(&limit) {
        return Err(Problem::invalid("limit must be between 1 and 1000"));
    }
    call.caller.may(Need::Read)?;
    let found = call.caller.namespace()?.streams(&prefix, &cursor, limit as usize).await;
    let found = found.map_err(Problem::of("list streams"))?;
    Ok(Answer::Text(array(&found, |out, stream| {
        out.push_str("{\"lastActivity\":");
        instant(out, Some(stream.last_activity));
        out.push_str(",\"stream\":");
        text(out, &stream.stream);
        out.push_str(",\"version\":");
        number(out, stream.version);
        out.push('}');
    })))
}

pub(super) async fn categories(call: Call<'_>) -> Result<Answer> {
    call.caller.may(Need::Read)?;
    let found = call.caller.namespace()?.categories().await;
    let found = found.map_err(Problem::of("list categories"))?;
    Ok(Answer::Text(array(&found, |out, category| {
        out.push_str("{\"category\":");
        text(out, &category.category);
        out.push_str(",\"messageCount\":");
        number(out, category.messages);
        out.push_str(",\"streamCount\":");
        number(out, category.streams);
        out.push('}');
    })))
}

fn array<T>(items: &[T], write: impl Fn(&mut String, &T)) -> String {
    let mut out = String::from("[");
    for (n, item) in items.iter().enumerate() {
        if n > 0 {
            out.push(',');
        }
        write(&mut out, item);
    }
    out.push(']');
    out
}

impl Call<'_> {
    /// Whether the caller sees namespaces of others.
    fn sees_all(&self) -> bool {
        self.caller.is_admin() || self.server.options.open_admin
    }
}
