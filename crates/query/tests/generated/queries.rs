//! Queries of the part of SQL that both engines read alike: all types, predicates, aggregates, joins, windows, set
//! operations, subqueries, and the first rows of an order.

/// A query made from a seed.
pub struct GeneratedQuery {
    seed: u64,
    pub sql: String,
    /// The order of its rows is complete.
    pub is_ordered: bool,
}

impl GeneratedQuery {
    pub fn new(seed: u64) -> GeneratedQuery {
        let mut made = Sql(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bf0_3635);
        let (sql, is_ordered) = match made.below(12) {
            0 => (made.rows(), false),
            1 | 2 => (made.groups(), false),
            3 => (made.joined(), false),
            4 => (made.joined_groups(), false),
            5 => (made.windows(), false),
            6 => (made.first_rows(), true),
            7 => (made.first_values(), true),
            8 => (made.set_operation(), false),
            9 => (made.names_of_casts(), true),
            10 => (made.json(), false),
            _ => (made.subquery(), false),
        };
        GeneratedQuery { seed, sql, is_ordered }
    }

    pub fn named(&self) -> String {
        format!("seed {}: {}", self.seed, self.sql)
    }
}

/// The state of a SplitMix64 generator.
struct Sql(u64);

impl Sql {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    fn pick<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len() as u64) as usize]
    }

    fn several(&mut self, most: u64, mut one: impl FnMut(&mut Sql) -> String) -> Vec<String> {
        (0..1 + self.below(most)).map(|_| one(self)).collect()
    }

    fn column(&mut self, table: &str, names: &[&str]) -> String {
        let name = self.pick(names);
        match table {
            "" => name.to_owned(),
            table => format!("{table}.{name}"),
        }
    }

    fn integer(&mut self, table: &str, depth: u64) -> String {
        match self.below(if depth == 0 { 4 } else { 13 }) {
            0..=2 => self.column(table, &["id", "k", "i"]),
            3 => format!("cast({} as bigint)", self.below(20)),
            4 => self.column(table, &["big"]),
            5 | 6 => {
                let operator = self.pick(&["+", "-", "*"]);
                let (left, right) = (self.integer(table, depth - 1), self.integer(table, depth - 1));
                format!("(cast({left} as bigint) {operator} {right})")
            }
            7 => format!("abs({})", self.integer(table, depth - 1)),
            8 if self.one_in(3) => format!("(abs({}) << {})", self.column(table, &["k", "i"]), self.below(9)),
            8 if self.one_in(2) => format!("({} >> {})", self.column(table, &["k", "i"]), self.below(9)),
            8 => format!("({} % {})", self.integer(table, depth - 1), 2 + self.below(5)),
            9 => format!("length({})", self.text(table, depth - 1)),
            10 => format!(
                "extract({} from {})",
                self.pick(&["year", "month", "day"]),
                self.column(table, &["day", "at"])
            ),
            11 => {
                let condition = self.condition(table, depth - 1);
                format!(
                    "case when {condition} then {} else {} end",
                    self.integer(table, depth - 1),
                    self.integer(table, depth - 1)
                )
            }
            _ => format!(
                "coalesce({}, {})",
                self.integer(table, depth - 1),
                self.integer(table, depth - 1)
            ),
        }
    }

    fn double(&mut self, table: &str, depth: u64) -> String {
        match self.below(if depth == 0 { 3 } else { 10 }) {
            0..=2 => self.column(table, &["d", "e"]),
            3 => format!(
                "({} {} {})",
                self.double(table, depth - 1),
                self.pick(&["+", "-", "*"]),
                self.double(table, depth - 1)
            ),
            4 => format!("abs({})", self.double(table, depth - 1)),
            5 => format!(
                "{}({})",
                self.pick(&["floor", "ceil", "round"]),
                self.column(table, &["e"])
            ),
            6 => format!("(cast({} as double) + 0.0)", self.column(table, &["k", "i"])),
            7 => format!("-{}", self.column(table, &["d", "e"])),
            8 => format!(
                "nullif({}, {})",
                self.double(table, depth - 1),
                self.pick(&["0.0", "1.5"])
            ),
            _ => format!("coalesce({}, 0.5)", self.double(table, depth - 1)),
        }
    }

    fn text(&mut self, table: &str, depth: u64) -> String {
        match self.below(if depth == 0 { 3 } else { 10 }) {
            0..=2 => self.column(table, &["g", "t"]),
            3 => format!("({} || {})", self.text(table, depth - 1), self.text(table, depth - 1)),
            4 => format!(
                "{}({})",
                self.pick(&["lower", "upper", "trim", "reverse"]),
                self.text(table, depth - 1)
            ),
            5 => format!(
                "substr({}, {}, {})",
                self.text(table, depth - 1),
                1 + self.below(3),
                self.below(3)
            ),
            6 => format!("replace({}, 'a', 'xx')", self.text(table, depth - 1)),
            7 => format!(
                "(cast({} as varchar) || '')",
                self.column(table, &["k", "i", "o", "day"])
            ),
            8 => format!("coalesce({}, 'none')", self.text(table, depth - 1)),
            _ => format!("{}['{}']", self.column(table, &["m"]), self.pick(&["p", "q", "r"])),
        }
    }

    fn value(&mut self, table: &str, depth: u64) -> String {
        match self.below(9) {
            0..=2 => self.integer(table, depth),
            3 | 4 => self.double(table, depth),
            5 | 6 => self.text(table, depth),
            7 if depth > 0 => format!("({})", self.condition(table, depth - 1)),
            _ => self.column(table, &["o", "day"]),
        }
    }

    fn condition(&mut self, table: &str, depth: u64) -> String {
        let comparison = self.pick(&[
            "=",
            "<>",
            "<",
            "<=",
            ">",
            ">=",
            "is distinct from",
            "is not distinct from",
        ]);
        match self.below(if depth == 0 { 7 } else { 10 }) {
            0 => format!(
                "{} {comparison} {}",
                self.integer(table, depth.min(1)),
                self.integer(table, 0)
            ),
            1 => format!(
                "{} {comparison} {}",
                self.double(table, depth.min(1)),
                self.double(table, 0)
            ),
            2 => {
                let constant = self.pick(&[
                    "0.0",
                    "-0.0",
                    "1.5",
                    "cast('NaN' as double)",
                    "cast('-Infinity' as double)",
                ]);
                format!("{} {comparison} {constant}", self.column(table, &["d"]))
            }
            3 => format!(
                "{} {comparison} {}",
                self.text(table, depth.min(1)),
                self.text(table, 0)
            ),
            4 => {
                let pattern = self.pick(&[
                    "like 'a%'",
                    "like '%b'",
                    "not like '_b%'",
                    "ilike 'A_%'",
                    "similar to '(a|b)+'",
                    "like '%a\\_%' escape '\\'",
                ]);
                format!("{} {pattern}", self.column(table, &["g", "t"]))
            }
            5 if self.one_in(2) => {
                let (value, other) = (self.column(table, &["k", "i", "id"]), self.column(table, &["k", "i"]));
                let list = self.pick(&["(1, 2)", "(2, 3, 4)", "(0, 1, 2, 3, 4)", "(-1, null)"]);
                match self.one_in(3) {
                    true => format!("{value} {} ({other}, 2)", self.pick(&["in", "not in"])),
                    false => format!("{value} {} {list}", self.pick(&["in", "not in"])),
                }
            }
            5 => {
                let list = self.pick(&["(0.0, 1.5)", "(-0.0)", "(cast('NaN' as double), 2.0)", "(null, 1.5)"]);
                format!("{} {} {list}", self.column(table, &["d"]), self.pick(&["in", "not in"]))
            }
            6 if self.one_in(2) => {
                let list = self.pick(&["[0.0, 1.5]", "[-0.0]", "[-2.25, cast('NaN' as double)]"]);
                format!("array_has({list}, {})", self.column(table, &["d"]))
            }
            6 => format!("{} is {}null", self.value(table, 0), self.pick(&["", "not "])),
            7 => format!(
                "{} between {} and {}",
                self.double(table, 0),
                self.pick(&["-1.5", "0.0"]),
                self.double(table, 0)
            ),
            8 => format!("not ({})", self.condition(table, depth - 1)),
            _ => format!(
                "({} {} {})",
                self.condition(table, depth - 1),
                self.pick(&["and", "or"]),
                self.condition(table, depth - 1)
            ),
        }
    }

    fn filter(&mut self, table: &str) -> String {
        match self.one_in(3) {
            true => String::new(),
            false => format!(" where {}", self.condition(table, 2)),
        }
    }

    fn aggregate(&mut self, table: &str) -> String {
        let distinct = if self.one_in(3) { "distinct " } else { "" };
        let call = match self.below(12) {
            0 => "count(*)".to_owned(),
            1 => format!("count({distinct}{})", self.value(table, 1)),
            2 => format!("count({distinct}{})", self.double(table, 0)),
            3 | 4 => format!("sum({distinct}{})", self.integer(table, 1)),
            5 => format!("sum({})", self.double(table, 0)),
            6 => format!("avg({distinct}{})", self.column(table, &["e", "k", "i"])),
            7 => format!("{}({})", self.pick(&["min", "max"]), self.value(table, 1)),
            8 => format!("{}({})", self.pick(&["min", "max"]), self.double(table, 1)),
            9 => format!(
                "{}({})",
                self.pick(&["bool_and", "bool_or"]),
                self.column(table, &["o"])
            ),
            10 => {
                let percentile = self.pick(&["0.5", "0.25", "0.123456789", "0.9"]);
                let order = self.pick(&["", " desc"]);
                format!(
                    "percentile_cont({percentile}) within group (order by {}{order})",
                    self.column(table, &["e"])
                )
            }
            _ => format!(
                "{}({})",
                self.pick(&["median", "stddev", "var_pop"]),
                self.column(table, &["e", "k", "i"])
            ),
        };
        match self.one_in(5) && !call.starts_with("percentile") {
            true => format!("{call} filter (where {})", self.condition(table, 1)),
            false => call,
        }
    }

    fn rows(&mut self) -> String {
        let distinct = if self.one_in(3) { "distinct " } else { "" };
        let values = self.several(4, |sql| sql.value("", 2)).join(", ");
        format!("select {distinct}{values} from a{}", self.filter(""))
    }

    fn groups(&mut self) -> String {
        let keys = self.several(2, |sql| match sql.one_in(3) {
            true => sql.value("", 1),
            false => sql.column("", &["g", "k", "d", "o", "day", "t"]),
        });
        let aggregates = self.several(3, |sql| sql.aggregate("")).join(", ");
        let filter = self.filter("");
        if self.one_in(4) {
            return format!("select {aggregates} from a{filter}");
        }
        let having = if self.one_in(4) { " having count(*) > 2" } else { "" };
        let grouped = (1..=keys.len()).map(|at| at.to_string()).collect::<Vec<_>>().join(", ");
        format!(
            "select {}, {aggregates} from a{filter} group by {grouped}{having}",
            keys.join(", ")
        )
    }

    fn join(&mut self) -> String {
        let kind = self.pick(&["join", "left join", "right join", "full join"]);
        let right = self.pick(&["a", "b"]);
        let key = self.pick(&["k", "g", "t", "d", "id", "i", "day"]);
        let more = match self.one_in(2) {
            true => format!(" and x.{0} = y.{0}", self.pick(&["g", "t", "k", "o"])),
            false => String::new(),
        };
        format!("a x {kind} {right} y on x.{key} = y.{key}{more}")
    }

    fn joined(&mut self) -> String {
        let join = self.join();
        let left = self.several(2, |sql| sql.value("x", 1)).join(", ");
        let right = self.several(2, |sql| sql.value("y", 1)).join(", ");
        let filter = self.filter("x");
        format!("select {left}, {right} from {join}{filter}")
    }

    fn joined_groups(&mut self) -> String {
        let join = self.join();
        let key = self.column("y", &["g", "k", "d", "o"]);
        let aggregates = self.several(2, |sql| sql.aggregate("x")).join(", ");
        let filter = self.filter("x");
        format!("select {key}, {aggregates} from {join}{filter} group by 1")
    }

    fn windows(&mut self) -> String {
        let functions = self.several(2, |sql| sql.window()).join(", ");
        let filter = self.filter("");
        format!("select id, {functions} from a{filter}")
    }

    fn window(&mut self) -> String {
        let partition = match self.one_in(3) {
            true => String::new(),
            false if self.one_in(3) => format!("partition by {} ", self.condition("", 1)),
            false if self.one_in(3) => format!("partition by {} ", self.value("", 1)),
            false => format!("partition by {} ", self.column("", &["g", "k", "o", "d"])),
        };
        let way = self.pick(&["asc", "desc"]);
        let order = format!("order by id {way}");
        let offset = 1 + self.below(3);
        let nulls = self.pick(&["", " ignore nulls"]);
        let value = self.column("", &["k", "t", "e", "i", "o"]);
        let frame = match self.below(4) {
            0 => String::new(),
            1 => format!(" rows between {offset} preceding and current row"),
            2 => format!(" rows between current row and {offset} following"),
            _ => format!(" rows between {offset} preceding and {offset} following"),
        };
        match self.below(8) {
            0 => format!("row_number() over ({partition}{order})"),
            1 => {
                let rank = self.pick(&["rank", "dense_rank", "percent_rank", "cume_dist"]);
                format!(
                    "{rank}() over ({partition}order by {} {way} nulls last)",
                    self.column("", &["k", "d", "t"])
                )
            }
            2 => format!("ntile({offset}) over ({partition}{order})"),
            3 | 4 => format!(
                "{}({value}, {offset}{nulls}) over ({partition}{order})",
                self.pick(&["lag", "lead"])
            ),
            5 => format!(
                "{}({value}{nulls}) over ({partition}{order}{frame})",
                self.pick(&["first_value", "last_value"])
            ),
            6 => format!("nth_value({value}, {offset}) over ({partition}{order}{frame})"),
            _ => {
                let aggregate = self.pick(&["sum(i)", "sum(e)", "count(d)", "min(t)", "max(e)", "avg(k)", "count(*)"]);
                format!("{aggregate} over ({partition}{order}{frame})")
            }
        }
    }

    fn sorted(&mut self, value: &str) -> String {
        format!(
            "{value} {} nulls {}",
            self.pick(&["asc", "desc"]),
            self.pick(&["first", "last"])
        )
    }

    fn first_rows(&mut self) -> String {
        let values = self.several(3, |sql| sql.value("", 1)).into_iter().enumerate();
        let values: Vec<String> = values.map(|(at, value)| format!("{value} as c{at}")).collect();
        let values = values.join(", ");
        let by = match self.one_in(3) {
            true => self.condition("", 1),
            false => self.value("", 1),
        };
        let by = self.sorted(&format!("({by})"));
        let offset = if self.one_in(3) { " offset 3" } else { "" };
        let filter = self.filter("");
        format!(
            "select {values} from a{filter} order by {by}, id limit {}{offset}",
            1 + self.below(12)
        )
    }

    /// Casts beside their values, which have one name for the library: selected, grouped and sorted by.
    fn names_of_casts(&mut self) -> String {
        let column = self.column("", &["k", "i", "day", "e"]);
        let cast = |kind: &str| format!("cast({column} as {kind})");
        let first = cast(self.pick(&["varchar", "double", "bigint"])).replace("(day as double)", "(day as varchar)");
        let first = first
            .replace("(day as bigint)", "(day as date)")
            .replace("(e as bigint)", "(e as double)");
        let filter = self.filter("");
        let limit = 1 + self.below(9);
        match self.below(4) {
            0 => format!(
                "select {column}, {first}, count(*) from a{filter} group by 1, 2 order by 1 nulls last, 2 nulls last limit {limit}"
            ),
            1 => format!("select {first}, {column} from a{filter} order by {column} nulls first, id limit {limit}"),
            2 => format!("select {first} from a{filter} order by {column} desc nulls last, id limit {limit}"),
            _ => format!(
                "select *, k, {first} from (select id, k, i, day, e from a{filter}) as x order by id limit {limit}"
            ),
        }
    }

    /// Values of JSON texts that are made of columns.
    fn json(&mut self) -> String {
        let text = "'{\"k\":' || coalesce(cast(k as varchar), 'null') || ',\"l\":[1,\"x\",{\"g\":\"' || coalesce(g, '') || '\"}]}'";
        let path = self.pick(&[
            "-> 'k'",
            "->> 'k'",
            "->> 'l'",
            "-> 'l' -> 1",
            "-> 'l' -> 2 ->> 'g'",
            "-> 'l' ->> -3",
            "-> 'none'",
        ]);
        let table = format!("(select id, g, k, {text} as j from a{}) as x", self.filter(""));
        match self.below(4) {
            0 => format!("select id, (j {path}) as v from {table}"),
            1 => format!("select (j {path}) as v, count(*) from {table} group by 1"),
            2 => format!("select id from {table} where (j {path}) is not null and g is not null"),
            _ => format!(
                "select id from {table} where (j ->> 'k') = {}",
                self.pick(&["'1'", "'-2'", "'null'"])
            ),
        }
    }

    /// The first values or groups, which the library aggregates in a heap of its own.
    fn first_values(&mut self) -> String {
        let key = self.column("", &["d", "e", "g", "t", "k", "i", "day", "o"]);
        let limit = 1 + self.below(4);
        let filter = self.filter("");
        if self.one_in(2) {
            let by = self.sorted(&key);
            return format!("select distinct {key} from a{filter} order by {by} limit {limit}");
        }
        let value = self.column("", &["id", "e", "k", "d", "t"]);
        let (function, way) = if self.one_in(2) {
            ("max", "desc")
        } else {
            ("min", "asc")
        };
        format!(
            "select m from (select {key}, {function}({value}) as m from a{filter} group by 1) as x order by m {way} nulls last limit {limit}"
        )
    }

    fn set_operation(&mut self) -> String {
        let operation = self.pick(&["union", "union all", "intersect", "except"]);
        let columns = self.pick(&["d", "k, g", "t", "e, o", "day, d", "i", "g, d"]);
        let (left, right) = (self.filter(""), self.filter(""));
        format!("select {columns} from a{left} {operation} select {columns} from b{right}")
    }

    fn subquery(&mut self) -> String {
        let key = self.pick(&["k", "g", "d", "t", "day"]);
        let inner = self.filter("y");
        let and = if inner.is_empty() { " where" } else { " and" };
        let values = self.several(2, |sql| sql.value("x", 1)).join(", ");
        match self.below(6) {
            0 => format!("select {values} from a x where x.{key} in (select y.{key} from b y{inner})"),
            1 => format!(
                "select {values} from a x where x.{key} not in (select y.{key} from b y{inner}{and} y.{key} is not null)"
            ),
            2 => format!("select {values} from a x where exists (select 1 from b y{inner}{and} y.{key} = x.{key})"),
            3 => format!("select {values} from a x where not exists (select 1 from b y{inner}{and} y.{key} = x.{key})"),
            4 => format!("select {values}, (select max(y.e) from b y{inner}{and} y.{key} = x.{key}) from a x"),
            _ => {
                let aggregate = self.aggregate("y");
                format!(
                    "with w as (select y.{key} as key, {aggregate} as m from b y{inner} group by 1) select x.id, w.m from a x join w on w.key = x.{key}"
                )
            }
        }
    }
}
