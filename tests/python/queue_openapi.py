"""Runs schemathesis against the OpenAPI document of a running process and prints what it found as one JSON object.

usage: queue_openapi.py BASE_URL [EXAMPLES]

BASE_URL is the process, such as http://127.0.0.1:4195. EXAMPLES (default 25) bounds the generated requests per operation, and
the seed is fixed, so a run ends and means the same tomorrow. The exit code is 0 when nothing was found.
Checked is that nothing makes the server fail, and that statuses, media types and bodies are those of the document: once with
any names, which mostly do not exist, and once with those of a queue and a group that do.
Left out is what never ends (events), what stops the rest (pausing) and what the tool cannot write (lines of JSON).
"""

import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

CHECKS = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"]
LEFT_OUT = ["events", "pauseQueue", "pauseGroup", "produceBatch"]
REMOVING = ["deleteQueue", "deleteGroup"]
TOOL = Path(sys.executable).with_name("schemathesis")
QUEUE, GROUP = "schemathesis", "work"
# A claim may wait a minute.
ANY_NAMES = "request-timeout = 70.0\n"
KNOWN_NAMES = ANY_NAMES + f'\n[parameters]\n"path.queue" = "{QUEUE}"\n"path.group" = "{GROUP}"\n'


def put(url):
    urllib.request.urlopen(urllib.request.Request(url, data=b"{}", method="PUT")).close()


def run(api, examples, config, left_out):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schemathesis.toml"
        path.write_text(config)
        command = [
            str(TOOL),
            f"--config-file={path}",
            "run",
            f"{api}/openapi.json",
            f"--url={api}",
            "--phases=examples,coverage,fuzzing",
            f"--checks={','.join(CHECKS)}",
            f"--max-examples={examples}",
            "--seed=1",
            "--no-color",
        ]
        command += [f"--exclude-operation-id={name}" for name in left_out]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    return {"exit": done.returncode, "output": done.stdout[-20000:], "error": done.stderr[-4000:]}


def main(base, examples):
    if not TOOL.exists():
        sys.exit(f"{TOOL} is missing; install it with: cargo xtask tools")
    api = f"{base.rstrip('/')}/api/v1"
    any_names = run(api, examples, ANY_NAMES, LEFT_OUT)
    put(f"{api}/queues/{QUEUE}")
    put(f"{api}/queues/{QUEUE}/groups/{GROUP}")
    known_names = run(api, examples, KNOWN_NAMES, LEFT_OUT + REMOVING)
    failed = any_names["exit"] or known_names["exit"]
    print(json.dumps({"tool": "schemathesis", "exit": failed, "any_names": any_names, "known_names": known_names}))
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 25))
