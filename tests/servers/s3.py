#!/usr/bin/env python3
"""An object store that speaks S3: moto, in memory, on 127.0.0.1:PORT, and faults on demand.

usage: s3.py PORT

The bucket `lake` exists. Writes run one at a time, so a conditional put is as atomic as in a real store. The key `thalweg` with any
secret may do everything, and other keys nothing. Prints `listening http://...` when it is ready.

`POST /_test` sets the faults in a JSON object:
  down        connections are closed without a response
  lost        one in this many writes is done without a response
  refused     one in this many requests gets 503 SlowDown
  late_ms     delay of every response
  ignore      the headers If-Match and If-None-Match have no effect
and returns the counts since the last call: `requests`, `lost`, `refused`, `conflicts` (412), `bytes_put_max` (the largest body).
"""

import json
import random
import sys
import threading
import time

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

NO_EFFECT = {"down": False, "lost": 0, "refused": 0, "late_ms": 0, "ignore": False}


def error(code, message):
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'.encode()


class Store:
    def __init__(self):
        self.moto = DomainDispatcherApplication(create_backend_app)
        self.lock = threading.Lock()
        self.faults = dict(NO_EFFECT)
        self.seen = self.nothing()
        self.random = random.Random(7)

    def nothing(self):
        return {"requests": 0, "lost": 0, "refused": 0, "conflicts": 0, "bytes_put_max": 0}

    def __call__(self, environ, start_response):
        if environ["PATH_INFO"] == "/_test":
            return self.test(environ, start_response)
        faults = dict(self.faults)
        self.seen["requests"] += 1
        if faults["down"]:
            return self.hang_up(environ)
        if faults["late_ms"]:
            time.sleep(faults["late_ms"] / 1000)
        if faults["refused"] and self.random.randrange(faults["refused"]) == 0:
            self.seen["refused"] += 1
            start_response("503 Slow Down", [("content-type", "application/xml")])
            return [error("SlowDown", "Please reduce your request rate.")]
        if "Credential=thalweg/" not in environ.get("HTTP_AUTHORIZATION", ""):
            start_response("403 Forbidden", [("content-type", "application/xml")])
            return [error("InvalidAccessKeyId", "The key does not exist in our records.")]
        if faults["ignore"]:
            environ.pop("HTTP_IF_NONE_MATCH", None)
            environ.pop("HTTP_IF_MATCH", None)
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return self.moto(environ, start_response)
        self.seen["bytes_put_max"] = max(self.seen["bytes_put_max"], int(environ.get("CONTENT_LENGTH") or 0))
        with self.lock:
            answer, body = self.done(environ)
        if answer[0].startswith("412"):
            self.seen["conflicts"] += 1
        if faults["lost"] and self.random.randrange(faults["lost"]) == 0:
            self.seen["lost"] += 1
            return self.hang_up(environ)
        start_response(*answer)
        return [body]

    def done(self, environ):
        answer = []
        body = b"".join(self.moto(environ, lambda status, headers, exc=None: answer.extend((status, headers))))
        return answer, body

    def hang_up(self, environ):
        environ["werkzeug.socket"].shutdown(2)
        raise ConnectionAbortedError("no answer")

    def test(self, environ, start_response):
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        self.faults.update(json.loads(body or b"{}"))
        seen, self.seen = self.seen, self.nothing()
        start_response("200 OK", [("content-type", "application/json")])
        return [json.dumps(seen).encode()]


class Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_):
        pass

    def run_wsgi(self):
        try:
            super().run_wsgi()
        except OSError:
            self.close_connection = True


def main(port):
    store = Store()
    server = make_server("127.0.0.1", int(port), store, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id="thalweg",
        aws_secret_access_key="x",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="lake")
    print(f"listening http://127.0.0.1:{port}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:2])
