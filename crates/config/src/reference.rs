//! The text of the reference: what a component or a section is for, and a sentence about each of its fields.
//!
//! Types and defaults are not here: [`describe`](crate::describe) finds them by running the reader. The text lies in the crate
//! that reads the fields, below `reference/`, so that a change of a field is a change of one folder.

/// A text of the reference, in pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReferenceText {
    /// What the component or section is for.
    pub about: String,
    pub fields: Vec<FieldText>,
}

/// What a text says about one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldText {
    /// The path from the component, such as `deadband.type` or `conditions[].if`.
    pub path: String,
    pub sentence: String,
    /// A value in YAML on one line; empty where none would help.
    pub example: String,
}

impl ReferenceText {
    /// Reads a text: lines `# about` first, then a line `path | sentence | example` for each field.
    ///
    /// # Errors
    ///
    /// Names the line that is neither, or a path that comes twice.
    pub fn parse(text: &str) -> Result<ReferenceText, String> {
        let mut parsed = ReferenceText::default();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            if let Some(about) = line.strip_prefix('#') {
                if !parsed.about.is_empty() {
                    parsed.about.push(' ');
                }
                parsed.about.push_str(about.trim());
                continue;
            }
            let number = number + 1;
            let mut parts = line.split('|').map(str::trim);
            let field = FieldText {
                path: parts.next().unwrap_or_default().to_owned(),
                sentence: parts.next().unwrap_or_default().to_owned(),
                // An example may have the sign itself.
                example: parts.collect::<Vec<_>>().join(" | "),
            };
            if field.path.is_empty() || field.path.contains(' ') || !field.sentence.ends_with('.') {
                return Err(format!("line {number}: expected \"path | sentence. | example\""));
            }
            if parsed.field(&field.path).is_some() {
                return Err(format!("line {number}: {} is described twice", field.path));
            }
            parsed.fields.push(field);
        }
        match parsed.about.is_empty() {
            true => Err("it does not begin with a line \"# what this is for\"".to_owned()),
            false => Ok(parsed),
        }
    }

    /// What the text says about a field.
    pub fn field(&self, path: &str) -> Option<&FieldText> {
        self.fields.iter().find(|field| field.path == path)
    }
}

/// The sections that this crate reads: name and text.
pub const SECTION_TEXTS: &[(&str, &str)] = &[
    ("document", include_str!("../reference/section-document.txt")),
    ("data_dir", include_str!("../reference/section-data_dir.txt")),
    ("flows", include_str!("../reference/section-flows.txt")),
    ("components", include_str!("../reference/section-components.txt")),
    ("resources", include_str!("../reference/section-resources.txt")),
    ("dead_letter", include_str!("../reference/section-dead_letter.txt")),
    ("memory", include_str!("../reference/section-memory.txt")),
    ("scripting", include_str!("../reference/section-scripting.txt")),
    ("http", include_str!("../reference/section-http.txt")),
    ("auth", include_str!("../reference/section-auth.txt")),
    ("logger", include_str!("../reference/section-logger.txt")),
    ("metrics", include_str!("../reference/section-metrics.txt")),
    (
        "shutdown_timeout",
        include_str!("../reference/section-shutdown_timeout.txt"),
    ),
];

/// The buffers of flows that need no queue: name and text.
pub const BUFFER_TEXTS: &[(&str, &str)] = &[
    ("none", include_str!("../reference/buffer-none.txt")),
    ("memory", include_str!("../reference/buffer-memory.txt")),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_line_by_line_and_what_is_no_line_of_it_is_refused() {
        let text = "# Reads a file.\n# It ends.\npaths | The files. | [a, b]\ncodec.max | At most. | a | b\n";
        let parsed = ReferenceText::parse(text).unwrap();
        assert_eq!(parsed.about, "Reads a file. It ends.");
        assert_eq!(parsed.fields.len(), 2);
        assert_eq!(parsed.field("codec.max").unwrap().example, "a | b");
        for wrong in [
            "",
            "a | A field. |",
            "# x.\na | no full stop |",
            "# x.\na b | A field. |",
            "# x.\na | A. |\na | B. |",
        ] {
            assert!(ReferenceText::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_texts_of_this_crate_can_be_read() {
        for (name, text) in SECTION_TEXTS.iter().chain(BUFFER_TEXTS) {
            assert!(ReferenceText::parse(text).is_ok(), "{name}");
        }
    }
}
