"""Reads tables of the lake with filters, and compares the rows with those of the whole table, filtered in memory.

The standard input is a JSON list of table paths. Prints a list with one object for each: how many filters each reader was asked
for, and the filters that lost or added rows. What a comparison with NaN gives is each reader's own, so each filters in memory by
itself. Of each type of a table, the first columns are read with every filter, and the others, whose files are chosen in the same
way, with those at the ends of their values; THALWEG_FILTER_COLUMNS=all reads all of them with every filter.
"""

import json
import math
import os
import pathlib
import sys

import duckdb
import duckdb_extension_delta
import pandas
import polars
import pyarrow
import pyarrow.compute as compute
from deltalake import DeltaTable

NESTED = (pyarrow.types.is_nested, pyarrow.types.is_map, pyarrow.types.is_list)
SOME = 3
# Columns of one type that are read with every filter.
WHOLLY = 3


def operands(column):
    """Values that the column has, at its ends and between, and some that it lacks."""
    kind = column.type
    known = [value for value in column.unique().to_pylist() if value is not None]
    # Not the NaN of the column: DuckDB's reader of Delta tables (delta-kernel's `total_cmp`) takes one with a sign, which
    # `Infinity - Infinity` is on most machines, for the least of all numbers and skips files by it, in tables of any writer.
    odd = [value for value in known if isinstance(value, float) and math.isinf(value)]
    known = sorted(value for value in known if value == value)
    chosen = known[:1] + known[len(known) // 2 : len(known) // 2 + 1] + known[-1:]
    if pyarrow.types.is_floating(kind):
        chosen += odd + [2.0, math.nan, math.inf, -math.inf]
    if pyarrow.types.is_boolean(kind):
        chosen += [True, False]
    if pyarrow.types.is_string(kind):
        chosen += ["", "\U0010ffff"]
    kept = []
    for value in chosen:
        if not any(value == other or (value != value and other != other) for other in kept):
            kept.append(value)
    return kept


def filters(column, is_brief=False):
    """Operators with their operands."""
    found = [("is null", None), ("is not null", None)]
    known = operands(column)
    if is_brief and known:
        found += [("=", known[0]), ("<", known[0]), (">", known[min(2, len(known) - 1)])]
    for value in [] if is_brief else known:
        found += [(operator, value) for operator in ("=", "<", ">")]
    if known:
        found.append(("in", known[:SOME]))
    return found


def arrow_filter(name, operator, value, kind):
    field = compute.field(name)
    scalar = None if operator == "in" else pyarrow.scalar(value, kind)
    match operator:
        case "=":
            return field == scalar
        case "<":
            return field < scalar
        case ">":
            return field > scalar
        case "in":
            return field.isin(pyarrow.array(value, kind))
        case "is null":
            return field.is_null()
    return field.is_valid()


def polars_filter(name, operator, value, kind):
    field = polars.col(name)
    literal = None if operator == "in" else polars.from_arrow(pyarrow.array([value], kind))
    match operator:
        case "=":
            return field == literal.item()
        case "<":
            return field < literal.item()
        case ">":
            return field > literal.item()
        case "in":
            return field.is_in(polars.from_arrow(pyarrow.array(value, kind)).implode())
        case "is null":
            return field.is_null()
    return field.is_not_null()


def sql_filter(name, operator, value, _kind):
    quoted = '"' + name.replace('"', '""') + '"'
    match operator:
        case "in":
            return f"{quoted} in ({', '.join('?' for _ in value)})", value
        case "is null" | "is not null":
            return f"{quoted} {operator}", []
    return f"{quoted} {operator} ?", [value]


def counts(readers, whole, frame, asked, connection):
    """The number of rows by reader: with the filter, and from the whole table."""
    name, operator, value, _kind = asked
    table, dataset, lazy = readers
    expression = arrow_filter(*asked)
    expected = whole.filter(expression).num_rows
    yield "deltalake", dataset.to_table(columns=[name], filter=expression).num_rows, expected
    if operator in ("=", "<", ">", "in") and not isinstance(value, bytes):
        read = table.to_pandas(columns=[name], filters=[(name, operator, value)])
        assert isinstance(read, pandas.DataFrame)
        yield "pandas", len(read), expected
    expression = polars_filter(*asked)
    expected = frame.filter(expression).height
    yield "polars", lazy.filter(expression).select(polars.len()).collect().item(), expected
    where, given = sql_filter(*asked)
    read, expected = (
        connection.execute(f"select count(*) from {of} where {where}", given).fetchone()[0] for of in ("t", "whole")
    )
    yield "duckdb", read, expected


def check(path):
    table = DeltaTable(path)
    dataset = table.to_pyarrow_dataset()
    whole = dataset.to_table()
    flat = [field.name for field in whole.schema if not any(is_nested(field.type) for is_nested in NESTED)]
    whole = whole.select(flat)
    # Threads would cost more than these few rows.
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true", "threads": 1})
    folder = pathlib.Path(duckdb_extension_delta.__file__).parent
    extension = next(folder.glob("extensions/*/delta.duckdb_extension"))
    connection.execute(f"LOAD '{str(extension)}'")
    connection.execute(f"CREATE VIEW t AS SELECT * FROM delta_scan('{path}')")
    connection.execute("CREATE TABLE whole AS SELECT * FROM t")
    frame, asked, wrong = polars.from_arrow(whole), {}, []
    readers = (table, dataset, polars.scan_delta(path))
    of_type = {}
    for name in flat:
        column = whole.column(name)
        of_type[column.type] = of_type.get(column.type, 0) + 1
        is_brief = of_type[column.type] > WHOLLY and os.environ.get("THALWEG_FILTER_COLUMNS") != "all"
        for operator, value in filters(column, is_brief):
            for reader, read, expected in counts(readers, whole, frame, (name, operator, value, column.type), connection):
                asked[reader] = asked.get(reader, 0) + 1
                if read != expected:
                    wrong.append(f"{reader}: {name} {operator} {value}: {read} rows of {expected}")
    return {"rows": whole.num_rows, "types": sorted({str(field.type) for field in whole.schema}), "asked": asked, "wrong": wrong}


if __name__ == "__main__":
    print(json.dumps([check(path) for path in json.load(sys.stdin)]))
