"""Reads the table `tags` with DuckDB and its delta extension, without network, and prints one JSON object.

usage: read_tags_duckdb.py TABLE_PATH
"""

import json
import math
import pathlib
import sys

import duckdb
import duckdb_extension_delta

QUERY = """
SELECT count(*) AS rows,
       count(DISTINCT tag) AS tags,
       min(time_unix_nano) AS time_min,
       max(time_unix_nano) AS time_max,
       min(value) FILTER (NOT isnan(value)) AS value_min,
       max(value) FILTER (NOT isnan(value)) AS value_max,
       fsum(value) FILTER (NOT isnan(value)) AS value_sum,
       min(value_int) AS "min",
       max(value_int) AS "max",
       sum(value_int)::VARCHAR AS "sum",
       count(value_text) AS texts,
       list_sort(list(DISTINCT date::VARCHAR)) AS dates
FROM tags
"""


def main(path):
    # The package contains the extension's file; loading it by path needs neither a download nor a signature check.
    folder = pathlib.Path(duckdb_extension_delta.__file__).parent
    extension = next(folder.glob("extensions/*/delta.duckdb_extension"))
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    connection.execute(f"LOAD '{quoted(extension)}'")
    connection.execute(f"CREATE VIEW tags AS SELECT * FROM delta_scan('{quoted(path)}')")
    result = connection.execute(QUERY)
    names = [column[0] for column in result.description]
    found = dict(zip(names, result.fetchone()))
    found["sum"] = int(found["sum"] or 0)
    for name in ("value_min", "value_max", "value_sum"):
        if found[name] is not None and not math.isfinite(found[name]):
            found[name] = str(found[name])
    found["columns"] = [row[0] for row in connection.execute("DESCRIBE tags").fetchall()]
    print(json.dumps({"reader": "duckdb", **found}))


def quoted(path):
    return str(path).replace("'", "''")


if __name__ == "__main__":
    main(sys.argv[1])
