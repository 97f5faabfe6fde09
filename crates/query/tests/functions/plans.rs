//! Queries that ask too much of operators, the planner or the response writer, without a function that expands.

use super::asked::{Asked, Random};

const TABLE: &str = "(select unnest(range(0, 8192)) v)";
/// A row of a megabyte, and short ones.
const WIDE: &str = "(select case when v % 100 = 7 then repeat('x', 1000000) else cast(v as text) end a, v \
                    from (select unnest(range(0, 8192)) v))";
/// Many rows of a few hundred bytes.
const ROWS: &str = "(select repeat(cast(v as text), 200) a, v from (select unnest(range(0, 200000)) v))";
const FORMATS: [&str; 4] = ["json", "ndjson", "csv", "arrow"];

/// One query of each kind that once ended a process, or could.
pub fn known() -> Vec<Asked> {
    let answers = answers().into_iter().flat_map(|sql| {
        FORMATS.map(|format| Asked {
            sql: sql.clone(),
            format,
        })
    });
    let others = [aggregates(), windows(), joins(), recursions(), texts(), patterns()];
    answers.chain(others.into_iter().flatten().map(Asked::from)).collect()
}

/// Queries whose planning goes on for seconds after they were stopped, and keeps its thread from those after them. `unions`: how
/// many are in a query.
pub fn planned_for_long(unions: usize) -> Vec<Asked> {
    let operators = [200, 500, 5_000].into_iter().flat_map(operators);
    operators.chain(self::unions(unions)).map(Asked::from).collect()
}

fn operators(count: usize) -> [String; 2] {
    [" + v", "::text::bigint"].map(|operator| format!("select v{} from {TABLE}", operator.repeat(count)))
}

fn unions(count: usize) -> [String; 2] {
    ["union all", "union"].map(|union| format!("select 1{}", format!(" {union} select 1").repeat(count)))
}

fn list(count: usize, one: impl Fn(usize) -> String) -> String {
    (0..count).map(one).collect::<Vec<_>>().join(", ")
}

/// A value that the engine stores once is written for each row and column.
fn answers() -> Vec<String> {
    let shared = "(select arrow_cast(repeat('x', 15000000), 'Utf8View') a)";
    vec![
        format!("select 1 as \"{}\" from {TABLE}", "n".repeat(100_000)),
        "select repeat(chr(1), 15000000)".to_owned(),
        "select [repeat(chr(1), 7000000), repeat('\\', 7000000)]".to_owned(),
        "select arrow_cast(repeat('x', 15000000), 'Binary')".to_owned(),
        format!("select {} from {shared}", list(300, |n| format!("a as c{n}"))),
        format!(
            "select {} from {shared}",
            list(300, |n| format!("left(a, {}) as c{n}", 14_000_000 + n))
        ),
        format!(
            "select {} from {shared}",
            list(300, |n| format!(
                "arrow_cast(left(a, {}), 'LargeUtf8') as c{n}",
                14_000_000 + n
            ))
        ),
        format!(
            "select {} from {shared}",
            list(300, |n| format!("case when length(a) > {n} then a end as c{n}"))
        ),
        format!("select [{}] from {shared}", list(300, |_| "a".to_owned())),
        format!("select struct({}) from {shared}", list(30, |_| "a".to_owned())),
        "select range(0, 2000000)".to_owned(),
        "select array_repeat(null, 2000000)".to_owned(),
        "select array_repeat([], 400000)".to_owned(),
        "select array_repeat(struct(1, 2, 3, 4), 300000)".to_owned(),
        format!("select array_agg(struct(v as {})) from {TABLE}", "n".repeat(60_000)),
        format!("select arrow_cast(a, 'Dictionary(Int32, Utf8)') from {WIDE}"),
        format!("select a from {WIDE}"),
        format!(
            "select {} from {TABLE}",
            list(3_000, |n| format!("v + {n} as \"{n:040}\""))
        ),
    ]
}

fn aggregates() -> Vec<String> {
    let of = |function: &str| format!("select v % 1000, {function} from {WIDE} group by 1");
    let all = |function: &str| format!("select {function} from {ROWS}");
    let mut queries = vec![];
    for function in [
        "first_value(a order by v)",
        "last_value(a order by v)",
        "nth_value(a, 2 order by v)",
        "any_value(a)",
        "max(a)",
        "min(a)",
        "array_agg(a)",
        "array_agg(a order by a desc)",
        "array_agg(distinct a)",
        "string_agg(a, ',')",
        "string_agg(a, ',' order by a)",
        "string_agg(distinct a, ',')",
        "count(distinct a)",
        "approx_distinct(a)",
        "median(v)",
        "count(distinct a), sum(distinct v), array_agg(a) filter (where v > 3)",
        "array_agg(struct(a, v, a))",
        "array_agg([a, a, a])",
    ] {
        queries.extend([of(function), all(function)]);
    }
    queries.extend([
        format!("select count(*) from {ROWS} group by a || 'x', v"),
        format!("select distinct a, v, a || 'y' from {ROWS}"),
        format!("select distinct on (v % 1000) a, v from {ROWS} order by v % 1000, a"),
        format!("select array_agg(b) from (select array_agg(a) b, v % 10 from {ROWS} group by v % 10)"),
        format!(
            "select count(*) from {TABLE} group by cube({})",
            list(12, |n| format!("v % {}", n + 2))
        ),
        format!(
            "select count(*) from {TABLE} group by cube({})",
            list(24, |n| format!("v % {}", n + 2))
        ),
        format!(
            "select count(*) from {TABLE} group by rollup({})",
            list(500, |n| format!("v % {}", n + 2))
        ),
        format!(
            "select {} from {ROWS} group by v",
            list(200, |n| format!("array_agg(v + {n})"))
        ),
        format!(
            "select {} from {ROWS} group by v",
            list(200, |n| format!("approx_percentile_cont(v + {n}, 0.5)"))
        ),
        format!("select v, median(w) from (select v, unnest(range(0, 1000)) w from {TABLE}) group by v"),
        format!("select a, v from {ROWS} order by a desc, v limit 150000"),
        format!("select a, v from {WIDE} order by v desc limit 5000"),
        format!("select a from {ROWS} union select a || 'x' from {ROWS} order by 1"),
        format!("select a from {ROWS} intersect select a from {ROWS}"),
        format!("select a from {ROWS} except select a from {ROWS} where v > 3"),
    ]);
    queries
}

fn windows() -> Vec<String> {
    let over = |function: &str, window: &str| format!("select {function} over ({window}) from {ROWS}");
    let mut queries = vec![];
    for window in [
        "",
        "order by v",
        "partition by v % 100 order by a",
        "order by v rows between 1000 preceding and 1000 following",
        "order by v desc rows between unbounded preceding and unbounded following",
    ] {
        for function in [
            "first_value(a)",
            "nth_value(a, 100)",
            "array_agg(v)",
            "string_agg(a, ',')",
            "lag(a, 1000)",
            "ntile(7)",
            "max(a)",
        ] {
            queries.push(over(function, window));
        }
    }
    queries.push(format!(
        "select {} from {ROWS}",
        list(200, |n| format!("sum(v) over (order by v % {})", n + 2))
    ));
    queries.push(format!(
        "select {} from {ROWS}",
        list(100, |n| format!("max(a) over (partition by v % {})", n + 2))
    ));
    queries
}

fn joins() -> Vec<String> {
    let mut queries = vec![];
    for kind in ["join", "left join", "right join", "full join"] {
        queries.push(format!("select * from {ROWS} x {kind} {ROWS} y on x.v % 10 = y.v % 10"));
        queries.push(format!("select * from {WIDE} x {kind} {TABLE} y on x.v % 2 = y.v % 2"));
        queries.push(format!("select x.a, y.a from {WIDE} x {kind} {WIDE} y on x.v < y.v"));
        queries.push(format!(
            "select count(*) from {ROWS} x {kind} {ROWS} y on x.a = y.a and x.v < y.v + 3"
        ));
    }
    queries.extend([
        format!("select * from {WIDE} x, {TABLE} y, {TABLE} z"),
        format!("select * from {TABLE} x, {WIDE} y limit 100000"),
        format!("select * from {TABLE} x, lateral (select unnest(range(0, x.v * 1000)) w)"),
        format!("select count(*) from {ROWS} where a in (select a || 'x' from {ROWS})"),
        format!(
            "select v from {TABLE} x where exists (select 1 from {WIDE} y where y.v > x.v and y.a < cast(x.v as text))"
        ),
        format!("select v, (select string_agg(a, ',') from {WIDE} y where y.v < x.v % 50) from {TABLE} x"),
        "select unnest(unnest(array_repeat(range(0, 5000), 300))), repeat('x', 10000)".to_owned(),
        format!("select unnest(array_agg) from (select array_agg(a) from {ROWS})"),
        format!("select unnest([a, a, a, a]), unnest(range(0, 4)), a from {WIDE}"),
        format!("select unnest(struct(a, v, range(0, 1000))) from {WIDE}"),
    ]);
    queries
}

fn recursions() -> Vec<String> {
    let of = |start: &str, step: &str, then: &str| format!("with recursive t as ({start} union all {step}) {then}");
    vec![
        of("select 1 a", "select a + 1 from t", "select count(*) from t"),
        of("select 1 a", "select a + 1 from t", "select array_agg(a) from t"),
        of("select 1 a", "select a + 1 from t", "select a from t order by a desc"),
        of(
            "select 1 a",
            "select a from t, (select unnest(range(0, 1000)))",
            "select count(*) from t",
        ),
        of("select 'x' a", "select a || 'x' from t", "select max(a) from t"),
        of(
            "select repeat('x', 1000000) a",
            "select a || 'x' from t",
            "select count(distinct a) from t",
        ),
        of(
            "select [1] a",
            "select array_append(a, 1) from t",
            "select max(array_length(a)) from t",
        ),
        of(
            "select range(0, 100000) a",
            "select array_reverse(a) from t",
            "select a from t limit 1000",
        ),
        "with recursive t as (select 1 a union select a + 1 from t) select count(*) from t".to_owned(),
        format!("with recursive t as (select a, v from {ROWS} union select a || 'x', v from t) select count(*) from t"),
    ]
}

/// Texts that are long or deeply nested, or that double during planning.
fn texts() -> Vec<String> {
    let nested =
        |open: &str, close: &str, depth: usize| format!("select {}1{}", open.repeat(depth), close.repeat(depth));
    let steps = |start: &str, select: &str| {
        let steps = list(40, |n| format!("t{} as (select {select} from t{n})", n + 1));
        format!("with t0 as (select {start} a from {TABLE}), {steps} select a from t40")
    };
    let mut queries = vec![];
    // A predicate above the last step is pushed down through all of them.
    for select in ["a + a a", "case when a > 1 then a else -a end a", "coalesce(a, a) a"] {
        let doubled = steps("v", select);
        queries.extend([
            format!("{doubled} where a > 5"),
            format!("{doubled} order by a limit 3"),
            format!("{doubled} group by a having a > 5"),
            doubled.replace(
                "select a from t40",
                "select t40.a from t40 join (select 1 b) u on t40.a = u.b where u.b > 5",
            ),
            doubled.replace(
                "select a from t40",
                "select b from (select 1 b) u where exists (select 1 from t40 where t40.a = u.b)",
            ),
            doubled.replace(
                "select a from t40",
                "select a from (select a from t40 union all select a from t40) w where a > 5",
            ),
        ]);
    }
    for (open, close) in [("`", "`"), ("\"", "\""), ("\"T", "\"")] {
        let name = |n: usize| format!("{open}t{n}{close}");
        let twice = list(40, |n| {
            format!(
                "{} as (select * from {1} union all select * from {1})",
                name(n + 1),
                name(n)
            )
        });
        queries.push(format!(
            "with {} as (select 1), {twice} select * from {}",
            name(0),
            name(40)
        ));
    }
    for depth in [20, 45, 200, 500, 5_000] {
        queries.extend([
            nested("(", ")", depth),
            nested("[", "]", depth),
            nested("{a: ", "}", depth),
            nested("struct(", ")", depth),
            nested("-", "", depth),
            nested("not ", "", depth),
            nested("abs(", ")", depth),
            nested("(select ", ")", depth),
            nested("case when true then ", " end", depth),
            nested("cast(", " as bigint)", depth),
            nested("array_append([], ", ")", depth),
            nested("select * from (", ") t", depth).replacen("select ", "", 1),
            format!(
                "{}select 1{}",
                "with a as (".repeat(depth),
                ") select * from a".repeat(depth)
            ),
            format!(
                "select cast(null as {}int{})",
                "array<".repeat(depth),
                ">".repeat(depth)
            ),
            format!(
                "select cast(null as {}int{})",
                "struct<a ".repeat(depth),
                ">".repeat(depth)
            ),
            format!("select x{} from (select [v] x from {TABLE})", "[1]".repeat(depth)),
            format!(
                "select 1 from {TABLE} t0{}",
                (1..depth)
                    .map(|n| format!(" join {TABLE} t{n} using (v)"))
                    .collect::<String>()
            ),
        ]);
    }
    for depth in [20, 45] {
        queries.extend(operators(depth));
    }
    for depth in [20, 45, 200, 500] {
        queries.extend(unions(depth));
    }
    for expr in [
        "a + a",
        "a = a",
        "a in (a, a)",
        "a between a and a",
        "a is distinct from a",
        "(a, a)",
        "case when a = a then a else a end",
        "coalesce(a, a)",
        "cast(a as text) || a",
        "nullif(a, a)",
        "a::text like a::text",
        "array_agg(a)",
        "[[a], [a]]",
        "greatest(a, a)",
    ] {
        queries.push(steps("v", &format!("{expr} a")));
        queries.push(steps("[v]", &format!("{expr} a")));
    }
    queries.extend([
        format!(
            "select count(*) from {TABLE} where v in ({})",
            list(20_000, |n| n.to_string())
        ),
        format!(
            "select count(*) from {TABLE} where v not in ({})",
            list(8_000, |n| format!("v + {n}"))
        ),
        format!(
            "select count(*) from {ROWS} where a in ({})",
            list(15_000, |n| format!("'{n}'"))
        ),
        format!("values {}", list(20_000, |n| format!("({n})"))),
        format!(
            "select count(*) from (values {}) a, (values {}) b",
            list(6_000, |n| format!("({n})")),
            list(6_000, |n| format!("({n})"))
        ),
        format!("select {} from {TABLE}", list(9_000, |n| format!("v + {n}"))),
        format!("select * from {TABLE} order by {}", list(9_000, |n| format!("v + {n}"))),
        format!(
            "select case {} end from {TABLE}",
            (0..3_000)
                .map(|n| format!("when v = {n} then {n}"))
                .collect::<Vec<_>>()
                .join(" ")
        ),
        format!("select {} from {TABLE}", list(9_000, |_| "v".to_owned())),
        format!("select [{}]", list(30_000, |_| "1".to_owned())),
        format!("select {{{}}}", list(8_000, |n| format!("a{n}: 1"))),
        format!("select map([{0}], [{0}])", list(10_000, |n| n.to_string())),
        format!(
            "explain verbose select {} from {TABLE}",
            list(5_000, |n| format!("v + {n}"))
        ),
        format!("explain analyze select * from {ROWS} x join {ROWS} y on x.v = y.v"),
        format!(
            "explain format tree select {} from {TABLE}",
            list(5_000, |n| format!("v + {n}"))
        ),
        "select * from information_schema.columns a, information_schema.columns b".to_owned(),
        "select repeat(repeat(repeat('x', 1000), 1000), 1000)".to_owned(),
        format!("select {}", list(300, |n| format!("repeat('x', {})", 900_000 + n))),
        format!(
            "select count(*) from {TABLE} where cast(v as text) in ({})",
            list(300, |n| format!("repeat('x', {})", 900_000 + n))
        ),
    ]);
    queries
}

fn patterns() -> Vec<String> {
    vec![
        format!("select count(*) from {TABLE} where cast(v as text) like repeat('%1', 300000)"),
        format!("select count(*) from {TABLE} where cast(v as text) like repeat('_', 300000)"),
        format!("select count(*) from {TABLE} where cast(v as text) ilike repeat('_ä', 100000)"),
        format!("select count(*) from {TABLE} where cast(v as text) like concat(repeat('%_', v), '%')"),
        format!("select count(*) from {TABLE} where cast(v as text) ilike concat(repeat('%_ä', v % 1000), v)"),
        format!("select count(*) from {WIDE} where a like '%' || repeat('x%', 1000)"),
        format!("select count(*) from {TABLE} where cast(v as text) similar to repeat('(a|b)*', 2000)"),
        format!("select regexp_replace(a, '(.*)', repeat('\\1', 1000)) from {WIDE}"),
        format!("select regexp_replace(a, '(.)', repeat('$1', 1000), 'g') from {WIDE}"),
        format!("select to_char(to_timestamp(v), repeat('%A %B ', v)) from {TABLE}"),
        "select to_timestamp(repeat('1', 1000000), repeat('%Y', 100000))".to_owned(),
    ]
}

/// Sources, and steps that each return the columns `a` and `v`.
const SOURCES: [&str; 6] = [
    "select repeat(cast(v as text), 200) a, v from (select unnest(range(0, 100000)) v)",
    "select case when v % 1000 = 7 then repeat('x', 5000000) else 'y' end a, v from (select unnest(range(0, 8192)) v)",
    "select arrow_cast(repeat('x', 200000), 'Utf8View') a, v from (select unnest(range(0, 300)) v)",
    "select arrow_cast(case when v % 10 = 7 then null else repeat('z', v) end, 'Dictionary(Int32, Utf8)') a, v \
     from (select unnest(range(0, 8192)) v)",
    "select array_repeat(cast(v as text), v) a, v from (select unnest(range(0, 2000)) v)",
    "select struct(repeat('x', v), [v, v]) a, v from (select unnest(range(0, 8192)) v)",
];
const STEPS: [&str; 22] = [
    "select a, v from PREVIOUS where v % 3 = 1",
    "select x.a, y.v from PREVIOUS x join PREVIOUS y on x.v % 100 = y.v % 100",
    "select x.a, y.v from PREVIOUS x left join PREVIOUS y on x.a = y.a",
    "select x.a, y.v from PREVIOUS x, (select unnest(range(0, 1000)) v) y",
    "select x.a, y.v from PREVIOUS x full join PREVIOUS y on x.v < y.v",
    "select array_agg(a) a, v % 50 v from PREVIOUS group by 2",
    "select array_agg(distinct a) a, v % 50 v from PREVIOUS group by 2",
    "select first_value(a order by v) a, v % 5000 v from PREVIOUS group by 2",
    "select string_agg(cast(a as text), ',') a, v % 50 v from PREVIOUS group by 2",
    "select max(a) a, v from PREVIOUS group by v",
    "select a, count(*) v from PREVIOUS group by a",
    "select unnest([a, a, a]) a, v from PREVIOUS",
    "select a, unnest(range(0, v)) v from PREVIOUS",
    "select [a, a] a, v from PREVIOUS",
    "select struct(a, v) a, v from PREVIOUS",
    "select max(a) over (order by v) a, v from PREVIOUS",
    "select first_value(a) over (partition by v % 10 order by v) a, v from PREVIOUS",
    "select array_agg(a) over (order by v rows between 5 preceding and 5 following) a, v from PREVIOUS",
    "select lag(a, 100) over (order by v) a, v from PREVIOUS",
    "select a, v from PREVIOUS order by a, v desc",
    "select a, v from PREVIOUS union all select a, v + 1 from PREVIOUS",
    "select distinct a, v from PREVIOUS limit 5000",
];
const ENDS: [&str; 6] = [
    "select a, v from PREVIOUS",
    "select * from PREVIOUS order by v limit 1000",
    "select count(*), max(v) from PREVIOUS",
    "select a, a as b, a as c, v from PREVIOUS limit 2000",
    "select cast(a as text) a from PREVIOUS",
    "select arrow_cast(a, 'LargeUtf8') a, v from PREVIOUS order by 1",
];
const STEPS_MAX: usize = 3;

/// Chains of operators.
pub fn chains(seed: u64, count: usize) -> Vec<Asked> {
    let mut random = Random::new(seed, 999);
    (0..count).map(|_| chain(&mut random)).collect()
}

fn chain(random: &mut Random) -> Asked {
    let steps = 1 + random.below(STEPS_MAX);
    let mut sql = format!("with t0 as ({})", random.of(&SOURCES));
    for step in 1..=steps {
        let previous = format!("t{}", step - 1);
        sql += &format!(", t{step} as ({})", random.of(&STEPS).replace("PREVIOUS", &previous));
    }
    sql += " ";
    sql += &random.of(&ENDS).replace("PREVIOUS", &format!("t{steps}"));
    Asked {
        sql,
        format: random.of(&FORMATS),
    }
}
