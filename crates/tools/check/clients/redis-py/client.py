# SPDX-License-Identifier: Apache-2.0 OR MIT
"""redis-py as `check clients` runs it: library defaults, every reply verified.

Usage: client.py HOST PORT PROTOCOL REPEATS PREFIX. One JSON line per event on
stdout; after "connected" it waits for a line on stdin, after "done" the
connection stays open until stdin closes.
"""

import json
import sys

import redis


def say(**event):
    print(json.dumps(event), flush=True)


def expect(what, got, want):
    if got != want:
        raise AssertionError(f"{what}: got {got!r}, expected {want!r}")


def work(r, repeats, prefix):
    key, counter, gone = prefix + ":k", prefix + ":n", prefix + ":gone"
    expect("DEL before the run", r.delete(key, counter, gone) >= 0, True)
    expect("SET", r.set(key, "value"), True)
    expect("GET", r.get(key), b"value")
    expect("INCR", [r.incr(counter) for _ in range(3)], [1, 2, 3])
    expect("SET", r.set(gone, b"\r\n\0\xff"), True)
    expect("GET binary", r.get(gone), b"\r\n\0\xff")
    expect("EXPIRE", r.expire(gone, 86400), True)
    expect("DEL", r.delete(gone), 1)
    expect("GET after DEL", r.get(gone), None)
    pipe = r.pipeline(transaction=False)
    for i in range(10):
        pipe.set(key, str(i)).get(key)
    expect("pipeline", pipe.execute(), [x for i in range(10) for x in (True, str(i).encode())])
    for _ in range(repeats):
        expect("repeated GET", r.get(key), b"9")


def main():
    host, port, protocol, repeats, prefix = sys.argv[1:6]
    r = redis.Redis(host=host, port=int(port), protocol=int(protocol))
    try:
        expect("PING", r.ping(), True)
        say(event="connected", version=redis.__version__)
        sys.stdin.readline()
        work(r, int(repeats), prefix)
        say(event="done")
    except Exception as error:  # Reported to the parent as a failure, whatever it is.
        say(event="failed", error=f"{type(error).__name__}: {error}")
    sys.stdin.read()


main()
