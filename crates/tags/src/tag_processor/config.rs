//! The configuration of `tag_processor`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use thalweg_config::{ComponentNode, Fields, Node};
use thalweg_flow::{BuildError, ParseContext, Processor, ProcessorSpec, StageContext};
use thalweg_script::{Script, ScriptForm};

use super::finish::Finisher;
use super::result_cache::ResultCache;
use super::{DROPPED, ERRORED, PROCESSED, PipelineStep, ScriptStage, TagProcessor, TagProcessorMetrics};
use crate::computed;
use crate::scripting::{ScriptMetrics, ScriptSource, Scripts, check};
use crate::time::TimestampSource;

pub(super) struct TagProcessorSpec {
    scripts: Scripts,
    steps: Arc<[PipelineStep]>,
    timestamp_source: TimestampSource,
}

pub(crate) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn ProcessorSpec>> {
    Some(Arc::new(read(node, context)?))
}

/// Reads the configuration and reports every mistake in it.
pub(super) fn read(node: &ComponentNode, context: &ParseContext<'_>) -> Option<TagProcessorSpec> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let mut reader = StepBuilder::default();
    if let Some(code) = script_text(&mut fields, "defaults") {
        reader.body("defaults", "defaults", code);
    }
    for (i, entry) in fields.list("conditions").iter().enumerate() {
        let mut condition = Fields::new(entry, context.diagnostics);
        let _required = (condition.required_string("if"), condition.required_string("then"));
        let given = |name: &str| {
            condition
                .mapping()
                .get(name)
                .filter(|node| node.scalar_text().is_some())
                .cloned()
        };
        if let (Some(test), Some(then)) = (given("if"), given("then")) {
            reader.condition(i, test, then);
        }
        condition.finish();
    }
    if let Some(code) = script_text(&mut fields, "advancedProcessing") {
        reader.body("advanced", "advanced processing", code);
    }
    let timestamp_source = match fields.one_of("timestampSource", &["now", "source", "server"], "now") {
        "source" => TimestampSource::Source,
        "server" => TimestampSource::Server,
        _ => TimestampSource::Now,
    };
    let timeout = fields.opt_duration("scriptTimeout");
    if timeout.is_some_and(|timeout| timeout.is_zero()) {
        fields.error(
            "scriptTimeout",
            "the time must be more than 0; give a duration such as 1s",
        );
    }
    fields.finish();
    let prefix = "failed to compile JavaScript programs: failed to compile ";
    if !check(&reader.sources, prefix, &context.config.scripting, context.diagnostics) {
        return None;
    }
    let list = reader.sources.into_iter().map(|source| source.script).collect();
    let scripting = &context.config.scripting;
    let scripts = Scripts::new(list, scripting, computed::KEYS).with_timeout(timeout.unwrap_or(scripting.timeout));
    Some(TagProcessorSpec {
        scripts,
        steps: reader.steps.into(),
        timestamp_source,
    })
}

/// The node of a script field, unless it is empty.
fn script_text(fields: &mut Fields<'_>, name: &str) -> Option<Node> {
    let code = fields.string(name, "");
    (!code.trim().is_empty()).then(|| fields.mapping().get(name).cloned())?
}

#[derive(Default)]
struct StepBuilder {
    sources: Vec<ScriptSource>,
    steps: Vec<PipelineStep>,
}

impl StepBuilder {
    fn body(&mut self, name: &str, label: &str, code: Node) {
        let stage = self.stage(name, label, code);
        self.steps.push(PipelineStep::Run(stage));
    }

    fn condition(&mut self, i: usize, test: Node, then: Node) {
        let name = format!("condition-{i}-if");
        let condition = self.add(&name, &format!("condition {i} 'if'"), test, ScriptForm::Condition);
        let then = self.stage(&format!("condition-{i}-then"), &format!("condition {i} 'then'"), then);
        self.steps.push(PipelineStep::When { condition, name, then });
    }

    fn stage(&mut self, name: &str, label: &str, code: Node) -> ScriptStage {
        ScriptStage {
            script: self.add(name, label, code, ScriptForm::Body),
            name: name.to_owned(),
            told: Arc::new(AtomicBool::new(false)),
        }
    }

    fn add(&mut self, name: &str, label: &str, node: Node, form: ScriptForm) -> usize {
        self.sources.push(ScriptSource {
            script: Script {
                stage: name.to_owned(),
                form,
                code: node.scalar_text().unwrap_or_default().to_owned(),
            },
            node,
            label: format!("{label} code: "),
        });
        self.sources.len() - 1
    }
}

impl ProcessorSpec for TagProcessorSpec {
    fn build(&self, context: StageContext) -> Result<Box<dyn Processor>, BuildError> {
        Ok(Box::new(self.processor(context)?))
    }
}

impl TagProcessorSpec {
    pub(super) fn processor(&self, context: StageContext) -> Result<TagProcessor, BuildError> {
        let counters = TagProcessorMetrics {
            processed: context.component.counter(&PROCESSED),
            errored: context.component.counter(&ERRORED),
            dropped: context.component.counter(&DROPPED),
        };
        let program = self.scripts.build(&context)?;
        Ok(TagProcessor {
            script_metrics: program.as_ref().map(|_| ScriptMetrics::new(&context)),
            program,
            steps: self.steps.clone(),
            finisher: Finisher::new(self.timestamp_source),
            at_hand: ResultCache::default(),
            counters,
            failed: Vec::new(),
            items: Vec::new(),
            spare: Vec::new(),
            called: Vec::new(),
            context,
        })
    }
}
