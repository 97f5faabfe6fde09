//! Structures that the specification itself describes and that tags often contain. Servers need not repeat the
//! description, and several do not.

use opcua::types::NodeId;

use super::types::{
    BOOLEAN, BYTE, DATE_TIME, DOUBLE, FLOAT, FieldEncoding, FieldLayout, INT16, INT32, INT64, LOCALIZED_TEXT, NODE_ID,
    Rank, STRING, Structure, StructureKind, StructureRegistry, UINT32,
};

/// A member: its name and its encoding.
enum Member {
    One(&'static str, u8),
    Many(&'static str, u8),
    /// Another structure of this table.
    Struct(&'static str, u32),
}

use Member::{Many, One, Struct};

const RANGE: u32 = 884;
const UNIT: u32 = 887;
const BUILD_INFO: u32 = 338;

/// Data type, binary encoding, members.
const TABLE: &[(u32, u32, &[Member])] = &[
    (RANGE, 886, &[One("Low", DOUBLE), One("High", DOUBLE)]),
    (
        UNIT,
        889,
        &[
            One("NamespaceUri", STRING),
            One("UnitId", INT32),
            One("DisplayName", LOCALIZED_TEXT),
            One("Description", LOCALIZED_TEXT),
        ],
    ),
    (
        296,
        298,
        &[
            One("Name", STRING),
            One("DataType", NODE_ID),
            One("ValueRank", INT32),
            Many("ArrayDimensions", UINT32),
            One("Description", LOCALIZED_TEXT),
        ],
    ),
    (
        7594,
        8251,
        &[
            One("Value", INT64),
            One("DisplayName", LOCALIZED_TEXT),
            One("Description", LOCALIZED_TEXT),
        ],
    ),
    (
        8912,
        8917,
        &[One("Offset", INT16), One("DaylightSavingInOffset", BOOLEAN)],
    ),
    (
        12079,
        12089,
        &[
            Struct("EngineeringUnits", UNIT),
            Struct("EURange", RANGE),
            One("Title", LOCALIZED_TEXT),
            One("AxisScaleType", INT32),
            Many("AxisSteps", DOUBLE),
        ],
    ),
    (12080, 12090, &[One("X", DOUBLE), One("Value", FLOAT)]),
    (12171, 12181, &[One("Real", FLOAT), One("Imaginary", FLOAT)]),
    (12172, 12182, &[One("Real", DOUBLE), One("Imaginary", DOUBLE)]),
    (
        BUILD_INFO,
        340,
        &[
            One("ProductUri", STRING),
            One("ManufacturerName", STRING),
            One("ProductName", STRING),
            One("SoftwareVersion", STRING),
            One("BuildNumber", STRING),
            One("BuildDate", DATE_TIME),
        ],
    ),
    (
        862,
        864,
        &[
            One("StartTime", DATE_TIME),
            One("CurrentTime", DATE_TIME),
            One("State", INT32),
            Struct("BuildInfo", BUILD_INFO),
            One("SecondsTillShutdown", UINT32),
            One("ShutdownReason", LOCALIZED_TEXT),
        ],
    ),
    (
        853,
        855,
        &[
            One("ServerId", STRING),
            One("ServiceLevel", BYTE),
            One("ServerState", INT32),
        ],
    ),
];

/// Adds all of them to a registry.
pub(super) fn add_to(book: &mut StructureRegistry) {
    for (data_type, encoding, members) in TABLE {
        let fields = members.iter().map(field).collect();
        let data_type = NodeId::new(0, *data_type);
        book.learn(
            data_type.clone(),
            Structure {
                kind: StructureKind::Plain,
                fields,
            },
        );
        book.learn_encoding(NodeId::new(0, *encoding), data_type);
    }
}

fn field(member: &Member) -> FieldLayout {
    let (name, element, rank) = match member {
        One(name, kind) => (name, FieldEncoding::BuiltIn(*kind), Rank::Scalar),
        Many(name, kind) => (name, FieldEncoding::BuiltIn(*kind), Rank::Array),
        Struct(name, data_type) => (name, FieldEncoding::Structure(NodeId::new(0, *data_type)), Rank::Scalar),
    };
    FieldLayout {
        name: (*name).into(),
        element,
        rank,
        optional: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use opcua::types::{
        Argument, AxisInformation, BinaryEncodable as _, BuildInfo, ComplexNumberType, ContextOwned, DateTime,
        DecodingOptions, DoubleComplexNumberType, EUInformation, EnumValueType, ExtensionObject, NamespaceMap, Range,
        RedundantServerDataType, ServerState, ServerStatusDataType, TimeZoneDataType, Variant, XVType,
    };
    use thalweg_record::json;

    use crate::value::Decoder;

    fn decoded(object: ExtensionObject) -> String {
        let context = ContextOwned::new_default(NamespaceMap::new(), DecodingOptions::default());
        let bytes = Variant::ExtensionObject(object).encode_to_vec(&context.context());
        json::to_string(&Decoder::new(&bytes, &StructureRegistry::standard()).variant().unwrap())
    }

    /// A body that does not fit its description to the byte would stay bytes.
    #[test]
    fn every_description_fits_what_the_library_encodes() {
        let objects = [
            ExtensionObject::from_message(Range::default()),
            ExtensionObject::from_message(EUInformation::default()),
            ExtensionObject::from_message(Argument::default()),
            ExtensionObject::from_message(EnumValueType::default()),
            ExtensionObject::from_message(TimeZoneDataType::default()),
            ExtensionObject::from_message(AxisInformation {
                axis_steps: Some(vec![0.5, 1.5]),
                ..AxisInformation::default()
            }),
            ExtensionObject::from_message(XVType::default()),
            ExtensionObject::from_message(ComplexNumberType::default()),
            ExtensionObject::from_message(DoubleComplexNumberType::default()),
            ExtensionObject::from_message(BuildInfo::default()),
            ExtensionObject::from_message(ServerStatusDataType::default()),
            ExtensionObject::from_message(RedundantServerDataType::default()),
        ];
        assert_eq!(objects.len(), TABLE.len());
        for (object, (_, _, members)) in objects.into_iter().zip(TABLE) {
            let text = decoded(object);
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            for member in *members {
                let (One(name, _) | Many(name, _) | Struct(name, _)) = member;
                assert!(value.get(name).is_some(), "{name} in {text}");
            }
            assert_eq!(value.as_object().unwrap().len(), members.len(), "{text}");
        }
    }

    /// The library encodes by its own description of the standard types.
    #[test]
    fn the_descriptions_are_those_of_the_specification() {
        let range = Range { low: -1.5, high: 2.0 };
        assert_eq!(
            decoded(ExtensionObject::from_message(range)),
            r#"{"Low":-1.5,"High":2}"#
        );
        let unit = EUInformation {
            namespace_uri: "urn:u".into(),
            unit_id: 7,
            display_name: "m".into(),
            description: "metre".into(),
        };
        assert!(decoded(ExtensionObject::from_message(unit)).starts_with(r#"{"NamespaceUri":"urn:u","UnitId":7,"#));
        let status = ServerStatusDataType {
            start_time: DateTime::from(116_444_736_000_000_000),
            current_time: DateTime::from(116_444_736_010_000_000),
            state: ServerState::Running,
            build_info: BuildInfo {
                product_name: "p".into(),
                ..BuildInfo::default()
            },
            seconds_till_shutdown: 3,
            shutdown_reason: Default::default(),
        };
        let text = decoded(ExtensionObject::from_message(status));
        assert!(
            text.starts_with(r#"{"StartTime":"1970-01-01T00:00:00Z","CurrentTime":"1970-01-01T00:00:01Z","State":0,"#),
            "{text}"
        );
        assert!(
            text.contains(r#""ProductName":"p""#) && text.contains(r#""SecondsTillShutdown":3"#),
            "{text}"
        );
    }
}
