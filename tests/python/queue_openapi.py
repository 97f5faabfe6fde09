"""Runs schemathesis against the OpenAPI document of a running process and prints its findings as one JSON object.

usage: queue_openapi.py BASE_URL [EXAMPLES]

BASE_URL is the process, such as http://127.0.0.1:4195. EXAMPLES (default 8) bounds the generated requests per operation, and
the seed is fixed, so a run terminates and is reproducible. The exit code is 0 without findings.
It checks that no request makes the server fail, and that statuses, media types and bodies match the document: once with
any names, which mostly do not exist, once with those of an existing queue and group with messages, leases and dead letters,
and then with the requests that remove these.
It leaves out requests that never end (events), block the others (pausing) or that the tool cannot generate (lines of JSON).
The document is the server's own except for three changes: its examples name that queue and its leases; claims do
not wait, because that took most of the time of a run; and dead letters are posted only to this machine.
"""

import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

CHECKS = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"]
LEFT_OUT = ["events", "pauseQueue", "pauseGroup", "produceBatch"]
REMOVING = ["purgeDeadLetters", "purgeQueue", "deleteGroup", "deleteQueue"]
TOOL = Path(sys.executable).with_name("schemathesis")
QUEUE, GROUP = "schemathesis", "work"
MESSAGES, LEASED, DEAD = 500, 30, 5
# The lease part of the receipts in the examples, after message and delivery.
TAG = "16.1.6927a51e"
WAIT_MS_MAX = 20
WEBHOOK = "http://127.0.0.1:1/dead"
ANY_NAMES = "request-timeout = 70.0\n"
KNOWN_NAMES = ANY_NAMES + f"""
[parameters]
"path.queue" = "{QUEUE}"
"path.group" = "{GROUP}"
"path.id" = "{QUEUE}:0:{MESSAGES - 1}"
"""


def ask(method, url, body=b""):
    with urllib.request.urlopen(urllib.request.Request(url, data=body or None, method=method)) as answer:
        return json.loads(answer.read() or b"null")


def fill(api):
    """Creates a queue with waiting, leased and dead messages. The examples of the document settle the leased ones,
    whose tag is returned."""
    queue = f"{api}/queues/{QUEUE}"
    ask("PUT", queue, b'{"partitions": 1}')
    ask("PUT", f"{queue}/groups/{GROUP}", b"{}")
    lines = "".join(json.dumps({"text": str(n), "key": f"k{n}"}) + "\n" for n in range(MESSAGES))
    ask("POST", f"{queue}/messages:batch", lines.encode())
    claim = {"max": LEASED, "visibility": "1h"}
    claimed = ask("POST", f"{queue}/groups/{GROUP}/claim", json.dumps(claim).encode())
    receipts = [message["receipt"] for message in claimed["messages"]]
    dead = [{"r": receipt, "reason": "no such pump"} for receipt in receipts[:DEAD]]
    settled = ask("POST", f"{queue}/groups/{GROUP}/settle", json.dumps({"reject": dead}).encode())
    if len(receipts) != LEASED or settled["settled"] != DEAD:
        sys.exit(f"the queue was not filled as it must be: {len(receipts)} leased, {settled}")
    return receipts[-1].split(":", 4)[4]


def write_document(api, path, tag=TAG):
    text = json.dumps(ask("GET", f"{api}/openapi.json")).replace("pumps", QUEUE).replace("alarms", GROUP)
    if TAG not in text:
        sys.exit(f"no example has a receipt that ends with {TAG}")
    text = text.replace(TAG, tag)
    document = json.loads(text.replace('"wait": "1s"', f'"wait": "{WAIT_MS_MAX}ms"'))
    schemas = document["components"]["schemas"]
    schemas["Claim"]["properties"]["wait"].update(pattern="^[0-9]ms$", minimum=0, maximum=WAIT_MS_MAX)
    for name in ["Settings", "NamedSettings"]:
        schemas[name]["properties"]["dlq"]["properties"]["webhook"] = {"enum": [WEBHOOK]}
    path.write_text(json.dumps(document))


def run(api, document, examples, config, which):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schemathesis.toml"
        path.write_text(config)
        command = [
            str(TOOL),
            f"--config-file={path}",
            "run",
            str(document),
            f"--url={api}",
            "--phases=examples,coverage,fuzzing",
            f"--checks={','.join(CHECKS)}",
            f"--max-examples={examples}",
            "--seed=1",
            "--no-color",
        ]
        done = subprocess.run(command + which, cwd=folder, capture_output=True, text=True, timeout=300)
    return {"exit": done.returncode, "output": done.stdout[-20000:], "error": done.stderr[-4000:]}


def main(base, examples):
    if not TOOL.exists():
        sys.exit(f"{TOOL} is missing; install it with: cargo xtask tools")
    api = f"{base.rstrip('/')}/api/v1"
    without = [f"--exclude-operation-id={name}" for name in LEFT_OUT]
    keeping = without + [f"--exclude-operation-id={name}" for name in REMOVING]
    removing = [f"--include-operation-id={name}" for name in REMOVING]
    with tempfile.TemporaryDirectory() as folder:
        document = Path(folder) / "openapi.json"
        write_document(api, document)
        parts = {"any_names": run(api, document, examples, ANY_NAMES, without)}
        write_document(api, document, fill(api))
        before = ask("GET", f"{api}/queues/{QUEUE}/groups/{GROUP}")
        parts["known_names"] = run(api, document, examples, KNOWN_NAMES, keeping)
        after = ask("GET", f"{api}/queues/{QUEUE}/groups/{GROUP}")
        parts["removing"] = run(api, document, examples, KNOWN_NAMES, removing)
    failed = max(part["exit"] for part in parts.values())
    # Requests for nothing that exists would find no mistakes.
    print(json.dumps({"tool": "schemathesis", "exit": failed, "before": before, "after": after, **parts}))
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8))
