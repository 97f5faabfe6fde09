//! The configuration: a default, exceptions by topic, and whether messages may override it.

use std::sync::Arc;
use std::time::Duration;

use globset::{Glob, GlobBuilder, GlobMatcher};
use thalweg_config::{ComponentNode, Fields, Node, kind};
use thalweg_flow::{ParseContext, ProcessorSpec};

use super::DownsamplerSpec;
use super::algorithm::{AlgorithmSettings, Deadband, SwingingDoor};

/// How to handle a point that is older than the newest of its series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LatePolicy {
    Passthrough,
    Drop,
}

impl LatePolicy {
    pub fn named(name: &str) -> Option<LatePolicy> {
        match name {
            "passthrough" => Some(LatePolicy::Passthrough),
            "drop" => Some(LatePolicy::Drop),
            _ => None,
        }
    }
}

/// How a series is downsampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SeriesPolicy {
    pub settings: AlgorithmSettings,
    pub late: LatePolicy,
    /// Parameters of both algorithms, for messages that select the other one.
    pub deadband: Deadband,
    pub door: SwingingDoor,
}

pub(super) struct Override {
    pub pattern: GlobMatcher,
    pub choice: SeriesPolicy,
}

pub(super) struct DownsamplerConfig {
    pub default: SeriesPolicy,
    pub overrides: Vec<Override>,
    pub allow_meta_overrides: bool,
}

impl DownsamplerConfig {
    /// The policy of a topic: that of the first exception whose pattern matches it, or its last segment.
    pub fn of(&self, topic: &str) -> SeriesPolicy {
        let name = topic.rsplit('.').next().unwrap_or(topic);
        let fits = |exception: &&Override| exception.pattern.is_match(topic) || exception.pattern.is_match(name);
        self.overrides
            .iter()
            .find(fits)
            .map_or(self.default, |exception| exception.choice)
    }

    /// Whether a series can use the swinging door without requesting it itself.
    pub fn has_door(&self) -> bool {
        let choices = self.overrides.iter().map(|exception| &exception.choice);
        let mut choices = choices.chain([&self.default]);
        choices.any(|choice| matches!(choice.settings, AlgorithmSettings::Door(_)))
    }
}

/// Parameters as configured.
#[derive(Default)]
struct ConfiguredParameters {
    deadband: Option<(Option<f64>, Option<Duration>)>,
    door: Option<(Option<f64>, Option<Duration>, Option<Duration>)>,
    late: Option<LatePolicy>,
}

pub(crate) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn ProcessorSpec>> {
    let config = read(node, context);
    (!context.diagnostics.has_errors()).then(|| {
        Arc::new(DownsamplerSpec {
            config: Arc::new(config),
        }) as Arc<dyn ProcessorSpec>
    })
}

pub(super) fn read(node: &ComponentNode, context: &mut ParseContext<'_>) -> DownsamplerConfig {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let mut section = fields.fields("default");
    let place = section.mapping().clone();
    let given = read_given(&mut section);
    section.finish();
    let nothing = SeriesPolicy {
        settings: AlgorithmSettings::Deadband(Deadband::default()),
        late: LatePolicy::Passthrough,
        deadband: Deadband::default(),
        door: SwingingDoor::default(),
    };
    let is_deadband = given.deadband.is_some() || given.door.is_none();
    let default = choose(&given, nothing, is_deadband, &place, context);
    let mut overrides = Vec::new();
    for entry in fields.list("overrides") {
        let mut section = Fields::new(&entry, context.diagnostics);
        let pattern = section.required_string("pattern");
        let given = read_given(&mut section);
        let compiled: Result<Glob, globset::Error> = GlobBuilder::new(&pattern).literal_separator(false).build();
        if let Err(error) = &compiled {
            section.error(
                "pattern",
                format!("{pattern:?} is not a valid pattern: {}", error.kind()),
            );
        }
        section.finish();
        let is_deadband = match (&given.door, &given.deadband) {
            (Some(_), _) => false,
            (None, Some(_)) => true,
            (None, None) => matches!(default.settings, AlgorithmSettings::Deadband(_)),
        };
        let choice = choose(&given, default, is_deadband, &entry, context);
        if let Ok(glob) = compiled {
            let pattern = glob.compile_matcher();
            overrides.push(Override { pattern, choice });
        }
    }
    let allow_meta_overrides = fields.bool("allow_meta_overrides", true);
    fields.finish();
    DownsamplerConfig {
        default,
        overrides,
        allow_meta_overrides,
    }
}

fn read_given(section: &mut Fields<'_>) -> ConfiguredParameters {
    let deadband = section.opt_fields("deadband").map(|mut fields| {
        let given = (threshold(&mut fields), fields.opt_duration("max_time"));
        fields.legacy("min_time", "has no effect: the deadband has no minimum time");
        fields.finish();
        given
    });
    let door = section.opt_fields("swinging_door").map(|mut fields| {
        let given = (
            threshold(&mut fields),
            fields.opt_duration("max_time"),
            fields.opt_duration("min_time"),
        );
        fields.finish();
        given
    });
    ConfiguredParameters {
        deadband: deadband.filter(|given| *given != (None, None)),
        door: door.filter(|given| *given != (None, None, None)),
        late: late_policy(section),
    }
}

fn threshold(fields: &mut Fields<'_>) -> Option<f64> {
    let threshold = fields.opt_float("threshold")?;
    if !threshold.is_finite() || threshold < 0.0 {
        fields.error("threshold", "a threshold is a number that is not negative");
        return Some(0.0);
    }
    Some(threshold)
}

/// Given as a word, or within a mapping of the same name, as in published examples.
fn late_policy(section: &mut Fields<'_>) -> Option<LatePolicy> {
    if !section.has("late_policy") {
        // Read it anyway, because only fields that were read are listed as valid names.
        section.one_of("late_policy", NAMES, "passthrough");
        return None;
    }
    let node: Option<Node> = section.mapping().get("late_policy").cloned();
    if node.as_ref().is_none_or(|node| node.as_map().is_none()) {
        return LatePolicy::named(section.one_of("late_policy", NAMES, "passthrough"));
    }
    if node.as_ref().is_some_and(|node| node.get("late_policy").is_none()) {
        section.error(
            "late_policy",
            "a late policy is a word: late_policy: passthrough, or drop",
        );
        section.node("late_policy", &kind::one_of(NAMES));
        return None;
    }
    let mut nested = section.fields("late_policy");
    let name = nested.required_one_of("late_policy", NAMES);
    if let Some(name) = name {
        nested.legacy(
            "late_policy",
            &format!("is read as if the mapping around it were missing; write late_policy: {name}"),
        );
    }
    nested.finish();
    name.and_then(LatePolicy::named)
}

const NAMES: &[&str] = &["passthrough", "drop"];

/// Merges the given parameters over the defaults.
fn choose(
    given: &ConfiguredParameters,
    otherwise: SeriesPolicy,
    is_deadband: bool,
    place: &Node,
    context: &ParseContext<'_>,
) -> SeriesPolicy {
    let mut choice = otherwise;
    choice.late = given.late.unwrap_or(otherwise.late);
    if let Some((threshold, max_time)) = given.deadband {
        choice.deadband = Deadband {
            threshold: threshold.unwrap_or(otherwise.deadband.threshold),
            max_time: max_time.unwrap_or(otherwise.deadband.max_time),
        };
    }
    if let Some((threshold, max_time, min_time)) = given.door {
        choice.door = SwingingDoor {
            threshold: threshold.unwrap_or(otherwise.door.threshold),
            max_time: max_time.unwrap_or(otherwise.door.max_time),
            min_time: min_time.unwrap_or(otherwise.door.min_time),
        };
        let known = threshold.is_some()
            || otherwise.door.threshold > 0.0
            || matches!(otherwise.settings, AlgorithmSettings::Door(_));
        if !known && !is_deadband {
            context
                .diagnostics
                .error(place, "swinging_door needs a threshold, such as threshold: 0.5");
        }
        if is_crossed(&choice.door) {
            context.diagnostics.error(
                place,
                "min_time of swinging_door is longer than max_time; make it shorter",
            );
        }
    }
    choice.settings = match is_deadband {
        true => AlgorithmSettings::Deadband(choice.deadband),
        false => AlgorithmSettings::Door(choice.door),
    };
    choice
}

/// Whether the minimum time is longer than the maximum.
pub(super) fn is_crossed(door: &SwingingDoor) -> bool {
    !door.max_time.is_zero() && door.min_time > door.max_time
}
