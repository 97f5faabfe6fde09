"""Writes the tables of generated queries: Delta tables with every common type and with the values that engines disagree on.

Reads a JSON list of {"lake": FOLDER, "seed": NUMBER} on its standard input and prints the number of rows of each lake.
"""

import datetime
import json
import math
import random
import sys

import pyarrow as pa
from deltalake import write_deltalake

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("k", pa.int32()),
        ("i", pa.int64()),
        ("big", pa.int64()),
        ("d", pa.float64()),
        ("e", pa.float64()),
        ("g", pa.string()),
        ("t", pa.string()),
        ("o", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("l", pa.list_(pa.int64())),
        ("m", pa.map_(pa.string(), pa.string())),
    ]
)
ODD = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -2.25]
EXTREME = [2**63 - 1, -(2**63), 2**62, -(2**62), 0, 1, -1, 2**53 + 1]
TEXTS = ["", "a", "b", "ab", "Ab", "a%b", "a_b", "xyz", "ä", "aab", "bba", "12", " a "]
START = datetime.datetime(2026, 3, 1, tzinfo=datetime.timezone.utc)


def row(random, id):
    def some(value):
        return None if random.random() < 0.12 else value

    at = START + datetime.timedelta(seconds=random.randrange(0, 40 * 86400, 600))
    return {
        "id": id,
        "k": some(random.randrange(-3, 6)),
        "i": some(random.randrange(-1000, 1000)),
        "big": some(random.choice(EXTREME)),
        "d": some(random.choice(ODD) if random.random() < 0.5 else random.randrange(-40, 40) / 4),
        "e": some(random.randrange(-400, 400) / 4),
        "g": some(random.choice(["a", "b", "c", "ä"])),
        "t": some(random.choice(TEXTS)),
        "o": some(random.random() < 0.5),
        "day": some(at.date()),
        "at": some(at),
        "l": some([random.choice([1, 2, 3, None]) for _ in range(random.randrange(4))]),
        "m": some([(name, random.choice(["1", "x"])) for name in ("p", "q") if random.random() < 0.5]),
    }


def make(lake, seed):
    source = random.Random(seed)
    for table, sizes in (("a", (90, 60, 30)), ("b", (40, 20))):
        first = 0
        for size in sizes:
            rows = [row(source, id) for id in range(first, first + size)]
            write_deltalake(f"{lake}/{table}", pa.Table.from_pylist(rows, schema=SCHEMA), mode="append")
            first += size
    return 240


if __name__ == "__main__":
    print(json.dumps([make(asked["lake"], asked["seed"]) for asked in json.load(sys.stdin)]))
