"""What the public implementation of DDSketch makes of questions, which come as a JSON list on the standard input.

A question has values, which become a sketch with the default number of bins, and an encoded sketch in hexadecimal digits. The answer
has the encoded sketch of the values, merged with the given one if "merge" says so, and count and quantiles ("parts") of the given one.
"""

import json
import sys

from ddsketch import LogCollapsingLowestDenseDDSketch
from ddsketch.pb import ddsketch_pb2
from ddsketch.pb.proto import DDSketchProto


def read(digits):
    return DDSketchProto.from_proto(ddsketch_pb2.DDSketch.FromString(bytes.fromhex(digits)))


def count(sketch):
    return sketch._negative_store.count + sketch._zero_count + sketch._store.count


def empty():
    return LogCollapsingLowestDenseDDSketch(relative_accuracy=0.01, bin_limit=2048)


def collapsing(given):
    """With bins of the kind that it merges: those that it reads are of another one."""
    sketch = empty()
    for own, read in [(sketch._store, given._store), (sketch._negative_store, given._negative_store)]:
        for number, weight in enumerate(read.bins):
            if weight > 0:
                own.add(read.offset + number, weight)
    sketch._zero_count = given._zero_count
    sketch._count = given._count
    return sketch


def answer(question):
    sketch = empty()
    for value in question["values"]:
        sketch.add(value)
    found = {"quantiles": []}
    if question["sketch"]:
        given = read(question["sketch"])
        # What it reads it does not count.
        given._count = count(given)
        found["count"] = given._count
        found["quantiles"] = [given.get_quantile_value(part) for part in question["parts"]]
        if question.get("merge"):
            sketch.merge(collapsing(given))
    found["sketch"] = DDSketchProto.to_proto(sketch).SerializeToString().hex()
    return found


json.dump([answer(question) for question in json.load(sys.stdin)], sys.stdout)
