//! The server during a session: Writes and Reads of as many nodes as it accepts per call.

use std::time::Duration;

use opcua::types::{
    AttributeId, DataValue as UaDataValue, NodeId, NumericRange, StatusCode, TimestampsToReturn, WriteRequest,
    WriteValue,
};
use parking_lot::Mutex;
use thalweg_record::{Value, ValueQuality};

use super::data_type::variant;
use crate::call_size::CallSize;
use crate::channel::CallError;
use crate::namespace_array::NamespaceArray;
use crate::profile::Profile;
use crate::server_facts::ServerFacts;
use crate::session::{Session, read_id};
use crate::value::{DataValue, StructureRegistry, ValueContent, status};

/// A node and its new value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WriteTarget {
    pub node: NodeId,
    pub value: Value,
}

/// The service for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttributeService {
    Write,
    Read,
}

pub(super) struct WriteSession {
    pub session: Session,
    pub namespaces: NamespaceArray,
    per_write: Mutex<CallSize>,
    per_read: Mutex<CallSize>,
    types: StructureRegistry,
    /// Timeout of a call.
    answer_within: Duration,
}

impl WriteSession {
    pub fn new(session: Session, facts: ServerFacts, profile: &Profile, answer_within: Duration) -> WriteSession {
        let chunk = |limit| Mutex::new(CallSize::new(limit, profile.items_per_call, profile.adaptive));
        WriteSession {
            session,
            per_write: chunk(facts.limits.nodes_per_write),
            per_read: chunk(facts.limits.nodes_per_read),
            namespaces: facts.namespaces,
            types: StructureRegistry::default(),
            answer_within,
        }
    }

    /// Nodes that the server accepts in one call, as far as is known.
    pub fn per_call(&self, service: AttributeService) -> usize {
        match service {
            AttributeService::Write => self.per_write.lock().get(),
            AttributeService::Read => self.per_read.lock().get(),
        }
    }

    /// Writes the first targets, as many as the server accepts; returns the status of each, at least one.
    pub async fn write_some(&self, targets: &[WriteTarget]) -> Result<Vec<u32>, CallError> {
        loop {
            let size = self.per_write.lock().get().min(targets.len());
            let error = match self.write(targets.get(..size).unwrap_or_default()).await {
                Ok(statuses) => {
                    self.per_write.lock().succeeded();
                    return Ok(statuses);
                }
                Err(error) => error,
            };
            if self.per_write.lock().failed(size, &error) {
                continue;
            }
            return match size == 1 && is_too_large_alone(&error) {
                true => Ok(vec![StatusCode::BadRequestTooLarge.bits()]),
                false => Err(error),
            };
        }
    }

    /// Reads the values of the first targets, as many as the server accepts, at least one.
    pub async fn read_some(&self, targets: &[WriteTarget]) -> Result<Vec<DataValue>, CallError> {
        loop {
            let size = self.per_read.lock().get().min(targets.len());
            let error = match self.read(targets.get(..size).unwrap_or_default()).await {
                Ok(values) => {
                    self.per_read.lock().succeeded();
                    return Ok(values);
                }
                Err(error) => error,
            };
            if self.per_read.lock().failed(size, &error) {
                continue;
            }
            return match size == 1 && is_too_large_alone(&error) {
                true => Ok(vec![DataValue {
                    content: ValueContent::TooLarge,
                    stamps: ValueQuality::NONE,
                    wrapped: false,
                }]),
                false => Err(error),
            };
        }
    }

    async fn write(&self, targets: &[WriteTarget]) -> Result<Vec<u32>, CallError> {
        let values = targets.iter().map(|target| WriteValue {
            node_id: target.node.clone(),
            attribute_id: AttributeId::Value as u32,
            index_range: NumericRange::None,
            // Neither status nor time, because many servers refuse to write them.
            value: UaDataValue {
                value: Some(variant(&target.value)),
                ..UaDataValue::default()
            },
        });
        let request = WriteRequest {
            request_header: Default::default(),
            nodes_to_write: Some(values.collect()),
        };
        let response = self.session.call_within(request, self.answer_within).await?;
        let service = response.response_header.service_result.bits();
        if status::is_bad(service) {
            return Err(CallError::Refused(service));
        }
        let statuses = response.results.unwrap_or_default();
        CallError::check_count(statuses.len(), targets.len(), "writes")?;
        Ok(statuses.into_iter().map(|status| status.bits()).collect())
    }

    async fn read(&self, targets: &[WriteTarget]) -> Result<Vec<DataValue>, CallError> {
        let nodes = targets
            .iter()
            .map(|target| read_id(target.node.clone(), AttributeId::Value));
        // The device's current value, not the server's cached one.
        let age_max_ms = 0.0;
        self.session
            .read_within(
                nodes.collect(),
                TimestampsToReturn::Neither,
                age_max_ms,
                &self.types,
                self.answer_within,
            )
            .await
    }
}

/// For a call with one operation: whether it is too large for the server, rather than the server busy or its response
/// incomplete.
fn is_too_large_alone(error: &CallError) -> bool {
    let is_answered = !matches!(error, CallError::WrongCount { .. });
    is_answered && error.is_too_large() && error.status() != Some(StatusCode::BadTooManyOperations.bits())
}
