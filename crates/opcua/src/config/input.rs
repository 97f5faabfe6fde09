//! Fields of the OPC UA input alone: the nodes, and how their values are fetched.

use std::time::Duration;

use globset::{Glob, GlobMatcher, GlobSet, GlobSetBuilder};
use thalweg_config::{Fields, Node, kind};

use super::ConnectionConfig;
use super::connection::legacy_without_effect;
use crate::deadband::Deadband;
use crate::node_id::NodeSpec;

#[derive(Clone, Debug)]
pub(crate) struct InputConfig {
    pub connection: ConnectionConfig,
    pub nodes: Vec<NodeSpec>,
    /// False means polling.
    pub subscribe: bool,
    pub heartbeat: bool,
    pub poll_rate: Duration,
    pub queue_size: u32,
    pub sampling_interval_ms: f64,
    pub publishing_interval: Duration,
    pub keep_alive_count: u32,
    pub notifications_per_publish_max: u32,
    pub items_per_subscription: usize,
    /// Per subscription.
    pub publish_requests: usize,
    pub connections: usize,
    pub deadband: Deadband,
    pub deadband_rules: Vec<DeadbandRule>,
    pub browse: BrowseConfig,
    pub tag_group_mode: TagGroupMode,
    pub bad_values: BadValues,
}

/// What becomes of a notification that says a tag is not good and has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadValues {
    /// It passes where the flow ends in the table `tags`, which shows that a tag is bad.
    Auto,
    /// It is filtered.
    Drop,
    /// It is a message with its status and the value null.
    Pass,
}

/// How the group of a tag is derived from its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TagGroupMode {
    Clean,
    /// As in the reference system: the first occurrence of the raw name is removed.
    Reference,
}

/// A deadband for the nodes whose NodeID text or tag path matches.
#[derive(Clone, Debug)]
pub(crate) struct DeadbandRule {
    pub pattern: GlobMatcher,
    pub deadband: Deadband,
}

#[derive(Clone, Debug)]
pub(crate) struct BrowseConfig {
    /// Children of nodes at this level are not visited; roots are level 0.
    pub depth_max: u16,
    /// 0 means no limit.
    pub nodes_max: usize,
    /// Globs for tag paths; `None` accepts all.
    pub include: Option<GlobSet>,
    pub exclude: Option<GlobSet>,
    /// Whether HasProperty references are followed.
    pub properties: bool,
}

impl InputConfig {
    /// Reports every mistake; `None` if there was one.
    pub fn parse(node: &Node, diagnostics: &thalweg_config::Diagnostics) -> Option<InputConfig> {
        let errors = diagnostics.error_count();
        let mut fields = Fields::new(node, diagnostics);
        let config = read(&mut fields);
        legacy_without_effect(&mut fields);
        fields.finish();
        config.filter(|_| diagnostics.error_count() == errors)
    }
}

fn read(fields: &mut Fields<'_>) -> Option<InputConfig> {
    let connection = ConnectionConfig::parse(fields);
    let nodes = nodes(fields);
    let subscribe = fields.bool("subscribeEnabled", false);
    let heartbeat = fields.bool("useHeartbeat", false);
    let poll_rate = match fields.int("pollRate", 1000) {
        ..=0 => 1000,
        ms => ms.unsigned_abs().min(86_400_000),
    };
    let queue_size = fields.int_in("queueSize", 10, 1..=100_000);
    let sampling_interval_ms = fields.float("samplingInterval", 0.0);
    if sampling_interval_ms < 0.0 {
        fields.error(
            "samplingInterval",
            "expected 0 or more milliseconds; 0 means as fast as the server can",
        );
    }
    let publishing_interval = fields.int_in("publishingInterval", 100, 1..=3_600_000).unsigned_abs();
    let keep_alive_count = fields.int_in("keepAliveCount", 50, 1..=100_000);
    let notifications = fields.int_in("maxNotificationsPerPublish", 10_000, 1..=1_000_000);
    let items_per_subscription = fields.int_in("itemsPerSubscription", 10_000, 1..=1_000_000);
    let publish_requests = fields.int_in("publishRequests", 4, 2..=16);
    let connections = fields.int_in("connections", 1, 1..=16);
    let deadband = deadband(fields);
    let deadband_rules = fields
        .list("deadbandRules")
        .iter()
        .filter_map(|rule| deadband_rule(rule, fields))
        .collect();
    let browse = browse(fields);
    let tag_group_mode = match fields.one_of("tagGroupMode", &["clean", "reference"], "clean") {
        "reference" => TagGroupMode::Reference,
        _ => TagGroupMode::Clean,
    };
    let bad_values = match fields.one_of("bad_values", &["auto", "drop", "pass"], "auto") {
        "drop" => BadValues::Drop,
        "pass" => BadValues::Pass,
        _ => BadValues::Auto,
    };
    Some(InputConfig {
        connection: connection?,
        nodes: nodes?,
        subscribe,
        heartbeat,
        poll_rate: Duration::from_millis(poll_rate),
        queue_size: small(queue_size),
        sampling_interval_ms,
        publishing_interval: Duration::from_millis(publishing_interval),
        keep_alive_count: small(keep_alive_count),
        notifications_per_publish_max: small(notifications),
        items_per_subscription: small(items_per_subscription) as usize,
        publish_requests: small(publish_requests) as usize,
        connections: small(connections) as usize,
        deadband,
        deadband_rules,
        browse,
        tag_group_mode,
        bad_values,
    })
}

/// For numbers whose range was checked.
fn small(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn nodes(fields: &mut Fields<'_>) -> Option<Vec<NodeSpec>> {
    let list = fields.required_node("nodeIDs", kind::TEXT_LIST)?;
    let diagnostics = fields.diags();
    let items = list.expect_seq().map_err(|why| diagnostics.error(&list, why)).ok()?;
    if items.is_empty() {
        diagnostics.error(&list, "no nodeIDs provided");
        return None;
    }
    let parsed = items.iter().filter_map(|item| {
        let spec = item.expect_text().and_then(NodeSpec::parse);
        spec.map_err(|why| diagnostics.error(item, why)).ok()
    });
    let parsed: Vec<NodeSpec> = parsed.collect();
    (parsed.len() == items.len()).then_some(parsed)
}

fn deadband(fields: &mut Fields<'_>) -> Deadband {
    let mut deadband = match fields.opt_fields("deadband") {
        Some(mut inner) => {
            let deadband = read_deadband(&mut inner);
            inner.finish();
            deadband
        }
        None => Deadband::DEFAULT,
    };
    let text = |node: &Node| node.scalar_text().unwrap_or_default().to_owned();
    if let Some(node) = fields.legacy("deadbandType", "is the old name of deadband.type; write it there") {
        match Deadband::from_parts(&text(&node), deadband.value()) {
            Some(known) => deadband = known,
            None => fields.error("deadbandType", "expected none, absolute or percent"),
        }
    }
    if let Some(node) = fields.legacy("deadbandValue", "is the old name of deadband.value; write it there") {
        match node.expect_f64() {
            Ok(value) if value > 100.0 && matches!(deadband, Deadband::Percent(_)) => {
                fields.error("deadbandValue", "expected at most 100 percent");
            }
            Ok(value) if value >= 0.0 => deadband = deadband.with_value(value),
            Ok(_) => fields.error("deadbandValue", "expected a number of 0 or more"),
            Err(why) => fields.error("deadbandValue", why),
        }
    }
    deadband
}

fn read_deadband(fields: &mut Fields<'_>) -> Deadband {
    let kind = fields.one_of("type", &["none", "absolute", "percent"], "absolute");
    let value = fields.float("value", 0.0);
    if value < 0.0 {
        fields.error("value", "expected a number of 0 or more");
    }
    if kind == "percent" && value > 100.0 {
        fields.error("value", "expected at most 100 percent");
    }
    Deadband::from_parts(kind, value).unwrap_or(Deadband::DEFAULT)
}

fn deadband_rule(node: &Node, fields: &Fields<'_>) -> Option<DeadbandRule> {
    let mut rule = Fields::new(node, fields.diags());
    let pattern = rule.required_string("pattern");
    let deadband = read_deadband(&mut rule);
    let pattern = glob(&pattern).map_err(|why| rule.error("pattern", why)).ok();
    rule.finish();
    Some(DeadbandRule {
        pattern: pattern?.compile_matcher(),
        deadband,
    })
}

fn browse(fields: &mut Fields<'_>) -> BrowseConfig {
    let mut inner = fields.fields("browse");
    let depth_max = inner.int_in("maxDepth", 25, 0..=1000);
    let nodes_max = inner.int_in("maxNodes", 0, 0..=i64::from(u32::MAX));
    let include = globs(&mut inner, "include");
    let exclude = globs(&mut inner, "exclude");
    let properties = inner.bool("properties", true);
    inner.finish();
    BrowseConfig {
        depth_max: u16::try_from(depth_max).unwrap_or(u16::MAX),
        nodes_max: usize::try_from(nodes_max).unwrap_or(0),
        include,
        exclude,
        properties,
    }
}

fn globs(fields: &mut Fields<'_>, name: &str) -> Option<GlobSet> {
    let patterns = fields.string_list(name);
    if patterns.is_empty() {
        return None;
    }
    let mut set = GlobSetBuilder::new();
    for pattern in &patterns {
        match glob(pattern) {
            Ok(glob) => drop(set.add(glob)),
            Err(why) => fields.error(name, why),
        }
    }
    set.build().map_err(|error| fields.error(name, error)).ok()
}

/// `*` spans dots, because tag paths are not file paths.
fn glob(pattern: &str) -> Result<Glob, String> {
    Glob::new(pattern).map_err(|error| format!("\"{pattern}\" is not a glob: {}", error.kind()))
}

#[cfg(test)]
mod tests;
