//! A client that records every value it receives, and helpers to start simulators on free ports.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use opcua::client::{
    ClientBuilder, DataChangeCallback, IdentityToken, MonitoredItem, Session, SessionConnectMode, SessionPollResult,
};
use opcua::sync::Mutex;
use opcua::types::{
    AttributeId, BrowseDescription, BrowseDirection, DataValue, EndpointDescription, ExtensionObject,
    MonitoredItemCreateRequest, MonitoringMode, MonitoringParameters, NodeId, ReadValueId, ReferenceDescription,
    ReferenceTypeId, StatusCode, TimestampsToReturn, UserTokenPolicy, Variant,
};
use thalweg_simulator::{Simulator, SimulatorOptions, SimulatorStats};

/// Nothing here takes this long; it only turns a hang into a failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// A simulator on free ports, without certificates.
pub(crate) async fn simulate(options: SimulatorOptions) -> Simulator {
    let pki = tempfile::tempdir().unwrap();
    simulate_at(
        pki.path(),
        SimulatorOptions {
            secure: false,
            ..options
        },
    )
    .await
}

pub(crate) async fn simulate_at(pki: &Path, options: SimulatorOptions) -> Simulator {
    let options = SimulatorOptions {
        port: 0,
        pki_dir: pki.to_path_buf(),
        ..options
    };
    thalweg_simulator::start(options).await.unwrap()
}

pub(crate) async fn stats(simulator: &Simulator) -> SimulatorStats {
    simulator.stats().await.unwrap()
}

/// Polls until there is an answer.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let waited = tokio::time::timeout(PATIENCE, async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// Values received so far, by client handle.
pub(crate) type Received = Arc<Mutex<BTreeMap<u32, Vec<DataValue>>>>;

pub(crate) struct Client {
    pub(crate) session: Arc<Session>,
    pub(crate) received: Received,
    /// While held, the client neither reads nor publishes.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
}

pub(crate) struct Login<'a> {
    pub(crate) policy: &'a str,
    pub(crate) mode: opcua::types::MessageSecurityMode,
    pub(crate) identity: IdentityToken,
    pub(crate) pki: &'a Path,
}

impl Client {
    /// Connects without security.
    pub(crate) async fn connect(simulator: &Simulator) -> Client {
        let pki = tempfile::tempdir().unwrap();
        let login = Login {
            policy: "None",
            mode: opcua::types::MessageSecurityMode::None,
            identity: IdentityToken::Anonymous,
            pki: pki.path(),
        };
        Client::log_in(simulator, login).await.unwrap()
    }

    pub(crate) async fn log_in(simulator: &Simulator, login: Login<'_>) -> Result<Client, StatusCode> {
        let secured = login.policy != "None";
        let mut client = ClientBuilder::new()
            .application_name("simulator test")
            .application_uri("urn:simulator-test")
            .product_uri("urn:simulator-test")
            .create_sample_keypair(secured)
            .pki_dir(login.pki)
            .trust_server_certs(true)
            .verify_server_certs(false)
            .session_retry_limit(if secured { 1 } else { 1_000 })
            .session_retry_initial(Duration::from_millis(20))
            .session_retry_max(Duration::from_millis(100))
            .max_array_length(1_000_000)
            .max_message_size(64 << 20)
            .max_chunk_count(4_096)
            .client()
            .unwrap();
        let endpoint: EndpointDescription = (
            simulator.endpoint(),
            login.policy,
            login.mode,
            UserTokenPolicy::anonymous(),
        )
            .into();
        let connected = client.connect_to_matching_endpoint(endpoint, login.identity).await;
        let (session, event_loop) = connected.map_err(|error| error.status())?;
        let (first, mut connected) = tokio::sync::mpsc::channel(1);
        let publisher = Arc::clone(&session);
        let turn = Arc::new(tokio::sync::Mutex::new(()));
        let gate = Arc::clone(&turn);
        tokio::spawn(async move {
            let mut events = std::pin::pin!(event_loop.enter());
            while let Some(event) = events.next().await {
                drop(gate.lock().await);
                match event {
                    Ok(SessionPollResult::Reconnected(mode)) => {
                        if matches!(mode, SessionConnectMode::ReactivatedSession(_)) {
                            publisher.trigger_publish_now();
                        }
                        let _ = first.try_send(Ok(()));
                    }
                    Err(status) => {
                        let _ = first.try_send(Err(status));
                    }
                    Ok(_) => {}
                }
            }
        });
        let outcome = tokio::time::timeout(PATIENCE, connected.recv()).await.unwrap();
        outcome.unwrap_or(Err(StatusCode::BadConnectionClosed))?;
        Ok(Client {
            session,
            received: Received::default(),
            turn,
        })
    }

    pub(crate) async fn subscribe(&self, publishing_interval_ms: u64) -> u32 {
        let received = Arc::clone(&self.received);
        let callback = DataChangeCallback::new(move |value: DataValue, item: &MonitoredItem| {
            received.lock().entry(item.client_handle()).or_default().push(value);
        });
        let interval = Duration::from_millis(publishing_interval_ms);
        self.session
            .create_subscription(interval, 1_000, 10, 0, 0, true, callback)
            .await
            .unwrap()
    }

    /// Monitors nodes under the handles 1, 2, ... and returns the status of each.
    pub(crate) async fn monitor(&self, subscription: u32, items: Vec<MonitoredItemCreateRequest>) -> Vec<StatusCode> {
        let created = self
            .session
            .create_monitored_items(subscription, TimestampsToReturn::Both, items)
            .await
            .unwrap();
        created.iter().map(|item| item.result.status_code).collect()
    }

    pub(crate) async fn read(&self, id: &NodeId, attribute: AttributeId) -> DataValue {
        let item = ReadValueId {
            node_id: id.clone(),
            attribute_id: attribute as u32,
            ..ReadValueId::default()
        };
        let mut values = self.session.read(&[item], TimestampsToReturn::Both, 0.0).await.unwrap();
        values.pop().unwrap()
    }

    pub(crate) async fn value(&self, name: &str) -> DataValue {
        self.read(&node(name), AttributeId::Value).await
    }

    /// Returns all forward hierarchical references of a node.
    pub(crate) async fn children(&self, id: &NodeId) -> Vec<ReferenceDescription> {
        let mut results = self.session.browse(&[hierarchical(id)], 0, None).await.unwrap();
        let mut page = results.pop().unwrap();
        assert_eq!(page.status_code, StatusCode::Good, "{id}");
        let mut references = page.references.unwrap_or_default();
        while !page.continuation_point.is_null_or_empty() {
            page = self
                .session
                .browse_next(false, &[page.continuation_point])
                .await
                .unwrap()
                .pop()
                .unwrap();
            references.extend(page.references.unwrap_or_default());
        }
        references
    }

    pub(crate) fn count(&self) -> u64 {
        self.received.lock().values().map(|values| values.len() as u64).sum()
    }

    /// The counters received per handle.
    pub(crate) fn counters(&self) -> HashMap<u32, Vec<u32>> {
        let number = |value: &DataValue| match value.value {
            Some(Variant::UInt32(number)) => number,
            ref other => panic!("not a counter: {other:?}"),
        };
        self.received
            .lock()
            .iter()
            .map(|(handle, values)| (*handle, values.iter().map(number).collect()))
            .collect()
    }

    /// Waits until each of this many items has received at least this many values.
    pub(crate) async fn wait_for_values(&self, items: usize, values: usize) {
        until("values", || async {
            let received = self.received.lock();
            (received.len() == items && received.values().all(|list| list.len() >= values)).then_some(())
        })
        .await;
    }
}

pub(crate) fn node(name: &str) -> NodeId {
    NodeId::new(3, name)
}

pub(crate) fn hierarchical(id: &NodeId) -> BrowseDescription {
    BrowseDescription {
        node_id: id.clone(),
        browse_direction: BrowseDirection::Forward,
        reference_type_id: ReferenceTypeId::HierarchicalReferences.into(),
        include_subtypes: true,
        node_class_mask: 0,
        result_mask: 63,
    }
}

/// A request to monitor the value of a node; the filter may be null.
pub(crate) fn item(name: &str, handle: u32, queue_size: u32, filter: ExtensionObject) -> MonitoredItemCreateRequest {
    MonitoredItemCreateRequest {
        item_to_monitor: node(name).into(),
        monitoring_mode: MonitoringMode::Reporting,
        requested_parameters: MonitoringParameters {
            client_handle: handle,
            sampling_interval: 0.0,
            filter,
            queue_size,
            discard_oldest: true,
        },
    }
}

/// Requests for `FastUInt1` to `FastUInt<count>`, with the number as the handle.
pub(crate) fn fast_items(count: u32, queue_size: u32) -> Vec<MonitoredItemCreateRequest> {
    (1..=count)
        .map(|number| {
            item(
                &format!("FastUInt{number}"),
                number,
                queue_size,
                ExtensionObject::null(),
            )
        })
        .collect()
}
