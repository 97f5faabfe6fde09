//! Requests the metadata of all topics that the client knows, in one request: many can be missing at a time, and each
//! needs several responses until it is given up.
//!
//! A client can query one topic, those that it knows, or all of the cluster. The last was rejected: such a response
//! omits unauthorised topics as it omits missing ones, brokers do not auto-create topics for it, and most topics of a
//! large cluster do not concern this output.

use std::collections::HashMap;
use std::ffi::{CStr, CString};

use rdkafka::bindings;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::Producer as _;
use thalweg_record::Text;

use super::ProducerClient;
use crate::link::{ANSWER, TopicAccessError};

/// Returns what is wrong with topics, for those with a response. Blocks.
pub fn troubles(client: &ProducerClient, topics: Vec<Text>) -> Vec<(Text, Option<TopicAccessError>)> {
    let Some(listing) = MetadataResponse::fetch(client) else {
        return Vec::new();
    };
    let said: HashMap<&[u8], Option<TopicAccessError>> = listing.topics().collect();
    let mut answers = Vec::with_capacity(topics.len());
    for topic in topics {
        match said.get(topic.as_bytes()) {
            Some(trouble) => answers.push((topic, *trouble)),
            // The client replaced one that died. From now on it also queries this topic.
            None => get_to_know(client, &topic),
        }
    }
    answers
}

fn get_to_know(client: &ProducerClient, topic: &Text) {
    let Ok(name) = CString::new(topic.as_str()) else {
        return;
    };
    // SAFETY: client and name outlive the calls, which copy the name; the handle is null or released once.
    unsafe {
        let known = bindings::rd_kafka_topic_new(client.client().native_ptr(), name.as_ptr(), std::ptr::null_mut());
        if !known.is_null() {
            bindings::rd_kafka_topic_destroy(known);
        }
    }
}

/// A broker's response.
struct MetadataResponse(*const bindings::rd_kafka_metadata);

impl MetadataResponse {
    /// Returns `None` without a response.
    fn fetch(client: &ProducerClient) -> Option<MetadataResponse> {
        let (client, answer_ms) = (client.client().native_ptr(), i32::try_from(ANSWER.as_millis()).ok()?);
        let mut answer = std::ptr::null();
        // SAFETY: the client outlives the call; a null topic selects all topics that it knows.
        let code = unsafe { bindings::rd_kafka_metadata(client, 0, std::ptr::null_mut(), &mut answer, answer_ms) };
        let is_there = RDKafkaErrorCode::from(code) == RDKafkaErrorCode::NoError && !answer.is_null();
        is_there.then_some(MetadataResponse(answer))
    }

    fn topics(&self) -> impl Iterator<Item = (&[u8], Option<TopicAccessError>)> {
        // SAFETY: the response is valid until it is dropped, with as many topics as it says, whose names end with a
        // zero.
        let topics = unsafe {
            let answer = &*self.0;
            match usize::try_from(answer.topic_cnt) {
                Ok(count) if !answer.topics.is_null() => std::slice::from_raw_parts(answer.topics, count),
                _ => &[],
            }
        };
        topics.iter().map(|topic| {
            // SAFETY: as above.
            let name = unsafe { CStr::from_ptr(topic.topic) };
            (name.to_bytes(), trouble(RDKafkaErrorCode::from(topic.err)))
        })
    }
}

impl Drop for MetadataResponse {
    fn drop(&mut self) {
        // SAFETY: this value owns the response.
        unsafe { bindings::rd_kafka_metadata_destroy(self.0) }
    }
}

fn trouble(code: RDKafkaErrorCode) -> Option<TopicAccessError> {
    match code {
        RDKafkaErrorCode::UnknownTopicOrPartition => Some(TopicAccessError::Missing),
        RDKafkaErrorCode::TopicAuthorizationFailed => Some(TopicAccessError::Denied),
        // For example, a topic being created.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rdkafka::ClientConfig;
    use rdkafka::mocking::MockCluster;
    use rdkafka::types::RDKafkaRespErr;
    use thalweg_flow::OutputContext;

    use thalweg_kit::blocking;

    use super::*;
    use crate::link::BrokerLink;
    use crate::produce::probe::ProducerProbe;
    use crate::produce::{connect, drop_aside};

    #[tokio::test(flavor = "multi_thread")]
    async fn many_topics_are_answered_for_at_once_each_with_its_own_trouble() {
        let cluster = MockCluster::new(1).unwrap();
        let names: Vec<Text> = (0..20).map(|n| Text::from(format!("t{n}"))).collect();
        names.iter().for_each(|name| cluster.create_topic(name, 1, 1).unwrap());
        for (name, error) in [
            ("t0", RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART),
            ("t1", RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED),
        ] {
            cluster.topic_error(name, error).unwrap();
        }
        let addresses = cluster.bootstrap_servers();
        let OutputContext {
            component, connection, ..
        } = OutputContext::for_tests("kafka");
        let mut settings = ClientConfig::new();
        settings.set("bootstrap.servers", &addresses);
        let link = Arc::new(BrokerLink::new(component, connection, addresses));
        let client = connect(&settings, &link).await.unwrap();
        let (asking, wanted) = (client.clone(), names.clone());
        let asked = blocking::spawn(move || {
            // It knows one of them, like a client that replaced one that died.
            link.trouble(asking.client(), &wanted[0]).unwrap();
            let inquiry = || ProducerProbe {
                refused: wanted.clone(),
                ..ProducerProbe::default()
            };
            [inquiry(), inquiry()].map(|inquiry| inquiry.ask(&link, &asking, None).refused)
        });
        let [first, second] = asked.await.unwrap();
        let missing = Some("it does not exist".to_owned());
        let denied = Some("this client has no right to see it".to_owned());
        assert_eq!(first, [(names[0].clone(), missing.clone())]);
        let expected = [missing, denied].into_iter().chain(std::iter::repeat(None));
        assert_eq!(second, names.into_iter().zip(expected).collect::<Vec<_>>());
        drop_aside(client).await;
    }
}
