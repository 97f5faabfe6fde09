"""Writes a checkpoint of tables of the lake with the deltalake package, which drops transactions older than the table's retention.

usage: checkpoint.py     with a JSON list of table paths on its standard input; prints a list of versions
"""

import json
import sys

from deltalake import DeltaTable


def checkpoint(path):
    table = DeltaTable(path)
    table.create_checkpoint()
    return table.version()


if __name__ == "__main__":
    print(json.dumps([checkpoint(path) for path in json.load(sys.stdin)]))
