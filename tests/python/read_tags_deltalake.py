"""Reads the table `tags` with the deltalake package and prints the result as one JSON object.

usage: read_tags_deltalake.py TABLE_PATH
"""

import json
import math
import os
import sys

import pyarrow.compute as pc
from deltalake import DeltaTable


def main(path):
    table = DeltaTable(path)
    rows = table.to_pyarrow_table()
    numbers = rows["value"].filter(pc.invert(pc.is_nan(rows["value"]))).drop_null()
    print(
        json.dumps(
            {
                "reader": "deltalake",
                "version": table.version(),
                "protocol": [table.protocol().min_reader_version, table.protocol().min_writer_version],
                "files": len(table.file_uris()),
                "rows": rows.num_rows,
                "tags": pc.count_distinct(rows["tag"]).as_py(),
                "time_min": pc.min(rows["time_unix_nano"]).as_py(),
                "time_max": pc.max(rows["time_unix_nano"]).as_py(),
                "value_min": finite(pc.min(numbers).as_py()),
                "value_max": finite(pc.max(numbers).as_py()),
                "value_sum": finite(math.fsum(numbers.to_pylist())),
                "min": pc.min(rows["value_int"]).as_py(),
                "max": pc.max(rows["value_int"]).as_py(),
                "sum": sum(rows["value_int"].drop_null().to_pylist()),
                "texts": len(rows["value_text"].drop_null()),
                "dates": sorted(str(date) for date in pc.unique(rows["date"]).to_pylist()),
                "columns": rows.column_names,
            }
        )
    )


def finite(number):
    return number if number is None or math.isfinite(number) else str(number)


if __name__ == "__main__":
    main(sys.argv[1])
    # Arrow's threads may outlive the interpreter by a moment and then abort the process, after all output was written.
    sys.stdout.flush()
    os._exit(0)
