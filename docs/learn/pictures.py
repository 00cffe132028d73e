#!/usr/bin/env python3
"""Takes the pictures of the web console in the README and the book: `ebla demo` with its own data and traffic, in Chromium. `ebla bench` adds
requests of clients.

    make browser-tools
    ~/.cache/ebla/python/bin/python docs/learn/pictures.py [PROGRAM]

PROGRAM is `ebla`. The pictures are written beside this file. The windows of key heat are shortened to three seconds, so that two minutes of
traffic fill the heat map.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
PICTURES = {
    "console.png": "/",
    "console-heat.png": "/heat/weather?time=15m",
    "console-tablets.png": "/tables/webtable/tablets",
    "console-lookup.png": "/locate?table=webtable&key=org.debian",
}
READY_SECONDS, TRAFFIC_SECONDS = 120, 150
BENCH = ["--workloads", "read,write", "--clients", "4", "--seconds", "5", "--rounds", "20"]
# The table is filled first.
BENCH_SECONDS = 40
SIZE = {"width": 1280, "height": 900}


def ready(demo, file):
    """What the cluster says about itself, once it serves."""
    for _ in range(READY_SECONDS * 10):
        if file.exists():
            return json.loads(file.read_text())
        if demo.poll() is not None:
            raise SystemExit("ebla demo has ended")
        time.sleep(0.1)
    raise SystemExit(f"ebla demo is not ready after {READY_SECONDS} s")


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else "ebla"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ready"
        command = [program, "demo", "--ephemeral", "--traffic", "300", "--ready-file", str(file)]
        with open(Path(folder) / "log", "w") as log:
            environment = {**os.environ, "EBLA_HEAT_MAP": "3s"}
            demo = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            described = ready(demo, file)
            origin = "http://" + described["metrics"]
            time.sleep(TRAFFIC_SECONDS)
            bench = subprocess.Popen([program, "bench", "--addr", described["bigtable"], *BENCH], stdout=subprocess.DEVNULL)
            time.sleep(BENCH_SECONDS)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
                page = browser.new_page(color_scheme="light", viewport=SIZE)
                for name, path in PICTURES.items():
                    page.goto(origin + path, wait_until="domcontentloaded")
                    # A live page gets its first event.
                    time.sleep(3)
                    page.screenshot(path=HERE / name)
                browser.close()
            bench.terminate()
            bench.wait()
        finally:
            demo.send_signal(signal.SIGTERM)
            demo.wait(timeout=60)


main()
