"""Queries tables of the lake with another engine and prints the result rows as JSON.

usage: read_table.py duckdb|deltalake TABLE_PATH SQL
       read_table.py            with a JSON list of such triples on its standard input; prints a list of results

The table is `t` in a query. With deltalake, that package reads the files, also from an object store given by the environment,
and DuckDB only computes.
"""

import json
import pathlib
import sys

import duckdb


def table(engine, path, connection):
    if engine == "deltalake":
        from deltalake import DeltaTable

        connection.register("t", DeltaTable(path).to_pyarrow_table())
        return
    import duckdb_extension_delta

    # The package contains the extension's file; loading it by path needs neither a download nor a signature check.
    folder = pathlib.Path(duckdb_extension_delta.__file__).parent
    extension = next(folder.glob("extensions/*/delta.duckdb_extension"))
    connection.execute(f"LOAD '{quoted(extension)}'")
    connection.execute(f"CREATE VIEW t AS SELECT * FROM delta_scan('{quoted(path)}')")


def quoted(path):
    return str(path).replace("'", "''")


def answer(engine, path, sql):
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    table(engine, path, connection)
    result = connection.execute(sql)
    names = [column[0] for column in result.description]
    return [dict(zip(names, row)) for row in result.fetchall()]


if __name__ == "__main__":
    given = sys.argv[1:4]
    print(json.dumps(answer(*given) if given else [answer(*asked) for asked in json.load(sys.stdin)], default=str))
