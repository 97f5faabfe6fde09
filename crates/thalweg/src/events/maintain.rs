//! `thalweg events backup`, `verify`, `scavenge`: what an administrator asks of a server, or of the folder of one that does not
//! run.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::args::{Backup, Server, Verify};
use super::client::Client;
use super::files::Output;
use crate::out;

/// Something is damaged.
const DAMAGED: u8 = 65;

pub fn backup(options: &Backup) -> Result<()> {
    let mut answer = Client::new(&options.server)?.ask("GET", "/api/v1/events/backup", &[], ())?;
    let mut file = Output::create(&options.output)?;
    let mut source = answer.body_mut().with_config().limit(u64::MAX).reader();
    let copied = io::copy(&mut source, &mut file);
    let bytes = copied.with_context(|| format!("{} was not written to its end", options.output.display()))?;
    file.finish()?;
    out::complain(format_args!("{bytes} bytes in {}", options.output.display()));
    Ok(())
}

pub fn verify(options: &Verify) -> Result<ExitCode> {
    let found = match &options.data_dir {
        Some(folder) => of_folder(folder)?,
        None => Client::new(&options.server)?.value(&json!(["sys.verify"]))?,
    };
    out::line(&found)?;
    let faults = found["faults"].as_array().map_or(&[][..], Vec::as_slice);
    for fault in faults {
        let (namespace, what) = (fault["namespace"].as_str(), fault["what"].as_str());
        out::complain(format_args!(
            "thalweg: namespace {}, offset {}: {}",
            namespace.unwrap_or("?"),
            fault["offset"],
            what.unwrap_or("it is damaged")
        ));
    }
    match faults.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => Ok(ExitCode::from(DAMAGED)),
    }
}

/// In the form of the server's answer.
fn of_folder(folder: &Path) -> Result<Value> {
    let runtime = crate::runtime()?;
    let verified = runtime.block_on(thalweg_assemble::verify_events(folder))?;
    let faults = verified
        .faults
        .iter()
        .map(|fault| json!({"namespace": fault.namespace, "offset": fault.offset, "what": fault.what}));
    let faults: Vec<Value> = faults.collect();
    Ok(json!({"messages": verified.messages, "bytes": verified.bytes, "faults": faults}))
}

pub fn scavenge(server: &Server) -> Result<()> {
    let freed = Client::new(server)?.call("[\"sys.scavenge\"]")?;
    out::line(freed)?;
    Ok(())
}
