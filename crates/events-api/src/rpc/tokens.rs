//! `token.*`: a namespace may have several tokens, so that one can replace another without a gap.

use thalweg_events::json::Json;
use thalweg_events::{NewToken, Scopes, TokenInfo, new_token, time};

use super::namespaces::given_token;
use super::{RpcCall, RpcResponse};
use crate::args::CallOptions;
use crate::json_text::{array, instant, text};
use crate::problem::{Problem, Result};

const DESCRIPTION_BYTES_MAX: usize = 4096;

pub(super) async fn call(name: &str, call: RpcCall<'_>) -> Option<Result<RpcResponse>> {
    Some(match name {
        "create" => create(call).await,
        "list" => list(call).await,
        "revoke" => revoke(call).await,
        _ => return None,
    })
}

async fn create(call: RpcCall<'_>) -> Result<RpcResponse> {
    let args = call.args;
    args.at_least(
        2,
        "token.create requires at least 2 arguments: namespace ID and options",
    )?;
    let id = args.namespace(0)?;
    let options = args.options(1)?;
    let scopes = scopes(options)?;
    let description = options.string("description")?.unwrap_or_default().into_owned();
    if description.len() > DESCRIPTION_BYTES_MAX {
        let message = format!("options.description exceeds {DESCRIPTION_BYTES_MAX} bytes");
        return Err(Problem::invalid(message));
    }
    let expires_at = expires_at(options)?;
    let given = given_token(options, &id)?;
    call.caller.may(call.server.admin())?;
    let action = Problem::of("create token");
    let (token, shown) = match given {
        Some(given) => given,
        None => new_token(&id).map_err(&action)?,
    };
    let new = NewToken {
        digest: *token.digest(),
        scopes,
        description,
        expires_at,
    };
    let info = call.server.store()?.create_token(&id, new).await.map_err(&action)?;
    let mut out = String::new();
    about(&mut out, &info);
    out.pop();
    out.push_str(",\"namespace\":");
    text(&mut out, &id);
    out.push_str(",\"token\":");
    text(&mut out, &shown);
    out.push('}');
    Ok(RpcResponse::Text(out))
}

fn scopes(options: CallOptions<'_>) -> Result<Scopes> {
    let wrong = || Problem::invalid("options.scopes must be a non-empty array of 'read', 'write' and 'admin'");
    let named = options.get("scopes").and_then(Json::array).ok_or_else(wrong)?;
    let mut scopes = Scopes::default();
    for name in named {
        match name.string().as_deref() {
            Some("read") => scopes.read = true,
            Some("write") => scopes.write = true,
            Some("admin") => scopes.admin = true,
            _ => return Err(wrong()),
        }
    }
    match scopes == Scopes::default() {
        true => Err(wrong()),
        false => Ok(scopes),
    }
}

fn expires_at(options: CallOptions<'_>) -> Result<Option<i64>> {
    let Some(moment) = options.string("expiresAt")? else {
        return Ok(None);
    };
    let moment = time::parse(&moment).ok_or_else(|| Problem::invalid("options.expiresAt must be an RFC 3339 time"))?;
    match moment > time::now() {
        true => Ok(Some(moment)),
        false => Err(Problem::invalid("options.expiresAt must be in the future")),
    }
}

async fn list(call: RpcCall<'_>) -> Result<RpcResponse> {
    let args = call.args;
    args.at_least(1, "token.list requires 1 argument: namespace ID")?;
    let id = args.namespace(0)?;
    call.caller.may(call.server.admin())?;
    let tokens = call.server.store()?.tokens(&id).await;
    Ok(RpcResponse::Text(array(
        &tokens.map_err(Problem::of("list tokens"))?,
        about,
    )))
}

async fn revoke(call: RpcCall<'_>) -> Result<RpcResponse> {
    let args = call.args;
    args.at_least(2, "token.revoke requires 2 arguments: namespace ID and token ID")?;
    let id = args.namespace(0)?;
    let token = args.non_empty(1, "token ID must be a non-empty string")?;
    call.caller.may(call.server.admin())?;
    let revoked = call.server.store()?.revoke_token(&id, &token).await;
    let revoked = revoked.map_err(Problem::of("revoke token"))?;
    let mut out = String::from("{\"id\":");
    text(&mut out, &token);
    out.push_str(if revoked {
        ",\"revoked\":true}"
    } else {
        ",\"revoked\":false}"
    });
    Ok(RpcResponse::Text(out))
}

/// Writes nothing of the token's text.
fn about(out: &mut String, token: &TokenInfo) {
    out.push_str("{\"createdAt\":");
    instant(out, Some(token.created_at));
    out.push_str(",\"description\":");
    text(out, &token.description);
    out.push_str(",\"expiresAt\":");
    instant(out, token.expires_at);
    out.push_str(",\"id\":");
    text(out, &token.id);
    out.push_str(",\"scopes\":");
    let Scopes { read, write, admin } = token.scopes;
    let named = [("read", read), ("write", write), ("admin", admin)];
    let named: Vec<_> = named.into_iter().filter(|(_, has)| *has).collect();
    out.push_str(&array(&named, |out, (name, _)| text(out, name)));
    out.push('}');
}
