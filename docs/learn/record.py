#!/usr/bin/env python3
"""Records a terminal session with a real cluster as an animated picture, docs/learn/terminal.svg.

    docs/learn/record.py [PROGRAM] [PICTURE]

PROGRAM is `ebla`, PICTURE a file name. The commands of SESSION run one after the other against a new cluster in a temporary folder, at the
default addresses if they are free. The picture shows what they print: no line is written by hand, only long ones are cut.
It needs nothing but Python's standard library. The picture loads nothing from another host, and shows everything at once to readers who
prefer no motion.
"""

import html
import os
import signal
import subprocess
import sys
import tempfile
import time

# Commands as they are typed, and how many lines of their output are shown at most.
SESSION = [
    ("ebla up &", 40),
    ("ebla table create web --family anchor --family contents:maxversions=3", 5),
    ("ebla set web com.cnn.www anchor:cnnsi.com=CNN anchor:my.look.ca=CNN.com", 5),
    ("ebla scan web --prefix com.", 8),
    ("ebla meta lookup web com.cnn.www", 8),
    ("ebla status", 8),
    ("ebla events -n 4", 8),
]
COLUMNS = 118
READY_SECONDS = 60
# Geometry in pixels, times in seconds.
CHARACTER, LINE, MARGIN, BAR = 7.25, 17, 14, 26
TYPED, PRINTED, PAUSE = 0.04, 0.05, 0.9


def record(program, folder):
    """Runs the session; returns (command, lines of output) for each command."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("EBLA_", "BIGTABLE_"))}
    # The commands call it `ebla`, whatever its file is called.
    programs = os.path.join(folder, "programs")
    os.mkdir(programs)
    os.symlink(os.path.abspath(program), os.path.join(programs, "ebla"))
    environment["PATH"] = programs + ":" + environment["PATH"]
    log = open(os.path.join(folder, "up.log"), "w+")
    cluster = subprocess.Popen([program, "up"], cwd=folder, env=environment, stdout=log, stderr=log)
    shown = []
    try:
        text = wait_until_ready(cluster, log)
        shown.append((SESSION[0][0], clip(text, SESSION[0][1])))
        for command, limit in SESSION[1:]:
            done = subprocess.run(
                command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=60
            )
            if done.returncode != 0:
                raise SystemExit(f"{command} ended with {done.returncode}: {done.stderr}")
            shown.append((command, clip(done.stdout + done.stderr, limit)))
            # Events are recorded about a second after they have happened.
            time.sleep(1.5)
    finally:
        cluster.send_signal(signal.SIGTERM)
        cluster.wait(timeout=30)
        log.close()
    return shown


def wait_until_ready(cluster, log):
    """What `ebla up` has printed, once the cluster is ready."""
    for _ in range(READY_SECONDS * 10):
        time.sleep(0.1)
        log.seek(0)
        text = log.read()
        if "Ctrl-C drains" in text:
            return text
        if cluster.poll() is not None:
            raise SystemExit(f"ebla up has ended: {text}")
    raise SystemExit(f"the cluster is not ready after {READY_SECONDS} s: {text}")


def clip(text, limit):
    lines = [line.rstrip() for line in text.rstrip("\n").split("\n")] if text else []
    lines = [line if len(line) <= COLUMNS else line[: COLUMNS - 1] + "…" for line in lines]
    return lines if len(lines) <= limit else lines[: limit - 1] + ["…"]


def draw(session):
    """The picture of a session. Each line has the time at which it appears."""
    lines, at = [], 0.5
    for command, output in session:
        lines.append((at, "command", "$ " + command))
        at += TYPED * len(command) + 0.2
        for line in output:
            lines.append((at, "output", line))
            at += PRINTED
        lines.append((at, "output", ""))
        at += PAUSE
    width = round(2 * MARGIN + CHARACTER * max(len(text) for _, _, text in lines))
    height = BAR + 2 * MARGIN + LINE * len(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
        "<title>A terminal session: a cluster is started, a table created, rows written and read</title>",
        "<style>",
        "text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d7dae0;white-space:pre}",
        ".command{fill:#8fd18f}",
        "@keyframes appear{from{opacity:0}to{opacity:1}}",
        "text{opacity:0;animation:appear .01s linear forwards}",
        "@media(prefers-reduced-motion:reduce){text{animation:none;opacity:1}}",
        "@media print{text{animation:none;opacity:1}}",
        "</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#16181d"/>',
    ]
    for place, colour in enumerate(("#ec6a5e", "#f4bf4f", "#61c554")):
        parts.append(f'<circle cx="{18 + 18 * place}" cy="16" r="5.5" fill="{colour}"/>')
    for number, (at, kind, text) in enumerate(lines):
        if text:
            y = BAR + MARGIN + LINE * (number + 0.75)
            # The length makes columns agree, whatever font a reader has.
            length = f'textLength="{CHARACTER * len(text):.1f}" lengthAdjust="spacingAndGlyphs"'
            style = f'class="{kind}" style="animation-delay:{at:.2f}s"'
            parts.append(
                f'<text xml:space="preserve" x="{MARGIN}" y="{y:.1f}" {length} {style}>{html.escape(text)}</text>'
            )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    program = sys.argv[1] if len(sys.argv) > 1 else os.path.expanduser("~/.cache/ebla/bin/ebla")
    picture = sys.argv[2] if len(sys.argv) > 2 else os.path.join(here, "terminal.svg")
    with tempfile.TemporaryDirectory() as folder:
        session = record(program, folder)
    with open(picture, "w") as file:
        file.write(draw(session))
    print(f"{picture}: {sum(len(output) + 1 for _, output in session)} lines")


if __name__ == "__main__":
    main()
