"""Asks a table of the lake with another engine and prints the rows of the answer as JSON.

usage: read_table.py duckdb|deltalake TABLE_PATH SQL

The table is `t` in the question. With deltalake, that package reads the files, also from an object store as the environment says, and
DuckDB only computes.
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

    # The package carries the extension's file; loading it by path needs neither a download nor a signature check.
    folder = pathlib.Path(duckdb_extension_delta.__file__).parent
    extension = next(folder.glob("extensions/*/delta.duckdb_extension"))
    connection.execute(f"LOAD '{quoted(extension)}'")
    connection.execute(f"CREATE VIEW t AS SELECT * FROM delta_scan('{quoted(path)}')")


def quoted(path):
    return str(path).replace("'", "''")


def main(engine, path, sql):
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    table(engine, path, connection)
    result = connection.execute(sql)
    names = [column[0] for column in result.description]
    print(json.dumps([dict(zip(names, row)) for row in result.fetchall()], default=str))


if __name__ == "__main__":
    main(*sys.argv[1:4])
