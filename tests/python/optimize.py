"""Rewrites tables of the lake with the deltalake package: the files of each partition become one, in no particular order.

usage: optimize.py     with a JSON list of table paths on its standard input; prints a list of results
"""

import json
import sys

from deltalake import DeltaTable


def optimize(path):
    done = DeltaTable(path).optimize.compact()
    return {"added": done["numFilesAdded"], "removed": done["numFilesRemoved"]}


if __name__ == "__main__":
    print(json.dumps([optimize(path) for path in json.load(sys.stdin)]))
