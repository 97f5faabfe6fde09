//! Reads a tutorial into steps. Its fenced blocks are marked after their language with what happens to them:
//!
//! | block | step |
//! |---|---|
//! | `yaml file=NAME`, or of another language | writes the file |
//! | `sh run` | runs the commands, which must succeed; with `exit=N`, end with that code; with `repeat`, again and again until they print what they should |
//! | `sh start=NAME` | opens a terminal for a command that goes on |
//! | `text` after one of these | what it prints; nothing without such a block |
//! | `text in=NAME` | waits until the terminal shows these lines |
//! | `text stop=NAME` | presses Ctrl-C in the terminal, whose command must succeed and print these lines |
//! | `sh stands-for=kafka` | starts a Kafka broker at its usual port, instead of the commands |
//! | `sh reader`, `text picture` | nothing: the block is for the reader alone |
//!
//! The second mark `like` of a text says that its numbers differ from run to run.

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

use super::printed::ExpectedOutput;

pub struct TutorialStep {
    /// Number of the line with the fence, for errors.
    pub line: usize,
    pub action: TutorialAction,
}

pub enum TutorialAction {
    WriteFile {
        name: String,
        content: String,
    },
    Run {
        commands: String,
        exit_code: i32,
        repeats: bool,
        prints: ExpectedOutput,
    },
    Start {
        terminal: String,
        command: String,
        /// Not compared if the page shows nothing, as of a command that prints to a file.
        prints: Option<ExpectedOutput>,
    },
    WaitFor {
        terminal: String,
        shows: ExpectedOutput,
    },
    Interrupt {
        terminal: String,
        shows: ExpectedOutput,
    },
    StartKafka,
}

struct FencedBlock {
    line: usize,
    language: String,
    marks: Vec<String>,
    content: String,
}

/// All steps of a page. A block without a mark, or with an unknown one, is an error.
pub fn steps(page: &Path) -> Result<Vec<TutorialStep>> {
    let text = std::fs::read_to_string(page).with_context(|| format!("cannot read {}", page.display()))?;
    steps_in(&text).with_context(|| page.display().to_string())
}

fn steps_in(text: &str) -> Result<Vec<TutorialStep>> {
    let mut steps = Vec::new();
    let mut blocks = fenced_blocks(text)?.into_iter().peekable();
    while let Some(block) = blocks.next() {
        let prints = match block.has_output() {
            true => blocks.next_if(FencedBlock::is_output),
            false => None,
        };
        let line = block.line;
        let action = block
            .action(prints.as_ref())
            .with_context(|| format!("the block in line {line}"))?;
        steps.extend(action.map(|action| TutorialStep { line, action }));
    }
    Ok(steps)
}

fn fenced_blocks(text: &str) -> Result<Vec<FencedBlock>> {
    let mut blocks = Vec::new();
    let mut open: Option<FencedBlock> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let fence = line.strip_prefix("```");
        if let Some(mut block) = open.take() {
            if fence == Some("") {
                blocks.push(block);
            } else {
                block.content.push_str(line);
                block.content.push('\n');
                open = Some(block);
            }
        } else if let Some(info) = fence {
            let mut words = info.split_whitespace().map(str::to_owned);
            open = Some(FencedBlock {
                line: number,
                language: words.next().unwrap_or_default(),
                marks: words.collect(),
                content: String::new(),
            });
        } else {
            let is_indented = line.trim_start().starts_with("```");
            ensure!(!is_indented, "line {number}: a block must not be indented");
        }
    }
    ensure!(open.is_none(), "the last block has no end");
    Ok(blocks)
}

impl FencedBlock {
    fn has_output(&self) -> bool {
        let mark = self.marks.first().map_or("", String::as_str);
        self.language == "sh" && (mark == "run" || mark.starts_with("start="))
    }

    fn is_output(&self) -> bool {
        self.language == "text" && self.marks.iter().all(|mark| mark == "like")
    }

    fn expected(&self) -> ExpectedOutput {
        ExpectedOutput::new(&self.content, self.marks.iter().any(|mark| mark == "like"))
    }

    /// What the test does, with the output that the page shows after it; nothing for a block that is for the reader alone.
    fn action(self, prints: Option<&FencedBlock>) -> Result<Option<TutorialAction>> {
        let (first, others) = self.marks.split_first().context("has no mark")?;
        let (mark, value) = first.split_once('=').unwrap_or((first.as_str(), ""));
        let takes_value = ["file", "start", "in", "stop", "stands-for"].contains(&mark);
        ensure!(takes_value != value.is_empty(), "has the mark {first:?}");
        let name = value.to_owned();
        let prints = prints.map(FencedBlock::expected);
        let is_text = self.language == "text";
        let allowed: &[&str] = match mark {
            "run" => &["repeat", "exit="],
            "in" | "stop" => &["like"],
            _ => &[],
        };
        for other in others {
            let is_allowed = |one: &&str| other == one || (one.ends_with('=') && other.starts_with(*one));
            ensure!(allowed.iter().any(is_allowed), "has the mark {other:?}");
        }
        Ok(Some(match (self.language.as_str(), mark) {
            ("", _) => bail!("has no language"),
            (_, "file") if !is_text => TutorialAction::WriteFile {
                name,
                content: self.content,
            },
            ("sh", "run") => {
                let exit_code = others.iter().find_map(|other| other.strip_prefix("exit="));
                TutorialAction::Run {
                    exit_code: exit_code
                        .map_or(Ok(0), str::parse::<i32>)
                        .context("exit= needs a number")?,
                    repeats: others.iter().any(|other| other == "repeat"),
                    prints: prints.unwrap_or_else(ExpectedOutput::nothing),
                    commands: self.content,
                }
            }
            ("sh", "start") => TutorialAction::Start {
                terminal: name,
                command: self.content,
                prints,
            },
            ("text", "in") => TutorialAction::WaitFor {
                shows: self.expected(),
                terminal: name,
            },
            ("text", "stop") => TutorialAction::Interrupt {
                shows: self.expected(),
                terminal: name,
            },
            ("sh", "stands-for") if value == "kafka" => TutorialAction::StartKafka,
            ("sh", "reader") | ("text", "picture") => return Ok(None),
            (language, _) => bail!("is of an unknown kind: {language} {first}"),
        }))
    }
}

#[test]
fn a_block_without_a_known_mark_is_an_error() {
    let wrong = |text: &str| format!("{:#}", steps_in(text).err().unwrap());
    for (text, error) in [
        ("# A\n\n```sh\nls\n```\n", "the block in line 3: has no mark"),
        ("```\nls\n```\n", "has no mark"),
        ("```sh run often\nls\n```\n", "has the mark \"often\""),
        ("```sh runs\nls\n```\n", "is of an unknown kind: sh runs"),
        ("```python run\nls\n```\n", "is of an unknown kind: python run"),
        ("```yaml file\na: 1\n```\n", "has the mark \"file\""),
        (
            "```sh reader\nls\n```\n\n```text\na\n```\n",
            "the block in line 5: has no mark",
        ),
        (
            "1. a\n   ```sh run\n   ls\n   ```\n",
            "line 2: a block must not be indented",
        ),
        ("```sh run\nls\n", "the last block has no end"),
    ] {
        assert!(wrong(text).contains(error), "{text}: {}", wrong(text));
    }
    let read = "```sh run repeat exit=3\nls\n```\n\nThis:\n\n```text like\na\n```\n\n```text picture\nA\n```\n";
    let steps = steps_in(read).unwrap();
    assert_eq!(steps.len(), 1);
    assert!(matches!(
        steps[0].action,
        TutorialAction::Run {
            exit_code: 3,
            repeats: true,
            ..
        }
    ));
}
