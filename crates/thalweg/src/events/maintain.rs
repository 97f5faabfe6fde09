//! `thalweg events verify`, `scavenge`: administration of a server, or of the folder of a stopped one.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use super::args::{EventsScavenge, EventsVerify};
use super::client::EventsClient;
use super::progress::ByteProgress;
use crate::out;

/// Something is damaged.
const DAMAGED: u8 = 65;

pub fn verify(options: &EventsVerify) -> Result<ExitCode> {
    let found = match &options.data_dir {
        Some(folder) => of_folder(folder)?,
        None => EventsClient::patient(&options.server)?.value(&json!(["sys.verify"]))?,
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
    let mut progress = ByteProgress::new("verified");
    let verified = runtime.block_on(thalweg_assemble::verify_events(folder, move |verified| {
        progress.tell(verified.bytes);
    }))?;
    let faults = verified
        .faults
        .iter()
        .map(|fault| json!({"namespace": fault.namespace, "offset": fault.offset, "what": fault.what}));
    let faults: Vec<Value> = faults.collect();
    Ok(json!({"messages": verified.messages, "bytes": verified.bytes, "faults": faults}))
}

pub fn scavenge(options: &EventsScavenge) -> Result<()> {
    let call = match options.erase {
        true => "[\"sys.scavenge\",{\"erase\":true}]",
        false => "[\"sys.scavenge\"]",
    };
    let freed = EventsClient::patient(&options.server)?.call(call)?;
    out::line(freed)?;
    Ok(())
}
