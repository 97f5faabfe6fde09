//! The loads that are measured.

use thalweg_mqtt_wire::QoS;

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadRow {
    pub name: &'static str,
    pub publishers: usize,
    pub subscribers: usize,
    pub qos: QoS,
    /// The sessions of subscribers outlive their connections, so that everything is stored.
    pub is_stored: bool,
    /// Messages that may be under way: of all publishers with QoS 0, of each one with QoS 1 and 2.
    pub outstanding: usize,
}

const fn row(name: &'static str, publishers: usize, subscribers: usize, qos: QoS, is_stored: bool) -> LoadRow {
    let outstanding = match qos {
        QoS::AtMostOnce => 1000,
        QoS::AtLeastOnce | QoS::ExactlyOnce => 20,
    };
    LoadRow {
        name,
        publishers,
        subscribers,
        qos,
        is_stored,
        outstanding,
    }
}

/// All rows.
pub const LOAD_ROWS: [LoadRow; 11] = [
    row("qos0_1_to_1", 1, 1, QoS::AtMostOnce, false),
    row("qos1_1_to_1", 1, 1, QoS::AtLeastOnce, false),
    row("qos2_1_to_1", 1, 1, QoS::ExactlyOnce, false),
    row("qos0_fan_in_100", 100, 1, QoS::AtMostOnce, false),
    row("qos1_fan_in_100", 100, 1, QoS::AtLeastOnce, false),
    row("qos2_fan_in_100", 100, 1, QoS::ExactlyOnce, false),
    row("qos0_fan_out_1000", 1, 1000, QoS::AtMostOnce, false),
    row("qos1_fan_out_1000", 1, 1000, QoS::AtLeastOnce, false),
    row("qos1_durable_1_to_1", 1, 1, QoS::AtLeastOnce, true),
    row("qos1_durable_fan_in_100", 100, 1, QoS::AtLeastOnce, true),
    row("qos2_durable_1_to_1", 1, 1, QoS::ExactlyOnce, true),
];

impl LoadRow {
    /// The topic of a publisher.
    pub fn topic(&self, publisher: usize) -> String {
        format!("load/{}/{publisher}", self.name)
    }

    /// The filter of all subscribers.
    pub fn filter(&self) -> String {
        match self.publishers {
            1 => self.topic(0),
            _ => format!("load/{}/+", self.name),
        }
    }
}
