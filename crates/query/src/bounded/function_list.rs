//! Lists every function that a query may call, with the bound of its result. Unlisted functions are not registered: if
//! a new version of the library adds one, a test fails here until somebody decides about it.

use super::sizes::{self, FunctionCall};

/// What bounds the result of a function.
#[derive(Clone, Copy, Debug)]
pub enum ResultBound {
    /// Values of fixed width, or parts of the arguments without copies. The function is called directly.
    Plain,
    /// At most this many times the size of the arguments, with constants repeated for each row.
    Inputs(usize),
    /// Exactly this many bytes, or slightly fewer.
    Exact(fn(&FunctionCall<'_>) -> usize),
    /// At most this many bytes, usually far fewer. If the bound is too large, the call is split by rows.
    AtMost(fn(&FunctionCall<'_>) -> usize),
    /// Like `AtMost`, for functions whose second argument is a regular expression.
    Pattern(fn(&FunctionCall<'_>) -> usize),
    /// Not registered.
    Refused,
}

impl ResultBound {
    /// The most bytes that a call can return.
    pub fn asked(self, call: &FunctionCall<'_>) -> usize {
        match self {
            Inputs(times) => call.bytes().saturating_mul(times),
            Exact(size) | AtMost(size) | Pattern(size) => size(call),
            Plain | Refused => 0,
        }
    }
}

use ResultBound::{AtMost, Exact, Inputs, Pattern, Plain, Refused};

pub fn scalar(name: &str) -> Option<ResultBound> {
    find(SCALAR, name)
}

fn find(list: &[(&str, ResultBound)], name: &str) -> Option<ResultBound> {
    let known = list.iter().find(|(known, _)| *known == name);
    known.map(|(_, size)| *size)
}

/// The size of all arguments. Unlike [`Inputs`] it can double the query's data with each step, so the result is
/// limited.
fn sum(call: &FunctionCall<'_>) -> usize {
    call.bytes()
}

/// A number, parsed from a text of any length.
fn number(call: &FunctionCall<'_>) -> usize {
    call.rows.saturating_mul(16)
}

pub const SCALAR: &[(&str, ResultBound)] = &[
    ("nullif", Inputs(1)),
    // These become casts during planning; the target type is checked.
    ("arrow_cast", Inputs(4)),
    ("arrow_try_cast", Inputs(4)),
    ("cast_to_type", Inputs(4)),
    ("try_cast_to_type", Inputs(4)),
    ("arrow_field", Plain),
    ("arrow_metadata", Plain),
    ("with_metadata", Plain),
    ("arrow_typeof", Plain),
    ("nvl", Inputs(1)),
    ("nvl2", Inputs(1)),
    ("overlay", Inputs(2)),
    ("named_struct", Exact(sum)),
    ("struct", Exact(sum)),
    ("get_field", Plain),
    ("coalesce", Inputs(1)),
    ("greatest", Inputs(1)),
    ("least", Inputs(1)),
    ("union_extract", Inputs(1)),
    ("union_tag", Plain),
    ("version", Plain),
    ("input_file_name", Plain),
    ("file_row_index", Plain),
    ("current_date", Plain),
    ("current_time", Plain),
    ("date_bin", Plain),
    ("date_part", Plain),
    ("date_trunc", Plain),
    ("from_unixtime", Plain),
    ("make_date", Plain),
    ("make_time", Plain),
    ("now", Plain),
    ("to_char", AtMost(sizes::to_char)),
    ("to_date", Plain),
    ("to_local_time", Plain),
    ("to_time", Plain),
    ("to_unixtime", Plain),
    ("to_timestamp", Plain),
    ("to_timestamp_seconds", Plain),
    ("to_timestamp_millis", Plain),
    ("to_timestamp_micros", Plain),
    ("to_timestamp_nanos", Plain),
    // A byte has two hexadecimal digits.
    ("encode", Inputs(2)),
    ("decode", Inputs(1)),
    ("abs", Plain),
    ("acos", Plain),
    ("acosh", Plain),
    ("asin", Plain),
    ("asinh", Plain),
    ("atan", Plain),
    ("atan2", Plain),
    ("atanh", Plain),
    ("cbrt", Plain),
    ("ceil", Plain),
    ("cos", Plain),
    ("cosh", Plain),
    ("cot", Plain),
    ("degrees", Plain),
    ("exp", Plain),
    ("factorial", Plain),
    ("floor", Plain),
    ("gcd", Plain),
    ("isnan", Plain),
    ("iszero", Plain),
    ("lcm", Plain),
    ("ln", Plain),
    ("log", Plain),
    ("log2", Plain),
    ("log10", Plain),
    ("nanvl", Plain),
    ("pi", Plain),
    ("power", Plain),
    ("radians", Plain),
    ("random", Plain),
    ("signum", Plain),
    ("sin", Plain),
    ("sinh", Plain),
    ("sqrt", Plain),
    ("tan", Plain),
    ("tanh", Plain),
    ("round", Plain),
    ("trunc", Plain),
    ("regexp_count", Pattern(number)),
    ("regexp_instr", Pattern(number)),
    ("regexp_like", Pattern(number)),
    ("regexp_match", Pattern(sizes::regexp_match)),
    ("regexp_replace", Pattern(sizes::regexp_replace)),
    ("character_length", Plain),
    ("find_in_set", Plain),
    // A letter in the other case may be a longer character, or several characters.
    ("initcap", Inputs(3)),
    ("lower", Inputs(3)),
    ("upper", Inputs(3)),
    ("left", Inputs(1)),
    ("lpad", AtMost(sizes::pad)),
    ("reverse", Inputs(1)),
    ("right", Inputs(1)),
    ("rpad", AtMost(sizes::pad)),
    ("strpos", Plain),
    ("substr", Inputs(1)),
    ("substr_index", Inputs(1)),
    ("translate", Inputs(4)),
    ("ascii", Plain),
    ("bit_length", Plain),
    ("btrim", Inputs(1)),
    ("ltrim", Inputs(1)),
    ("rtrim", Inputs(1)),
    ("chr", Plain),
    ("concat", Exact(sum)),
    ("concat_ws", Exact(sizes::concat_ws)),
    ("contains", Plain),
    ("ends_with", Plain),
    ("levenshtein", AtMost(sizes::levenshtein)),
    ("octet_length", Plain),
    ("repeat", Exact(sizes::repeat)),
    ("replace", AtMost(sizes::replace)),
    ("split_part", Inputs(1)),
    ("starts_with", Plain),
    ("to_hex", Plain),
    ("uuid", Plain),
    ("array_compact", Inputs(2)),
    ("array_to_string", AtMost(sizes::array_to_string)),
    ("string_to_array", AtMost(sizes::string_to_array)),
    ("range", Exact(sizes::range)),
    ("generate_series", Exact(sizes::range)),
    ("array_dims", Plain),
    ("cardinality", Plain),
    ("array_ndims", Plain),
    ("array_append", Exact(sum)),
    ("array_prepend", Exact(sum)),
    ("array_concat", Exact(sum)),
    ("array_except", Inputs(4)),
    ("array_element", Inputs(1)),
    ("array_pop_back", Inputs(2)),
    ("array_pop_front", Inputs(2)),
    ("array_slice", Inputs(2)),
    ("array_any_value", Inputs(1)),
    ("make_array", Exact(sum)),
    ("array_has", Inputs(2)),
    ("array_has_all", Inputs(4)),
    ("array_has_any", Inputs(4)),
    ("empty", Plain),
    ("array_length", Plain),
    ("array_normalize", Inputs(2)),
    ("array_add", Inputs(2)),
    ("array_avg", Plain),
    ("array_product", Plain),
    ("array_scale", Inputs(2)),
    ("array_subtract", Inputs(2)),
    ("array_sum", Plain),
    ("cosine_distance", Inputs(2)),
    ("inner_product", Inputs(2)),
    ("array_distance", Inputs(2)),
    ("flatten", Inputs(2)),
    ("array_max", Inputs(1)),
    ("array_min", Inputs(1)),
    ("array_sort", Inputs(4)),
    ("array_repeat", Exact(sizes::array_repeat)),
    ("array_resize", Exact(sizes::array_resize)),
    ("array_reverse", Inputs(2)),
    ("array_distinct", Inputs(4)),
    ("array_intersect", Inputs(4)),
    ("array_union", Exact(sum)),
    ("arrays_zip", Exact(sizes::arrays_zip)),
    ("array_position", Inputs(2)),
    ("array_positions", Inputs(8)),
    ("array_remove", Inputs(2)),
    ("array_remove_all", Inputs(2)),
    ("array_remove_n", Inputs(2)),
    ("array_replace", AtMost(sizes::array_replace)),
    ("array_replace_all", AtMost(sizes::array_replace_all)),
    ("array_replace_n", AtMost(sizes::array_replace_n)),
    ("map", Exact(sum)),
    ("map_entries", Inputs(2)),
    ("map_extract", Inputs(2)),
    ("map_keys", Inputs(1)),
    ("map_values", Inputs(1)),
    ("log_template", Inputs(2)),
    ("log_fingerprint", Plain),
    ("sketch_quantile", Plain),
    // A double of 8 bytes has at most 24 characters, beside the view.
    (crate::attribute_text::NAME, Inputs(5)),
    ("json_get", AtMost(sizes::json_text)),
    ("json_get_json", AtMost(sizes::json_text)),
    ("json_as_text", AtMost(sizes::json_text)),
    ("json_get_str", AtMost(sizes::json_text)),
    ("json_get_array", AtMost(sizes::json_list)),
    ("json_object_keys", AtMost(sizes::json_list)),
    ("json_get_int", AtMost(sizes::json_number)),
    ("json_get_float", AtMost(sizes::json_number)),
    ("json_get_bool", AtMost(sizes::json_number)),
    ("json_length", AtMost(sizes::json_number)),
    ("json_contains", AtMost(sizes::json_number)),
    ("json_has_key", AtMost(sizes::json_number)),
    ("to_json", AtMost(sizes::to_json)),
    // Their lambdas are evaluated for all elements of all lists at once, with each constant and each column repeated
    // for every element. The arguments do not reveal that size.
    ("array_any_match", Refused),
    ("array_filter", Refused),
    ("array_first", Refused),
    ("array_transform", Refused),
    // Created when `a || b`, casts and CASE are rewritten.
    (super::concatenation::NAME, Exact(sum)),
    (super::conversion::CAST, AtMost(sizes::conversion)),
    (super::conversion::CASE, Inputs(1)),
    // Put into plans by `crate::exact`.
    ("+", Plain),
    ("-", Plain),
    ("*", Plain),
    ("/", Plain),
    ("<<", Plain),
    (">>", Plain),
    (crate::exact::opaque::OPAQUE, Plain),
    (crate::exact::rounding::ROUNDED, Plain),
    (crate::exact::rounding::SECONDS, Plain),
    (crate::exact::floats::CANONICAL, Plain),
    (crate::exact::floats::CANONICAL_LIST, Inputs(1)),
];

/// The aggregate operator reserves their states. As window functions they are charged by [`super::windows`].
pub const AGGREGATE: &[&str] = &[
    "any_value",
    "array_agg",
    "first_value",
    "last_value",
    "covar_samp",
    "covar_pop",
    "corr",
    "sum",
    "max",
    "min",
    "median",
    "count",
    "regr_slope",
    "regr_intercept",
    "regr_count",
    "regr_r2",
    "regr_avgx",
    "regr_avgy",
    "regr_sxx",
    "regr_syy",
    "regr_sxy",
    "var",
    "var_pop",
    "stddev",
    "stddev_pop",
    "approx_median",
    "approx_distinct",
    "approx_percentile_cont",
    "approx_percentile_cont_with_weight",
    "percentile_cont",
    "string_agg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "avg",
    "grouping",
    "nth_value",
    crate::sketches::MERGE,
    crate::exact::attribute_extremes::MIN,
    crate::exact::attribute_extremes::MAX,
];

/// Window functions that return numbers, and those that return values of other rows, which are charged.
pub const WINDOW: &[&str] = &[
    "cume_dist",
    "row_number",
    "lead",
    "lag",
    "rank",
    "dense_rank",
    "percent_rank",
    "ntile",
    "first_value",
    "last_value",
    "nth_value",
];

/// These emit rows batch by batch, but no query can name them: only tables of the lake can be queried.
#[cfg(test)]
pub const TABLE: &[&str] = &["generate_series", "range"];
