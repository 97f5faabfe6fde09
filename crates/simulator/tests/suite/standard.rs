//! Namespace 0 over the wire: the nodes of the table, the values that are computed, and the server's methods.

#[path = "../../../../tests/python/ask.rs"]
mod ask;

use opcua::types::{
    AttributeId, BuildInfo, CallMethodRequest, DataTypeDefinition, DateTime, ExtensionObject,
    MonitoredItemCreateRequest, MonitoringMode, MonitoringParameters, NodeId, ReadValueId, ServerStatusDataType,
    StatusCode, Variant,
};
use thalweg_simulator::SimulatorOptions;

use crate::client::{Client, fast_items, simulate, until};

fn standard(id: u32) -> NodeId {
    NodeId::new(0, id)
}

fn monitored(id: u32, attribute: AttributeId) -> MonitoredItemCreateRequest {
    MonitoredItemCreateRequest {
        item_to_monitor: ReadValueId {
            node_id: standard(id),
            attribute_id: attribute as u32,
            ..ReadValueId::default()
        },
        monitoring_mode: MonitoringMode::Reporting,
        requested_parameters: MonitoringParameters {
            client_handle: id,
            sampling_interval: 0.0,
            filter: ExtensionObject::null(),
            queue_size: 10,
            discard_oldest: true,
        },
    }
}

async fn value(client: &Client, id: u32) -> Variant {
    let read = client.read(&standard(id), AttributeId::Value).await;
    assert_eq!(read.status(), StatusCode::Good, "i={id}");
    read.value.unwrap_or_else(|| panic!("i={id} has no value"))
}

async fn texts(client: &Client, id: u32) -> Vec<String> {
    let Variant::Array(array) = value(client, id).await else {
        panic!("i={id} is no array")
    };
    let texts = array.values.iter().map(|text| match text {
        Variant::String(text) => text.to_string(),
        Variant::LocalizedText(text) => text.text.to_string(),
        other => panic!("{other:?} in i={id}"),
    });
    texts.collect()
}

async fn definition(client: &Client, id: u32) -> DataTypeDefinition {
    let read = client.read(&standard(id), AttributeId::DataTypeDefinition).await;
    let Some(Variant::ExtensionObject(definition)) = read.value else {
        panic!("i={id} has no definition")
    };
    DataTypeDefinition::from_extension_object(definition).unwrap()
}

/// Calls a method of the Server object.
async fn call(client: &Client, method: u32, arguments: Vec<Variant>) -> (StatusCode, Vec<Variant>) {
    let request = CallMethodRequest {
        object_id: standard(2_253),
        method_id: standard(method),
        input_arguments: Some(arguments),
    };
    let called = client.session.call_one(request).await.unwrap();
    (called.status_code, called.output_arguments.unwrap_or_default())
}

/// Another client reads all nodes of the table, with all references and attributes.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_has_what_the_table_says() {
    let simulator = simulate(SimulatorOptions {
        types: true,
        ..SimulatorOptions::default()
    })
    .await;
    let endpoint = simulator.endpoint().to_owned();
    let asked = move || ask::ask("../../tests/python/standard_nodes.py", &[endpoint.into()]);
    let differences = tokio::task::spawn_blocking(asked).await.unwrap();
    assert_eq!(differences, [serde_json::json!([])]);
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_describes_itself() {
    let simulator = simulate(SimulatorOptions {
        manufacturer: "Maker".to_owned(),
        ..SimulatorOptions::default()
    })
    .await;
    let client = Client::connect(&simulator).await;
    let namespaces = texts(&client, 2_255).await;
    assert_eq!(namespaces.len(), 4);
    assert_eq!(namespaces[0], "http://opcfoundation.org/UA/");
    assert_eq!(
        texts(&client, 2_254).await,
        [namespaces[1].clone()],
        "the server's own URI"
    );
    assert_eq!(value(&client, 2_267).await, Variant::Byte(255));
    assert_eq!(value(&client, 2_263).await, Variant::from("Maker"));
    let Variant::ExtensionObject(build) = value(&client, 2_260).await else {
        panic!("no build info")
    };
    assert_eq!(
        build.inner_as::<BuildInfo>().unwrap().manufacturer_name.as_ref(),
        "Maker"
    );
    assert_eq!(value(&client, 2_259).await, Variant::Int32(0), "running");
    let Variant::ExtensionObject(status) = value(&client, 2_256).await else {
        panic!("no status")
    };
    let status = status.inner_as::<ServerStatusDataType>().unwrap();
    assert!(status.current_time.ticks() >= status.start_time.ticks());
    assert_eq!(value(&client, 2_272).await, Variant::Double(0.0), "a Duration");
    assert_eq!(value(&client, 11_702).await, Variant::UInt32(1_000_000));
    assert_eq!(value(&client, 2_735).await, Variant::UInt16(5_000));
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_clock_is_read_and_monitored() {
    let simulator = simulate(SimulatorOptions::default()).await;
    let client = Client::connect(&simulator).await;
    let before = DateTime::now().ticks();
    let read = client.read(&standard(2_258), AttributeId::Value).await;
    let Some(Variant::DateTime(time)) = read.value else {
        panic!("no time")
    };
    assert!(time.ticks() >= before && read.source_timestamp.unwrap().ticks() >= before);

    let subscription = client.subscribe(50).await;
    let asked = vec![
        monitored(2_258, AttributeId::Value),
        monitored(2_256, AttributeId::Value),
        // Neither exists: a node beyond the standard, and the value of an object.
        monitored(39_999, AttributeId::Value),
        monitored(2_253, AttributeId::Value),
        monitored(2_254, AttributeId::BrowseName),
    ];
    let statuses = client.monitor(subscription, asked).await;
    let expected = [
        StatusCode::Good,
        StatusCode::Good,
        StatusCode::BadNodeIdUnknown,
        StatusCode::BadAttributeIdInvalid,
        StatusCode::Good,
    ];
    assert_eq!(statuses, expected);
    client.wait_for_values(3, 1).await;
    let counts = |client: &Client| {
        let received = client.received.lock();
        (received[&2_258].len(), received[&2_256].len(), received[&2_254].len())
    };
    until("three times and three states", || async {
        let (times, states, _) = counts(&client);
        (times >= 3 && states >= 3).then_some(())
    })
    .await;
    assert_eq!(counts(&client).2, 1, "a name does not change");
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn types_are_described() {
    let simulator = simulate(SimulatorOptions::default()).await;
    let client = Client::connect(&simulator).await;
    let DataTypeDefinition::Structure(range) = definition(&client, 884).await else {
        panic!("Range is no structure")
    };
    let fields = range.fields.unwrap_or_default();
    let names: Vec<_> = fields
        .iter()
        .map(|field| (field.name.as_ref(), &field.data_type))
        .collect();
    assert_eq!(names, [("Low", &standard(11)), ("High", &standard(11))]);
    assert_eq!(range.default_encoding_id, standard(886));
    let DataTypeDefinition::Enum(state) = definition(&client, 852).await else {
        panic!("ServerState is no enumeration")
    };
    assert_eq!(state.fields.unwrap_or_default().len(), 8);
    assert_eq!(texts(&client, 7_612).await[2], "NoConfiguration");
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_methods_of_the_server_know_a_sessions_subscriptions() {
    let simulator = simulate(SimulatorOptions {
        slow_rate: 86_400.0,
        fast_rate: 86_400.0,
        ..SimulatorOptions::default()
    })
    .await;
    let client = Client::connect(&simulator).await;
    let subscription = client.subscribe(50).await;
    client.monitor(subscription, fast_items(3, 1)).await;
    client.wait_for_values(3, 1).await;
    let (status, outputs) = call(&client, 11_492, vec![subscription.into()]).await;
    assert_eq!((status, outputs.len()), (StatusCode::Good, 2));
    let Variant::Array(handles) = &outputs[1] else {
        panic!("no handles")
    };
    let mut handles = handles.values.clone();
    handles.sort_by_key(|handle| match handle {
        Variant::UInt32(handle) => *handle,
        other => panic!("{other:?}"),
    });
    assert_eq!(handles, [1u32, 2, 3].map(Variant::UInt32));

    let (status, _) = call(&client, 12_873, vec![subscription.into()]).await;
    assert_eq!(status, StatusCode::Good);
    client.wait_for_values(3, 2).await;
    for (method, arguments, expected) in [
        (11_492, vec![Variant::UInt32(0)], StatusCode::BadSubscriptionIdInvalid),
        (12_873, vec![Variant::UInt32(0)], StatusCode::BadSubscriptionIdInvalid),
        (11_492, Vec::new(), StatusCode::BadInvalidArgument),
        (
            11_492,
            vec![Variant::UInt32(0), Variant::UInt32(0)],
            StatusCode::BadTooManyArguments,
        ),
        // Present, as in every server, but not offered.
        (
            12_749,
            vec![Variant::UInt32(0), Variant::UInt32(1)],
            StatusCode::BadNotSupported,
        ),
        (2_253, Vec::new(), StatusCode::BadMethodInvalid),
    ] {
        assert_eq!(call(&client, method, arguments).await.0, expected, "i={method}");
    }
    simulator.shutdown().await;
}
