//! The folder `Types` over the wire: every kind of value arrives, and writable nodes accept values.

use std::collections::HashMap;

use opcua::types::{
    AttributeId, BrowsePath, DataTypeDefinition, DataValue, ExtensionObject, NodeId, NumericRange, QualifiedName,
    Range, ReadValueId, ReferenceTypeId, RelativePath, RelativePathElement, StatusCode, TimestampsToReturn, Variant,
    WriteValue,
};
use thalweg_simulator::SimulatorOptions;

use crate::client::{Client, item, node, simulate};

async fn write(client: &Client, name: &str, value: Variant) -> StatusCode {
    let value = DataValue {
        value: Some(value),
        ..DataValue::default()
    };
    let request = WriteValue {
        node_id: node(name),
        attribute_id: AttributeId::Value as u32,
        index_range: NumericRange::None,
        value,
    };
    client.session.write(&[request]).await.unwrap()[0]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_value_arrives_with_its_status() {
    let simulator = simulate(SimulatorOptions {
        types: true,
        ..SimulatorOptions::default()
    })
    .await;
    let client = Client::connect(&simulator).await;
    let members = client.children(&node("Types")).await;
    let mut values = HashMap::new();
    for member in &members {
        let value = client.read(&member.node_id.node_id, AttributeId::Value).await;
        values.insert(member.browse_name.name.to_string(), value);
    }
    assert!(values.len() > 80, "{}", values.len());
    let value = |name: &str| values[name].value.clone().unwrap();
    assert_eq!(value("UInt64"), Variant::UInt64(u64::MAX));
    assert_eq!(value("Int64"), Variant::Int64(i64::MIN));
    assert!(matches!(value("DoubleNaN"), Variant::Double(number) if number.is_nan()));
    assert_eq!(value("Enumeration"), Variant::Int32(3));
    let Variant::DateTime(time) = value("DateTime") else {
        panic!("not a time")
    };
    assert_eq!(time.as_chrono().to_rfc3339(), "2031-05-06T07:08:09.123456700+00:00");
    let Variant::ExtensionObject(range) = value("Range") else {
        panic!("not a structure")
    };
    assert_eq!(range.inner_as::<Range>(), Some(&Range { low: 0.0, high: 100.0 }));
    let Variant::Array(matrix) = value("Matrix") else {
        panic!("not an array")
    };
    assert_eq!(matrix.dimensions, Some(vec![2, 3]));
    assert_eq!(values["BadWithValue"].status(), StatusCode::BadSensorFailure);
    assert_eq!(value("BadWithValue"), Variant::Double(12.5));
    assert_eq!(values["BadWithoutValue"].value, None);
    assert_eq!(values["UnknownStatus"].status().bits(), 0x8765_0000);
    assert_eq!(values["NoSourceTimestamp"].source_timestamp, None);
    assert_eq!(value("Null"), Variant::Empty);
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn index_ranges_select_elements() {
    let simulator = simulate(SimulatorOptions {
        types: true,
        ..SimulatorOptions::default()
    })
    .await;
    let client = Client::connect(&simulator).await;
    let request = |range: &str| ReadValueId {
        index_range: range.parse().unwrap(),
        ..ReadValueId::from(node("TypesInt32Array"))
    };
    let read = client
        .session
        .read(&[request("1:2"), request("7")], TimestampsToReturn::Both, 0.0)
        .await
        .unwrap();
    assert_eq!(read[0].value, Some(Variant::from(vec![0i32, i32::MAX])));
    assert_eq!(read[1].status(), StatusCode::BadIndexRangeNoData);
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writable_nodes_take_values_of_their_type_and_tell_subscribers() {
    let simulator = simulate(SimulatorOptions {
        types: true,
        ..SimulatorOptions::default()
    })
    .await;
    let client = Client::connect(&simulator).await;
    let subscription = client.subscribe(20).await;
    client
        .monitor(
            subscription,
            vec![item("TypesWritableInt16", 1, 10, ExtensionObject::null())],
        )
        .await;
    client.wait_for_values(1, 1).await;
    assert_eq!(
        write(&client, "TypesWritableInt16", Variant::Int16(-7)).await,
        StatusCode::Good
    );
    client.wait_for_values(1, 2).await;
    assert_eq!(client.received.lock()[&1][1].value, Some(Variant::Int16(-7)));
    assert_eq!(client.value("TypesWritableInt16").await.value, Some(Variant::Int16(-7)));
    assert_eq!(
        write(&client, "TypesWritableInt16", Variant::Int32(1)).await,
        StatusCode::BadTypeMismatch
    );
    assert_eq!(
        write(&client, "TypesWritableStuck", Variant::Int32(1)).await,
        StatusCode::Good
    );
    assert_eq!(
        client.value("TypesWritableStuck").await.value,
        Some(Variant::Int32(7)),
        "it lies"
    );
    assert_eq!(
        write(&client, "FastUInt1", Variant::UInt32(1)).await,
        StatusCode::BadNotWritable
    );
    assert_eq!(
        write(&client, "Nothing", Variant::UInt32(1)).await,
        StatusCode::BadNodeIdUnknown
    );
    simulator.shutdown().await;
}

/// A client and the process itself make a node bad without a value, and good again.
#[tokio::test(flavor = "multi_thread")]
async fn a_writable_node_turns_bad_without_a_value_and_tells_subscribers() {
    let simulator = simulate(SimulatorOptions {
        types: true,
        ..SimulatorOptions::default()
    })
    .await;
    let client = Client::connect(&simulator).await;
    let subscription = client.subscribe(20).await;
    let items = vec![item("TypesWritableDouble", 1, 10, ExtensionObject::null())];
    client.monitor(subscription, items).await;
    client.wait_for_values(1, 1).await;
    let alone = |status| DataValue {
        status: Some(status),
        ..DataValue::default()
    };
    let request = |status| WriteValue {
        node_id: node("TypesWritableDouble"),
        attribute_id: AttributeId::Value as u32,
        index_range: NumericRange::None,
        value: alone(status),
    };
    let write = [
        request(StatusCode::BadNoCommunication),
        request(StatusCode::UncertainInitialValue),
    ];
    let written = client.session.write(&write).await.unwrap();
    assert_eq!(written, [StatusCode::Good, StatusCode::BadTypeMismatch]);
    client.wait_for_values(1, 2).await;
    assert!(simulator.set("ns=3;s=TypesWritableDouble", DataValue::from(Variant::Double(2.5))));
    client.wait_for_values(1, 3).await;
    assert!(simulator.set("ns=3;s=TypesWritableDouble", alone(StatusCode::BadDeviceFailure)));
    client.wait_for_values(1, 4).await;
    let seen: Vec<(Option<Variant>, StatusCode)> = client.received.lock()[&1]
        .iter()
        .map(|value| (value.value.clone(), value.status()))
        .collect();
    let expected = [
        (Some(Variant::Double(0.0)), StatusCode::Good),
        (None, StatusCode::BadNoCommunication),
        (Some(Variant::Double(2.5)), StatusCode::Good),
        (None, StatusCode::BadDeviceFailure),
    ];
    assert_eq!(seen, expected);
    let read = client.value("TypesWritableDouble").await;
    assert_eq!(
        (read.value.clone(), read.status()),
        (None, StatusCode::BadDeviceFailure)
    );
    for node in ["ns=3;s=FastUInt1", "ns=3;s=TypesDouble", "ns=3;s=Nothing"] {
        assert!(!simulator.set(node, alone(StatusCode::BadDeviceFailure)), "{node}");
    }
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_of_names_leads_to_a_node() {
    let simulator = simulate(SimulatorOptions {
        types: true,
        ..SimulatorOptions::default()
    })
    .await;
    let client = Client::connect(&simulator).await;
    let path = |names: &[(u16, &str)]| BrowsePath {
        starting_node: NodeId::new(0, 85u32),
        relative_path: RelativePath {
            elements: Some(
                names
                    .iter()
                    .map(|(namespace, name)| RelativePathElement {
                        reference_type_id: ReferenceTypeId::HierarchicalReferences.into(),
                        is_inverse: false,
                        include_subtypes: true,
                        target_name: QualifiedName::new(*namespace, *name),
                    })
                    .collect(),
            ),
        },
    };
    let paths = [
        path(&[(3, "OpcPlc"), (3, "Fast"), (3, "FastUInt7")]),
        path(&[(3, "OpcPlc"), (3, "Types"), (3, "Analog"), (0, "EURange")]),
        path(&[(3, "OpcPlc"), (3, "Fast"), (3, "FastUInt1000")]),
    ];
    let found = client.session.translate_browse_paths_to_node_ids(&paths).await.unwrap();
    let target = |at: usize| found[at].targets.as_ref().unwrap()[0].target_id.node_id.to_string();
    assert_eq!(target(0), "ns=3;s=FastUInt7");
    assert_eq!(target(1), "ns=3;s=TypesEURange");
    assert_eq!(found[2].status_code, StatusCode::BadNoMatch);
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_structure_describes_itself() {
    let simulator = simulate(SimulatorOptions {
        types: true,
        ..SimulatorOptions::default()
    })
    .await;
    let client = Client::connect(&simulator).await;
    let subtypes = client.children(&NodeId::new(0, 22u32)).await;
    let point = subtypes
        .iter()
        .find(|child| child.node_id.node_id.namespace == 3)
        .expect("Structure has our subtype");
    let definition = client
        .read(&point.node_id.node_id, AttributeId::DataTypeDefinition)
        .await;
    let Some(Variant::ExtensionObject(definition)) = definition.value else {
        panic!("no definition")
    };
    let Ok(DataTypeDefinition::Structure(structure)) = DataTypeDefinition::from_extension_object(definition) else {
        panic!("not a structure");
    };
    let names: Vec<String> = structure
        .fields
        .unwrap()
        .iter()
        .map(|field| field.name.to_string())
        .collect();
    assert_eq!(names, ["X", "Y", "Label"]);
    assert_eq!(structure.default_encoding_id, NodeId::new(3, 5_001u32));
    simulator.shutdown().await;
}
