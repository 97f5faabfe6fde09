//! Sets up the topic of the unified namespace: creates it if it is missing, and rejects one of another shape. The
//! producer monitors it while it is written to.

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use thalweg_flow::{OpenError, OutputContext};
use thalweg_kit::blocking;

use crate::link::{ANSWER, BrokerLink, reason};
use crate::produce::not_one_partition;

/// The cluster decides the replication factor.
const REPLICATION_OF_CLUSTER: i32 = -1;

/// Ensures that a topic exists with one partition.
pub async fn ensure(client: &ClientConfig, topic: &str, context: &OutputContext) -> Result<(), OpenError> {
    let admin: AdminClient<DefaultClientContext> = client
        .create()
        .map_err(|error| OpenError::Permanent(format!("the Kafka client rejects its settings: {error}")))?;
    let (component, connection) = (context.component.clone(), context.connection.clone());
    let addresses = client.get("bootstrap.servers").unwrap_or_default().to_owned();
    let link = BrokerLink::new(component, connection, addresses);
    let topic = topic.to_owned();
    let checked = blocking::spawn(move || {
        let found = partitions(&link, &admin, &topic)?;
        let partitions = match found {
            Some(partitions) => partitions,
            None => create(&link, &admin, &topic)?,
        };
        one(&topic, partitions)
    });
    let stopping = |_| Err(OpenError::Temporary("the process is stopping".to_owned()));
    checked.await.unwrap_or_else(stopping)
}

fn one(topic: &str, partitions: usize) -> Result<(), OpenError> {
    match not_one_partition(topic, partitions) {
        None => Ok(()),
        Some(why) => Err(OpenError::Permanent(why)),
    }
}

/// Returns the partition count of a topic; `None` if it does not exist.
fn partitions(
    link: &BrokerLink,
    admin: &AdminClient<DefaultClientContext>,
    topic: &str,
) -> Result<Option<usize>, OpenError> {
    let metadata = link.ask(admin.inner(), Some(topic)).map_err(OpenError::Temporary)?;
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    let Some(found) = found else { return Ok(None) };
    match found.error().map(RDKafkaErrorCode::from) {
        None => Ok(Some(found.partitions().len())),
        Some(RDKafkaErrorCode::UnknownTopicOrPartition) => Ok(None),
        Some(error) => Err(OpenError::Temporary(format!(
            "the topic {topic} cannot be queried: {error}"
        ))),
    }
}

/// Creates the topic and returns its final partition count.
fn create(link: &BrokerLink, admin: &AdminClient<DefaultClientContext>, topic: &str) -> Result<usize, OpenError> {
    let new = NewTopic::new(topic, 1, TopicReplication::Fixed(REPLICATION_OF_CLUSTER));
    let new = new.set("cleanup.policy", "compact,delete");
    let options = AdminOptions::new()
        .operation_timeout(Some(ANSWER))
        .request_timeout(Some(ANSWER));
    let failed =
        |why: String| OpenError::Temporary(format!("the topic {topic} does not exist and cannot be created: {why}"));
    let created = futures::executor::block_on(admin.create_topics([&new], &options));
    let created = created.map_err(|error: KafkaError| failed(reason(&error)))?;
    match created.into_iter().next() {
        Some(Ok(_)) => Ok(1),
        // Another client was faster.
        Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => {
            let found = partitions(link, admin, topic)?;
            found.ok_or_else(|| failed("it is being created".to_owned()))
        }
        Some(Err((_, error))) => Err(failed(error.to_string())),
        None => Err(failed("the broker returned no result".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_count_than_one_is_an_error_for_good() {
        assert_eq!(one("umh.messages", 1), Ok(()));
        let Err(OpenError::Permanent(text)) = one("umh.messages", 3) else {
            panic!("it was taken");
        };
        assert!(
            text.starts_with("the topic umh.messages has 3 partitions, but"),
            "{text}"
        );
    }
}
