//! `sys.*`: information about the server, and maintenance.

use thalweg_events::{Health, ScavengeReport, VerifyReport};

use super::{RpcCall, RpcResponse};
use crate::json_text::{array, number, text};
use crate::problem::{Problem, Result};

pub(super) async fn call(name: &str, call: RpcCall<'_>) -> Option<Result<RpcResponse>> {
    Some(match name {
        "version" => version(call),
        "health" => health(call),
        "scavenge" => scavenge(call).await,
        "verify" => verify(call).await,
        _ => return None,
    })
}

fn version(call: RpcCall<'_>) -> Result<RpcResponse> {
    let mut out = String::new();
    text(&mut out, &call.server.options.version);
    Ok(RpcResponse::Text(out))
}

fn health(call: RpcCall<'_>) -> Result<RpcResponse> {
    let store = call.server.store()?;
    let status = match store.health() {
        Health::Healthy => "ok",
        Health::ReadOnly(_) => "degraded",
    };
    let connections = call.server.connections.get().map_or(0, |count| count());
    let (backend, durability) = (store.backend(), store.durability());
    Ok(RpcResponse::Text(format!(
        "{{\"backend\":\"{backend}\",\"connections\":{connections},\"status\":\"{status}\",\"durability\":\"{durability}\"}}"
    )))
}

async fn scavenge(call: RpcCall<'_>) -> Result<RpcResponse> {
    let erase = call.args.options(0)?.bool("erase")?;
    call.caller.may(call.server.admin())?;
    let store = call.server.store()?;
    let done = match erase {
        true => store.erase().await,
        false => store.scavenge().await,
    };
    let ScavengeReport { messages, bytes } = done.map_err(Problem::of("scavenge"))?;
    Ok(RpcResponse::Text(format!(
        "{{\"bytes\":{bytes},\"messages\":{messages},\"erased\":{erase}}}"
    )))
}

async fn verify(call: RpcCall<'_>) -> Result<RpcResponse> {
    call.caller.may(call.server.admin())?;
    let done = call.server.store()?.verify().await;
    let VerifyReport {
        messages,
        bytes,
        faults,
    } = done.map_err(Problem::of("verify"))?;
    let faults = array(&faults, |out, fault| {
        out.push_str("{\"namespace\":");
        text(out, &fault.namespace);
        out.push_str(",\"offset\":");
        number(out, fault.offset);
        out.push_str(",\"what\":");
        text(out, &fault.what);
        out.push('}');
    });
    Ok(RpcResponse::Text(format!(
        "{{\"bytes\":{bytes},\"faults\":{faults},\"messages\":{messages}}}"
    )))
}
