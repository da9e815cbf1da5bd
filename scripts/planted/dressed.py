"""Dress what a program prints as log collectors do: ``dressed.py STYLE NAME < output`` (docker: JSON lines; cri: times and streams; pod: kubectl's head and times; labels: a JSON document with labels)."""

import datetime
import json
import sys

STYLE, NAME = sys.argv[1], sys.argv[2]

for line in sys.stdin.buffer:
    said = line.decode(errors="replace").rstrip("\n")
    now = datetime.datetime.now(datetime.timezone.utc).isoformat().replace("+00:00", "000Z")
    if STYLE == "docker":
        said = json.dumps({"log": said + "\n", "stream": "stderr", "time": now})
    elif STYLE == "cri":
        said = f"{now} stderr F {said}"
    elif STYLE == "pod":
        said = f"[pod/{NAME}/trainer] {now} {said}"
    elif STYLE == "labels":
        said = json.dumps(
            {"timestamp": now, "severity": "ERROR", "labels": {"k8s-pod/job-name": "llm", "pod": NAME}, "textPayload": said}
        )
    print(said, flush=True)
