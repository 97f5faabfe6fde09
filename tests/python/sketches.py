"""Creates sketches with the public implementation of DDSketch, and reads those of others; prints one JSON object.

usage: sketches.py [SKETCH]

Without arguments: sketches of three parts of some values, in hexadecimal digits ("sketches"), the exact 90th
percentile of all ("exact"), and a sketch of another accuracy ("other"). SKETCH is one in base64, whose 90th percentile is computed ("quantile").
"""

import base64
import json
import math
import sys

from ddsketch import DDSketch
from ddsketch.pb import ddsketch_pb2
from ddsketch.pb.proto import DDSketchProto

PART = 0.9


def encoded(values, accuracy=0.01):
    sketch = DDSketch(accuracy)
    for value in values:
        sketch.add(value)
    return DDSketchProto.to_proto(sketch).SerializeToString().hex()


def make():
    values = [math.exp(math.sin(n) * 5) - 20 for n in range(3000)]
    parts = [values[:100], values[100:1500], values[1500:]]
    exact = sorted(values)[math.floor(PART * (len(values) - 1))]
    return {"sketches": [encoded(part) for part in parts], "exact": exact, "other": encoded([1.0], 0.02)}


def read(text):
    sketch = DDSketchProto.from_proto(ddsketch_pb2.DDSketch.FromString(base64.b64decode(text)))
    # It does not count the values of a sketch that it reads.
    sketch._count = sketch._negative_store.count + sketch._zero_count + sketch._store.count
    return {"quantile": sketch.get_quantile_value(PART)}


print(json.dumps(read(sys.argv[1]) if len(sys.argv) > 1 else make()))
