//! The page of error codes: a table for each interface, one for other texts, then one for each kind of reasons.

use std::fmt::Write as _;

use thalweg_assemble::{ErrorEntry, ErrorFace, MeaningTable, error_faces, reason_tables, text_codes};
use thalweg_kit::error_facts::RetryAdvice;

use super::{MADE, cell};

/// What the column of retries means.
const RETRY: &str = "\
Codes are for programs and never change; the sentence in an answer is for people and names the place. The column *retry*
says whether the same request may succeed without a change of it or of the system: *no*; *later*, when the answer does not
say when; or after a time that the answer contains, in the header `Retry-After` (for gRPC in the detail `RetryInfo`).

";

pub fn page() -> String {
    let mut text = format!("# Error codes\n\n{MADE}{RETRY}");
    error_faces().iter().for_each(|face| write_face(&mut text, face));
    write_meanings(&mut text, "code", &text_codes());
    for table in reason_tables() {
        write_meanings(&mut text, "reason", &table);
    }
    text
}

fn write_face(text: &mut String, face: &ErrorFace) {
    let _ = write!(text, "## {}\n\n{}\n\n", face.name, face.about);
    let has_grpc = face.errors.iter().any(|error| error.grpc.is_some());
    text.push_str(match has_grpc {
        true => "| code | status | gRPC | retry | |\n|---|---|---|---|---|\n",
        false => "| code | status | retry | |\n|---|---|---|---|\n",
    });
    for ErrorEntry { facts, grpc } in &face.errors {
        let _ = write!(text, "| `{}` | {} |", facts.code, facts.status);
        if has_grpc {
            let _ = write!(text, " {} |", grpc.unwrap_or_default());
        }
        let _ = writeln!(text, " {} | {} |", retry(facts.retry), cell(facts.meaning));
    }
    text.push('\n');
}

fn retry(advice: RetryAdvice) -> String {
    match advice {
        RetryAdvice::Never => "no".to_owned(),
        RetryAdvice::Later => "later".to_owned(),
        RetryAdvice::After(seconds) => format!("after {seconds} s"),
        RetryAdvice::Computed => "after a computed time".to_owned(),
    }
}

fn write_meanings(text: &mut String, column: &str, table: &MeaningTable) {
    let _ = write!(text, "## {}\n\n{}\n\n", table.name, table.about);
    let _ = write!(text, "| {column} | |\n|---|---|\n");
    for (name, meaning) in &table.rows {
        let _ = writeln!(text, "| `{name}` | {} |", cell(meaning));
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_a_row_for_each_error_each_code_and_each_reason() {
        let page = page();
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
        let errors: usize = error_faces().iter().map(|face| face.errors.len()).sum();
        let reasons: usize = reason_tables().iter().map(|table| table.rows.len()).sum();
        assert_eq!(rows.len(), errors + text_codes().rows.len() + reasons);
        for expected in [
            "| `queue_full` | 429 | after 1 s | ",
            "| `BACKEND_ERROR` | 500 | later | ",
            "| `otlp.pressure` | 429 | RESOURCE_EXHAUSTED | after a computed time | ",
            "| `sql.parse` | 400 | no | ",
            "| `lake.held` | ",
            "| `ingest.no_header` | ",
            "| `script_error` | ",
        ] {
            assert!(rows.iter().any(|row| row.starts_with(expected)), "{expected}");
        }
    }
}
