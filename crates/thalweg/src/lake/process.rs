//! Requests to the process that holds a data folder, for work that only it can do.

use std::io::{BufRead as _, BufReader};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use thalweg_assemble::DataDir;

use super::args::{LakeLocationOptions, ProcessAccess};
use crate::http::{HttpClient, HttpTarget, token};
use crate::refusal::refusal;

const TIMEOUT: Duration = Duration::from_secs(60);

pub enum HolderProcess {
    /// Over HTTP.
    Answers(ProcessClient),
    /// It has no listener.
    Silent(u64),
}

/// The current holder of the folder, or the process at the given address; `None` if there is none.
pub fn holder(place: &LakeLocationOptions, who: &ProcessAccess) -> Option<HolderProcess> {
    if let Some(url) = &who.url {
        return Some(HolderProcess::Answers(ProcessClient {
            url: url.clone(),
            who: who.clone(),
        }));
    }
    // The data folder of a lake given by URL is unknown.
    if place.lake.is_some() {
        return None;
    }
    let holder = DataDir::holder(&place.data_dir())?;
    Some(match holder.url() {
        None => HolderProcess::Silent(holder.process),
        Some(url) => HolderProcess::Answers(ProcessClient { url, who: who.clone() }),
    })
}

/// A process that answers HTTP.
pub struct ProcessClient {
    url: String,
    who: ProcessAccess,
}

impl ProcessClient {
    pub fn base(&self) -> &str {
        &self.url
    }

    fn http(&self, timeout: Option<Duration>) -> Result<HttpClient> {
        let token = token(self.who.token.as_ref(), self.who.token_file.as_ref())?;
        HttpClient::new(HttpTarget {
            url: &self.url,
            token: token.as_deref(),
            ca_file: self.who.ca_file.as_deref(),
            timeout,
            answer: None,
        })
    }

    pub fn get(&self, path: &str) -> Result<String> {
        let mut response = self.http(Some(TIMEOUT))?.send("GET", path, &[], ())?;
        let status = response.status();
        let text = response.body_mut().read_to_string().unwrap_or_default();
        match status.is_success() {
            true => Ok(text),
            false => bail!("{}", refusal(&text, status.as_u16())),
        }
    }

    /// Posts JSON and passes on the lines of the answer as they arrive.
    pub fn post_for_lines(&self, path: &str, body: &Value, line: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        let headers = [("content-type", "application/json")];
        let mut response = self.http(None)?.send("POST", path, &headers, body.to_string())?;
        let status = response.status();
        if !status.is_success() {
            let text = response.body_mut().read_to_string().unwrap_or_default();
            bail!("{}", refusal(&text, status.as_u16()));
        }
        for text in BufReader::new(response.body_mut().as_reader()).lines() {
            line(&text.with_context(|| format!("the answer of {} was cut off", self.url))?)?;
        }
        Ok(())
    }
}
