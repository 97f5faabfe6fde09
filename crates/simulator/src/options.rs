//! The options of a simulator: counts, rates, faults and security, as plain values with the documented defaults. A
//! command line or a test fills them in; `validate` turns contradictions into one sentence that names the option and
//! the remedy.

use std::path::PathBuf;
use std::str::FromStr;

use crate::SimulatorError;

/// The widest tree that the node numbering allows, far above the 1,000,000 static nodes that are promised.
const NODES_MAX: u32 = 100_000_000;
/// A deeper path of folders exceeds every known client's recursion limit many times over.
const DEPTH_MAX: u32 = 10_000;
const PERIOD_SECONDS_MIN: f64 = 0.001;
const PERIOD_SECONDS_MAX: f64 = 86_400.0 * 365.0;

/// The value type of a group of changing nodes. Each change adds 1: a `bool` toggles, a `string` holds the digits of the
/// count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    UInt,
    Double,
    Bool,
    String,
}

impl ValueType {
    /// The part of a node's name that denotes its type, as in `FastUInt1`.
    pub fn name(self) -> &'static str {
        match self {
            ValueType::UInt => "UInt",
            ValueType::Double => "Double",
            ValueType::Bool => "Bool",
            ValueType::String => "String",
        }
    }
}

impl FromStr for ValueType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "uint" => Ok(ValueType::UInt),
            "double" => Ok(ValueType::Double),
            "bool" => Ok(ValueType::Bool),
            "string" => Ok(ValueType::String),
            other => Err(format!(
                "unknown value type \"{other}\"; use uint, double, bool or string"
            )),
        }
    }
}

/// All options of a simulator. It has no `Debug`, because it contains a password.
#[derive(Clone, PartialEq)]
pub struct SimulatorOptions {
    /// Address to listen on, and the host named in the endpoints (an unspecified address is announced by host name).
    pub host: String,
    /// TCP port of the OPC UA server; 0 picks a free one.
    pub port: u16,
    /// TCP port of `GET /sim/stats`; 0 takes the port after the server's, or any free one if that is taken.
    pub http_port: u16,
    pub slow_nodes: u32,
    /// Seconds between two changes of the slow group.
    pub slow_rate: f64,
    pub slow_type: ValueType,
    pub fast_nodes: u32,
    /// Seconds between two changes of the fast group (and of the changing nodes of `types`).
    pub fast_rate: f64,
    pub fast_type: ValueType,
    /// Nothing changes until `POST /sim/start`, so that the load can begin when a client has found all nodes.
    pub hold: bool,
    /// Offer an endpoint without security that accepts anonymous clients.
    pub insecure: bool,
    /// Offer Sign and SignAndEncrypt with every policy of the server library.
    pub secure: bool,
    /// Name and password that may log in. If set, the secured endpoints no longer accept anonymous clients.
    pub user: Option<(String, String)>,
    /// Certificate (DER) whose holder may log in.
    pub user_certificate: Option<PathBuf>,
    /// Trust any valid client certificate; otherwise unknown ones go to `rejected/` and the client is refused.
    pub auto_accept: bool,
    /// Folder of `own/`, `private/`, `trusted/` and `rejected/`; a missing server certificate is created there.
    pub pki_dir: PathBuf,
    /// Operation limits, reported in OperationLimits and enforced with BadTooManyOperations; 0 means no limit.
    pub max_nodes_per_browse: u32,
    pub max_nodes_per_read: u32,
    pub max_items_per_call: u32,
    /// Maximum subscriptions of one session, enforced with BadTooManySubscriptions; 0 means 1,000.
    pub max_subscriptions: u32,
    /// Maximum items of one subscription, beyond which a whole call is refused with BadTooManyMonitoredItems; 0 means
    /// no limit.
    pub max_items_per_subscription: u32,
    /// References in one browse result before a continuation point is returned.
    pub max_references_per_node: u32,
    /// Refuse every monitored item that carries a data change filter.
    pub refuse_filters: bool,
    /// Number of nodes that Browse shows, and that Read and CreateMonitoredItems refuse with BadNodeIdUnknown.
    pub bad_nodes: u32,
    /// Nodes, as NodeID text, that are hidden from the start: see [`crate::Simulator::hide`].
    pub hidden: Vec<String>,
    /// Cut every TCP connection each time this many seconds have passed; 0 means never.
    pub drop_every: f64,
    /// Milliseconds by which each byte is delayed, in both directions.
    pub latency: u64,
    /// Make `Simulator::cut_connections` work without `drop_every` and `latency`.
    pub cuttable: bool,
    /// Folder levels between the root and the changing nodes; 1 means only `Slow` and `Fast`.
    pub depth: u32,
    /// Number of static children of the one folder `Wide`.
    pub wide: u32,
    /// Determines the first value of each node.
    pub seed: u64,
    /// Add the folder `Types`: one node of every kind of value, a counter, an analog item and writable nodes.
    pub types: bool,
    /// The server's BuildInfo, so that profile detection of clients can be tested.
    pub manufacturer: String,
    pub product: String,
}

impl Default for SimulatorOptions {
    fn default() -> Self {
        SimulatorOptions {
            host: "127.0.0.1".to_owned(),
            port: 50_000,
            http_port: 0,
            slow_nodes: 100,
            slow_rate: 10.0,
            slow_type: ValueType::UInt,
            fast_nodes: 100,
            fast_rate: 1.0,
            fast_type: ValueType::UInt,
            hold: false,
            insecure: true,
            secure: true,
            user: None,
            user_certificate: None,
            auto_accept: false,
            pki_dir: PathBuf::from("thalweg-data/simulator/pki"),
            max_nodes_per_browse: 0,
            max_nodes_per_read: 0,
            max_items_per_call: 0,
            max_subscriptions: 0,
            max_items_per_subscription: 0,
            max_references_per_node: 1_000,
            refuse_filters: false,
            bad_nodes: 0,
            hidden: Vec::new(),
            drop_every: 0.0,
            latency: 0,
            cuttable: false,
            depth: 1,
            wide: 0,
            seed: 1,
            types: false,
            manufacturer: "Thalweg".to_owned(),
            product: "Thalweg OPC UA simulator".to_owned(),
        }
    }
}

impl SimulatorOptions {
    /// Parse `name:password`; only the first colon separates.
    pub fn parse_user(text: &str) -> Result<(String, String), String> {
        match text.split_once(':') {
            Some((name, password)) if !name.is_empty() => Ok((name.to_owned(), password.to_owned())),
            _ => Err("expected name:password".to_owned()),
        }
    }

    pub(crate) fn validate(&self) -> Result<(), SimulatorError> {
        if !self.insecure && !self.secure {
            return refuse("insecure, secure", "no endpoint is enabled; enable one of them");
        }
        let periods = [("slow-rate", self.slow_rate), ("fast-rate", self.fast_rate)];
        for (option, seconds) in periods {
            if !(PERIOD_SECONDS_MIN..=PERIOD_SECONDS_MAX).contains(&seconds) {
                return refuse(option, "seconds between changes must lie between 0.001 and one year");
            }
        }
        if self.drop_every != 0.0 && !(0.01..=PERIOD_SECONDS_MAX).contains(&self.drop_every) {
            return refuse("drop-every", "use 0 for never, or at least 0.01 seconds");
        }
        let counts = [
            ("slow-nodes", self.slow_nodes),
            ("fast-nodes", self.fast_nodes),
            ("wide", self.wide),
            ("bad-nodes", self.bad_nodes),
        ];
        for (option, count) in counts {
            if count > NODES_MAX {
                return refuse(option, "at most 100,000,000 nodes");
            }
        }
        if self.depth == 0 || self.depth > DEPTH_MAX {
            return refuse("depth", "use 1 to 10,000 folder levels");
        }
        if self.max_references_per_node == 0 {
            return refuse("max-references-per-node", "use at least 1");
        }
        if self
            .user
            .as_ref()
            .is_some_and(|(name, password)| name.is_empty() || password.is_empty())
        {
            return refuse("user", "name and password must not be empty");
        }
        Ok(())
    }

    /// Whether clients need the TCP proxy in front of the server.
    pub(crate) fn needs_front(&self) -> bool {
        self.drop_every > 0.0 || self.latency > 0 || self.cuttable
    }
}

fn refuse(option: &'static str, cure: &'static str) -> Result<(), SimulatorError> {
    Err(SimulatorError::Option { option, cure })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_contradictions_name_the_option() {
        assert!(SimulatorOptions::default().validate().is_ok());
        let cases: [(&str, SimulatorOptions); 6] = [
            (
                "insecure, secure",
                SimulatorOptions {
                    insecure: false,
                    secure: false,
                    ..SimulatorOptions::default()
                },
            ),
            (
                "slow-rate",
                SimulatorOptions {
                    slow_rate: 0.0,
                    ..SimulatorOptions::default()
                },
            ),
            (
                "fast-rate",
                SimulatorOptions {
                    fast_rate: f64::NAN,
                    ..SimulatorOptions::default()
                },
            ),
            (
                "drop-every",
                SimulatorOptions {
                    drop_every: -1.0,
                    ..SimulatorOptions::default()
                },
            ),
            (
                "depth",
                SimulatorOptions {
                    depth: 0,
                    ..SimulatorOptions::default()
                },
            ),
            (
                "wide",
                SimulatorOptions {
                    wide: u32::MAX,
                    ..SimulatorOptions::default()
                },
            ),
        ];
        for (option, options) in cases {
            let message = options.validate().unwrap_err().to_string();
            assert!(message.contains(option), "{message}");
        }
    }

    #[test]
    fn a_user_is_split_at_the_first_colon() {
        assert_eq!(
            SimulatorOptions::parse_user("a:b:c").unwrap(),
            ("a".to_owned(), "b:c".to_owned())
        );
        assert!(SimulatorOptions::parse_user("nopassword").is_err());
        assert!(SimulatorOptions::parse_user(":x").is_err());
    }

    #[test]
    fn value_types_have_the_documented_names() {
        for (text, name) in [
            ("uint", "UInt"),
            ("double", "Double"),
            ("bool", "Bool"),
            ("string", "String"),
        ] {
            assert_eq!(text.parse::<ValueType>().unwrap().name(), name);
        }
        assert!("int".parse::<ValueType>().is_err());
    }
}
