"""Runs queries over the Delta tables of a folder with DuckDB.

Reads a JSON list on its standard input: the folder first, then each query. Prints a list of as many answers: the names of the
tables, then {"rows": [[...]]} or {"error": "..."} for each query.
"""

import decimal
import json
import math
import pathlib
import sys

import duckdb
import duckdb_extension_delta


def quoted(path):
    return str(path).replace("'", "''")


def opened(lake):
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    # The package contains the extension's file; loading it by path needs neither a download nor a signature check.
    folder = pathlib.Path(duckdb_extension_delta.__file__).parent
    extension = next(folder.glob("extensions/*/delta.duckdb_extension"))
    connection.execute(f"LOAD '{quoted(extension)}'")
    connection.execute("SET TimeZone = 'UTC'")
    tables = sorted(path.name for path in pathlib.Path(lake).iterdir() if (path / "_delta_log").is_dir())
    for table in tables:
        connection.execute(f"CREATE TABLE {table} AS SELECT * FROM delta_scan('{quoted(lake)}/{table}')")
    return connection, tables


def plain(value):
    """JSON has neither NaN nor long integers."""
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        return value
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return str(value)
    if isinstance(value, decimal.Decimal):
        return str(int(value)) if value == value.to_integral_value() else float(value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return str(value)


def answer(connection, sql):
    try:
        return {"rows": [[plain(value) for value in row] for row in connection.execute(sql).fetchall()]}
    except duckdb.Error as error:
        return {"error": str(error).splitlines()[0]}


if __name__ == "__main__":
    lake, *queries = json.load(sys.stdin)
    connection, tables = opened(lake)
    print(json.dumps([tables] + [answer(connection, sql) for sql in queries]))
