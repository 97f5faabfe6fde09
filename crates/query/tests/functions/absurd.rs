//! Function calls that ask for too much.

use super::asked::{Asked, Queries, Random};

/// One query of each kind that once ended a process, or could.
pub fn known() -> Vec<Asked> {
    // Each step reads the previous one once, with a value twice as large.
    let steps = |start: &str, select: &str| {
        let steps = (1..=40).map(|n| format!("t{n} as (select {select} a from t{})", n - 1));
        format!(
            "with t0 as ({start}), {} select a from t40",
            steps.collect::<Vec<_>>().join(", ")
        )
    };
    let common = |body: &str, levels: usize| {
        let steps = (1..=levels).map(|n| format!("t{n} as ({})", body.replace("PREVIOUS", &format!("t{}", n - 1))));
        format!(
            "with t0 as (select 1 a), {} select count(*) from t{levels}",
            steps.collect::<Vec<_>>().join(", ")
        )
    };
    let wide = "x".repeat(100_000);
    let mut all: Vec<String> = [
        "select length(repeat('x', 2000000000))",
        "select array_length(array_repeat('x', 2000000000))",
        "select length(lpad('x', 2000000000, 'y'))",
        "select length(rpad('x', 2000000000))",
        "select length(repeat('x', value)) from (select unnest(range(100000000, 100008192)) value)",
        "select array_length(range(0, 9000000000000000000))",
        "select generate_series(timestamp '1970-01-01', timestamp '2200-01-01', interval '1 nanosecond')",
        "select array_resize([1], 4000000000)",
        "select cast(null as int[2000000000])",
        "select arrow_cast(null, 'FixedSizeBinary(2000000000)')",
        "select arrow_cast(value, 'FixedSizeBinary(2000000000)') from (select unnest(range(0, 10)) value)",
        "select * from range(0, length(repeat('x', 2000000000)))",
        "select array_agg(a) from (select unnest(range(0, 2000000)) a)",
        "select * from at_version('tags', length(repeat('x', 2000000000)))",
        "select replace(repeat('x', 1000000), 'x', repeat('y', 1000000))",
        "select regexp_replace(repeat('x', 1000000), '', repeat('y', 100000), 'g')",
        "select regexp_like('x', '((((a{1000}){1000}){1000}){1000})')",
        "select count(*) from (select unnest(range(0, 8192)) value) where cast(value as text) ~ concat('(a{1000}){', value, '}')",
        "select regexp_count('x', concat('(a{100}){', value, '}')) from (select unnest(range(0, 8192)) value)",
        "select levenshtein(repeat('x', 900000), repeat('y', 900000))",
        "select approx_percentile_cont(value, 0.5, 4000000000) from (select unnest(range(0, 10)) value)",
        "select array_agg(value) over (order by value) from (select unnest(range(0, 1000000)) value)",
        "select string_agg(cast(value as text), ',') over (order by value) from (select unnest(range(0, 1000000)) value)",
        "select max(a) over () from (select repeat('x', 100000) a, value from (select unnest(range(0, 100000)) value))",
        "select first_value(a) over (order by value rows between unbounded preceding and unbounded following) \
         from (select case when value = 0 then repeat('x', 1000000) else 'y' end a, value from (select unnest(range(0, 100000)) value))",
        "select lag(value, 1, 0) over (), sum(value) over () from (select unnest(range(0, 1000000)) value), (select unnest(range(0, 50)) b)",
        "select * from (select repeat('x', 15000000) a), (select unnest(range(0, 8192)) value)",
        "select (select repeat('x', 15000000)), value from (select unnest(range(0, 8192)) value)",
        "select a.a, value from (select arrow_cast(repeat('x', 15000000), 'Utf8View') a) a, (select unnest(range(0, 8192)) value)",
        "select unnest(range(0, 10000000)), repeat('x', 100000)",
        "select unnest(array_repeat(repeat('x', 1000), value)) from (select unnest(range(0, 1000000)) value)",
        "select unnest(range(0, 1000)), array_repeat(cast(value as text), value) from (select unnest(range(0, 8192)) value)",
        "select rpad(',', -9223372036854775808, 'x')",
        "select array_transform(range(0, 10000000), x -> repeat('y', 1000000))",
        "with recursive t as (select 'x' a union all select a || a from t) select count(*) from t",
        "select to_char(now(), repeat('%A', 1000000))",
        "select concat_ws(repeat('x', 100000), value, value, value, value) from (select unnest(range(0, 8192)) value)",
        "select array_to_string(range(0, 1000000), repeat('x', 100000))",
        "select map(range(0, 1000000), range(0, 1000000))",
        "select upper(repeat('x', value * 10)) from (select unnest(range(0, 8192)) value) order by 1",
        "select repeat('x', value) from (select unnest(range(0, 100000)) value) group by 1",
        "explain verbose select repeat('x', 900000)",
        "select bit_length(repeat('x', 15000000)), ascii(repeat('y', 30000001)), octet_length(repeat('z', 30000002))",
    ]
    .map(str::to_owned)
    .into();
    for function in [
        "a || a",
        "concat(a, a)",
        "[a, a]",
        "struct(a, a)",
        "replace(a, 'x', a)",
        "array_concat([a], [a])",
    ] {
        all.push(steps("select repeat('x', 1000) a", function));
        all.push(steps("select cast(unnest(range(0, 8192)) as text) a", function));
    }
    all.push(format!(
        "select {} from (select array_agg(value) a from (select unnest(range(0, 100000)) value))",
        "array_concat(a, a) || a"
    ));
    all.push(common("select * from PREVIOUS union all select * from PREVIOUS", 40));
    all.push(common("select x.a from PREVIOUS x, PREVIOUS y", 40));
    all.push(format!(
        "select '{wide}', value from (select unnest(range(0, 1000000)) value)"
    ));
    all.push(format!("select lag(value, 5000000, 1) over (), lag('{wide}', 100000) over () from (select unnest(range(0, 100000)) value)"));
    all.push(format!(
        "select lead('x', 100000, '{wide}') over (order by value) from (select unnest(range(0, 200000)) value)"
    ));
    all.push(format!(
        "select string_agg('{wide}', ',') from (select unnest(range(0, 1000000)) value)"
    ));
    all.push(format!(
        "select array_agg('{wide}') from (select unnest(range(0, 1000000)) value)"
    ));
    let many = (0..3_000)
        .map(|n| format!("left(a, {})", 3_000 + n))
        .collect::<Vec<_>>()
        .join(", ");
    all.push(format!("select {many} from (select repeat(cast(value as text), 3000) a from (select unnest(range(0, 100000)) value)) limit 3"));
    all.into_iter().map(Asked::from).collect()
}

/// Arguments: some absurd, some that let a call get further.
const ARGUMENTS: [&str; 46] = [
    "null",
    "0",
    "1",
    "-1",
    "3",
    "2147483647",
    "2147483648",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "0.5",
    "cast('NaN' as double)",
    "true",
    "''",
    "'x'",
    "','",
    "'%A%A%A%A'",
    "'(a{1000}){1000}'",
    "'.*'",
    "'g'",
    "'base64'",
    "'hex'",
    "'FixedSizeBinary(2147483647)'",
    "'FixedSizeList(2147483647, Int64)'",
    "'second'",
    "repeat('x', 100000)",
    "repeat('ab ', 300000)",
    "repeat('x', 2147483647)",
    "[]",
    "[1, 2, 3]",
    "['a', 'b', null]",
    "[[1], [2]]",
    "range(0, 100000)",
    "range(0, 2147483647)",
    "array_repeat('x', 100000)",
    "array_repeat('x', 2147483647)",
    "map {'a': 1}",
    "struct(1, 'x')",
    "now()",
    "date '2020-01-01'",
    "timestamp '1970-01-01'",
    "interval '1 nanosecond'",
    "interval '1 month'",
    "arrow_cast('x', 'Binary')",
    "arrow_cast('x', 'Dictionary(Int32, Utf8)')",
    "arrow_cast('x', 'LargeUtf8')",
];
/// Arguments that depend on a row.
const COLUMNS: [&str; 12] = [
    "v",
    "v * 1000000",
    "v - 9000000000000000000",
    "cast(v as text)",
    "cast(v as double)",
    "repeat('y', v)",
    "case when v = 7 then repeat('z', 5000000) else 'z' end",
    "range(0, v)",
    "array_repeat(cast(v as text), v)",
    "concat('(a{100}){', v, '}')",
    "cast(v as timestamp)",
    "v % 7",
];
const TABLE: &str = "(select unnest(range(0, 8192)) v)";
const CALLS_PER_FUNCTION: usize = 4;
const TRIES_PER_FUNCTION: usize = 30;

fn arguments(random: &mut Random, with_columns: bool) -> String {
    let count = [1, 2, 2, 3, 3, 4][random.below(6)];
    let one = |random: &mut Random| match with_columns && random.below(2) == 0 {
        true => random.of(&COLUMNS),
        false => random.of(&ARGUMENTS),
    };
    (0..count).map(|_| one(random)).collect::<Vec<_>>().join(", ")
}

/// Calls of one function, in every place where a call is allowed.
pub struct Calls {
    function: String,
    random: Random,
    /// Calls to try, and calls to make successfully: most have argument types that the function does not accept.
    tries: usize,
    wanted: usize,
}

impl Calls {
    /// Calls of every registered function.
    pub fn of_all(seed: u64) -> Vec<Calls> {
        let names = thalweg_query::function_names().into_iter().enumerate();
        let calls = names.map(|(at, function)| Calls {
            function,
            random: Random::new(seed, at as u64),
            tries: TRIES_PER_FUNCTION,
            wanted: CALLS_PER_FUNCTION,
        });
        calls.collect()
    }
}

impl Queries for Calls {
    fn next(&mut self) -> Option<Asked> {
        if self.tries == 0 || self.wanted == 0 {
            return None;
        }
        self.tries -= 1;
        let sql = match self.random.below(12) {
            // The function applied to its own result, again and again.
            0 => {
                let start = format!("select {}({}) a", self.function, arguments(&mut self.random, false));
                (0..20).fold(start, |inner, _| {
                    format!("select {}(a, a) a from ({inner})", self.function)
                })
            }
            _ => query(&self.function, &mut self.random),
        };
        Some(Asked::from(sql))
    }

    fn was_planned(&mut self) {
        self.wanted -= 1;
    }
}

fn query(function: &str, random: &mut Random) -> String {
    let shape = random.below(14);
    let call = format!("{function}({})", arguments(random, shape > 2));
    match shape {
        0 => format!("select {call}"),
        1 => format!("select unnest({call})"),
        2 => format!("select * from at_version('tags', {call})"),
        3 | 4 => format!("select {call} from {TABLE}"),
        5 => format!("select count(*) from {TABLE} where ({call}) is null"),
        6 => format!("select {call} from {TABLE} order by 1 limit 10"),
        7 => format!("select {call}, count(*) from {TABLE} group by 1"),
        8 => format!("select {call} over (order by v) from {TABLE}"),
        9 => format!("select {call} over (order by v rows between 3 preceding and 2 following) from {TABLE}"),
        10 => {
            format!("select first_value(a) over (), lag(a, 1) over (order by v) from (select {call} a, v from {TABLE})")
        }
        11 => format!("select array_agg({call}), max({call}) from {TABLE}"),
        12 => format!("select x.a, y.v from (select {call} a from {TABLE} limit 2) x, {TABLE} y"),
        _ => format!("select unnest(range(0, 1000)), {function}({call}, v) from {TABLE}"),
    }
}
