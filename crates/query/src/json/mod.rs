//! JSON in SQL: functions that read values of texts (`json_get_int(body, 'a', 0)`), the operators `->`, `->>`, `#>`, `#>>` and
//! `?`, and `to_json`. What is no JSON, and what a path does not lead to, is NULL.
//!
//! [`value`] finds values, [`functions`] are called for rows, and [`operators`] turns the operators into calls. Lists, maps and
//! structures are read as they are by the operators, and as JSON by the functions.

pub mod functions;
pub mod operators;
mod value;
