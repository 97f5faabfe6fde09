//! Asks a broker for all topics that the client knows, in one request: many can be missing at a time, and each needs several
//! answers until it is given up.
//!
//! A client asks for one topic, for those that it knows, or for all of the cluster. The last was rejected: a topic that it must not
//! see is left out there as one that does not exist is, brokers make no topic that is asked for like this, and most of
//! a large cluster's topics are none of this output's.

use std::collections::HashMap;
use std::ffi::{CStr, CString};

use rdkafka::bindings;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::Producer as _;
use thalweg_record::Text;

use super::ProducerClient;
use crate::link::{ANSWER, TopicAccessError};

/// What is wrong with topics, of those for which there is an answer. Blocks.
pub fn troubles(client: &ProducerClient, topics: Vec<Text>) -> Vec<(Text, Option<TopicAccessError>)> {
    let Some(listing) = MetadataResponse::fetch(client) else {
        return Vec::new();
    };
    let said: HashMap<&[u8], Option<TopicAccessError>> = listing.topics().collect();
    let mut answers = Vec::with_capacity(topics.len());
    for topic in topics {
        match said.get(topic.as_bytes()) {
            Some(trouble) => answers.push((topic, *trouble)),
            // The client is in the place of one that died. From now on it asks for this topic, too.
            None => get_to_know(client, &topic),
        }
    }
    answers
}

fn get_to_know(client: &ProducerClient, topic: &Text) {
    let Ok(name) = CString::new(topic.as_str()) else {
        return;
    };
    // SAFETY: client and name outlive the calls, which copy the name; what comes of the first is null or let go once.
    unsafe {
        let known = bindings::rd_kafka_topic_new(client.client().native_ptr(), name.as_ptr(), std::ptr::null_mut());
        if !known.is_null() {
            bindings::rd_kafka_topic_destroy(known);
        }
    }
}

/// A broker's answer.
struct MetadataResponse(*const bindings::rd_kafka_metadata);

impl MetadataResponse {
    /// `None` without an answer.
    fn fetch(client: &ProducerClient) -> Option<MetadataResponse> {
        let (client, answer_ms) = (client.client().native_ptr(), i32::try_from(ANSWER.as_millis()).ok()?);
        let mut answer = std::ptr::null();
        // SAFETY: the client outlives the call, and no topic stands for those that it knows.
        let code = unsafe { bindings::rd_kafka_metadata(client, 0, std::ptr::null_mut(), &mut answer, answer_ms) };
        let is_there = RDKafkaErrorCode::from(code) == RDKafkaErrorCode::NoError && !answer.is_null();
        is_there.then_some(MetadataResponse(answer))
    }

    fn topics(&self) -> impl Iterator<Item = (&[u8], Option<TopicAccessError>)> {
        // SAFETY: the answer is there until it is dropped, with as many topics as it says, whose names end with a zero.
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
        // SAFETY: it is this one's alone.
        unsafe { bindings::rd_kafka_metadata_destroy(self.0) }
    }
}

fn trouble(code: RDKafkaErrorCode) -> Option<TopicAccessError> {
    match code {
        RDKafkaErrorCode::UnknownTopicOrPartition => Some(TopicAccessError::Missing),
        RDKafkaErrorCode::TopicAuthorizationFailed => Some(TopicAccessError::Denied),
        // As a topic that is being made.
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
        let asked = tokio::task::spawn_blocking(move || {
            // It knows one of them, as one that is in the place of another that died.
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
