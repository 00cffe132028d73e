"""The web console in a browser: every page in both themes, the values of the API, and a killed server.

Usage: console.py EBLA [--screenshots FOLDER] [--short] [--tablets N]

EBLA is the program. The test starts etcd, a master and three tablet servers of its own on free ports, and ends them. A page fails the test with
an error of its console, an uncaught error, a failed request, or a request to another origin. `--short` is what `make test` runs: fewer pages in
the second theme, no screenshots, and a generous limit for the time until a killed server is seen.

Each step prints its name; the first difference ends the program with the reason and exit code 1.
"""

import argparse
import csv
import io
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

# The console shows within this time that a server was killed. `make test` runs other suites at the same time.
KILLED_MAX = 2.0
KILLED_MAX_SHORT = 30.0
# The windows of key heat here, instead of a minute, and the time in which patterns must be found.
HEAT_WINDOW = "3s"
HEAT_MAX = 120.0
# So many columns of a heat map are compared at least.
COLUMNS_MIN = 5
START_MAX = 120.0

options = argparse.ArgumentParser(description="Test the web console in a browser.")
options.add_argument("ebla", help="the program")
options.add_argument("--screenshots", help="folder for a picture of each page in both themes")
options.add_argument("--short", action="store_true", help="fewer pages, no pictures")
options.add_argument("--tablets", type=int, default=250, help="tablets of the large table")
options = options.parse_args()


def fail(reason):
    print(f"FAILED {reason}", flush=True)
    raise SystemExit(1)


def check(name, got, wanted):
    if got != wanted:
        fail(f"{name}: got {got!r}, wanted {wanted!r}")


def done(name):
    print(f"ok {name}", flush=True)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Cluster:
    """etcd, a master and three tablet servers with consoles."""

    def __init__(self, folder):
        self.folder, self.processes, self.consoles, self.address = folder, {}, {}, None

    def begin(self):
        folder = self.folder
        client, peer = free_port(), free_port()
        etcd = f"http://127.0.0.1:{client}"
        self.start("etcd", [shutil.which("etcd"), "--data-dir", str(folder / "etcd"), "--listen-client-urls", etcd,
                            "--advertise-client-urls", etcd, "--listen-peer-urls", f"http://127.0.0.1:{peer}",
                            "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
                            "--initial-cluster", f"default=http://127.0.0.1:{peer}", "--unsafe-no-fsync"])
        self.node("master", etcd, [])
        # Together: a new cluster waits for three servers.
        ready = [self.node(f"tablet-server-{number}", etcd, ["--http", "127.0.0.1:0", "--console-admin"])
                 for number in (1, 2, 3)]
        for name in ready:
            described = self.wait(name)
            self.consoles[described["server"]] = (name, f"http://{described['metrics']}")
            self.address = described["bigtable"]
        self.wait("master")
        self.ebla("wait", "--servers", "3")

    def start(self, name, command):
        log = open(self.folder / f"{name}.log", "ab")
        environment = {**os.environ, "EBLA_HEAT_MAP": HEAT_WINDOW}
        self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def node(self, name, etcd, more):
        role = "master" if name == "master" else "tablet-server"
        self.start(name, [options.ebla, role, "--etcd", etcd, "--listen", "127.0.0.1:0", "--data",
                          str(self.folder / name), "--ready-file", str(self.folder / f"{name}.ready"), *more])
        return name

    def wait(self, name):
        file, end = self.folder / f"{name}.ready", time.monotonic() + START_MAX
        while not file.exists():
            if self.processes[name].poll() is not None or time.monotonic() > end:
                fail(f"{name} does not start: {(self.folder / (name + '.log')).read_text()[-2000:]}")
            time.sleep(0.05)
        return json.loads(file.read_text())

    def ebla(self, *arguments):
        outcome = subprocess.run([options.ebla, *arguments], capture_output=True, text=True, check=False,
                              env={**os.environ, "EBLA_ADDR": self.address})
        if outcome.returncode != 0:
            fail(f"ebla {' '.join(arguments)}: {outcome.stderr}")
        return outcome.stdout

    def json(self, *arguments):
        return json.loads(self.ebla(*arguments, "-o", "json"))

    def stop(self):
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()


class Viewer:
    """A browser window that records what must not happen."""

    def __init__(self, browser, origin, theme="light", script=True):
        self.origin, self.theme, self.faults = origin, theme, []
        self.context = browser.new_context(color_scheme=theme, java_script_enabled=script,
                                           viewport={"width": 1280, "height": 900})
        self.page = self.context.new_page()
        self.page.on("console", lambda said: said.type == "error" and self.faults.append(f"console: {said.text}"))
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("request", self.requested)
        self.page.on("requestfailed", self.failed)

    def failed(self, request):
        # The browser itself gives requests up when their page is left: streams, and the icon of a page that was left quickly.
        if request.failure != "net::ERR_ABORTED":
            self.faults.append(f"failed: {request.url}: {request.failure}")

    def requested(self, request):
        if not request.url.startswith(self.origin + "/"):
            self.faults.append(f"request to another origin: {request.url}")

    def open(self, path, live=False):
        answer = self.page.goto(self.origin + path, wait_until="domcontentloaded")
        check(f"status of {path}", answer.status, 200)
        if live:
            self.page.wait_for_selector('#live-state[data-state="live"]', timeout=10_000)
        self.verify(path)

    def verify(self, path):
        if self.faults:
            fail(f"{path} in {self.theme}: {self.faults}")

    def value(self, name):
        return self.page.get_by_test_id(name).first.inner_text()

    def values(self, name):
        return self.page.get_by_test_id(name).all_inner_texts()

    def picture(self, path):
        if options.screenshots and not options.short:
            folder = Path(options.screenshots)
            folder.mkdir(parents=True, exist_ok=True)
            name = path.strip("/").split("?")[0].replace("/", "-") or "overview"
            self.page.screenshot(path=folder / f"{name}-{self.theme}.png", full_page=True)


# Every page, and whether it has live parts.
PAGES = [
    ("/", True), ("/servers", True), ("/servers/1", True), ("/tables", True), ("/tables/web", True),
    ("/tables/web/tablets", True), ("/tables/web/data", False), ("/heat", False), ("/heat/web", False),
    ("/locate", False), ("/locate?table=web&key=org.x", False), ("/events", True), ("/slow", True),
    ("/config", False),
]


def pages_in_both_themes(browser, cluster, origin):
    for theme in ("light", "dark"):
        viewer = Viewer(browser, origin, theme)
        for path, live in PAGES[:4] if options.short and theme == "dark" else PAGES:
            viewer.open(path, live)
            if not viewer.value("title"):
                fail(f"{path} has no title")
            viewer.picture(path)
        ground = viewer.page.evaluate("getComputedStyle(document.body).backgroundColor")
        red = int(ground.split("(")[1].split(",")[0])
        check(f"{theme} ground ({ground})", red > 128, theme == "light")
        viewer.context.close()
    done("every page in both themes")


def a_theme_is_kept(browser, origin):
    viewer = Viewer(browser, origin, "light")
    viewer.open("/servers", live=True)
    viewer.page.get_by_test_id("theme").click()
    theme = "document.documentElement.dataset.theme"
    check("the chosen theme", viewer.page.evaluate(theme), "dark")
    viewer.open("/tables")
    check("the theme of the next page", viewer.page.evaluate(theme), "dark")
    viewer.page.keyboard.press("Tab")
    check("the first key reaches a link", viewer.page.evaluate("document.activeElement.tagName"), "A")
    viewer.context.close()
    done("a theme is kept")


def values_are_those_of_the_api(browser, cluster, origin):
    viewer, status = Viewer(browser, origin), cluster.json("status")
    viewer.open("/", live=True)
    check("verdict", viewer.value("verdict"), status["verdict"])
    check("cluster", viewer.value("cluster-id"), status["cluster"])
    check("master", viewer.value("cluster-master"), status["master"])
    check("tables", viewer.value("cluster-tables"), str(status["tables"]))
    viewer.open("/servers", live=True)
    for server in status["servers"]:
        for name, key in (("address", "bigtable"), ("state", "state"), ("replicas", "replicas")):
            check(f"{name} of server {server['id']}", viewer.value(f"server-{server['id']}-{name}"), str(server[key]))
    viewer.open("/tables")
    check("tables", sorted(viewer.values("table")), ["large", "web"])
    viewer.open("/tables/web/tablets", live=True)
    listed = [str(tablet["tablet"]) for tablet in cluster.json("tablet", "list", "web")]
    check("tablets of web", viewer.values("tablet"), listed)
    viewer.open("/locate?table=web&key=org.x")
    found = cluster.json("meta", "lookup", "web", "org.x")
    check("tablet of a row", viewer.value("locate-tablet"), str(found["tablet"]))
    viewer.open("/tables/web/data?prefix=com.")
    check("row", viewer.values("row-key"), ["com.<cnn>"])
    check("value", viewer.values("value"), ["<b>CNN</b>"])
    check("no element of a value", viewer.page.locator("td b").count(), 0)
    viewer.context.close()
    done("values are those of the API")


def requests_have_rates_and_latencies(browser, cluster, origin):
    viewer, end = Viewer(browser, origin), time.monotonic() + 60
    names = ("traffic-requests-per-second", "traffic-read-p50", "traffic-read-p99")
    shown = []
    # A page of rows is a read of a client. The figures are those of the last seconds, so reads go on meanwhile.
    while not shown or "-" in shown or shown[0] == "0":
        if time.monotonic() > end:
            fail(f"the overview shows no requests: {dict(zip(names, shown))}")
        for _ in range(20):
            check("rows", viewer.page.request.get(origin + "/tables/web/data").status, 200)
        viewer.open("/", live=True)
        shown = [viewer.value(name) for name in names]
    check("a latency is a bound", [latency[0] in "≤>" for latency in shown[1:]], [True, True])
    rates = [viewer.value(f"server-{server}-requests") for server in cluster.consoles]
    check("a server has a rate", any(rate not in ("-", "0") for rate in rates), True)
    viewer.context.close()
    done("requests have rates and latencies")


def replicas_have_positions_in_their_log(browser, cluster, origin):
    viewer, groups = Viewer(browser, origin), cluster.json("group", "list")
    group = max(groups, key=lambda one: len(one["replicas"]))
    viewer.open("/tables/web/tablets", live=True)
    check("tablets lead to groups", viewer.page.locator('td a[href^="/groups/"]').count() > 0, True)
    viewer.open(f"/groups/{group['group']}", live=True)
    viewer.picture("/groups")
    for replica in group["replicas"]:
        for name in ("last", "committed", "applied", "missing", "lag"):
            value = viewer.value(f"replica-{replica['server']}-{name}")
            check(f"{name} of the replica on server {replica['server']} is a number ({value})", value.isdigit(), True)
    viewer.context.close()
    done("replicas have positions in their log")


def tables_are_files(browser, cluster, origin):
    viewer = Viewer(browser, origin)
    listed = [str(tablet["tablet"]) for tablet in cluster.json("tablet", "list", "web")]
    viewer.open("/tables/web/tablets", live=True)
    links = [viewer.page.get_by_test_id(f"export-{name}-1").get_attribute("href") for name in ("json", "csv")]
    rows = viewer.page.request.get(origin + links[0]).json()
    check("tablets of the JSON file", [row["Tablet"] for row in rows], listed)
    answer = viewer.page.request.get(origin + links[1])
    check("a file is saved", answer.headers["content-disposition"].startswith("attachment"), True)
    parsed = list(csv.DictReader(io.StringIO(answer.text())))
    check("tablets of the CSV file", [row["Tablet"] for row in parsed], listed)
    rows = viewer.page.request.get(origin + "/tables/web/data?format=json").json()
    check("rows of the JSON file", [row["Row"] for row in rows], ["com.<cnn>", "org.x"])
    check("another format", viewer.page.request.get(origin + "/servers?format=xml").status, 400)
    viewer.context.close()
    done("tables are files")


def a_range_of_time_is_kept(browser, origin):
    viewer = Viewer(browser, origin, script=False)
    viewer.open("/events")
    viewer.page.get_by_test_id("time-range").select_option("6h")
    viewer.page.get_by_role("button", name="Show").click()
    check("events of a new cluster", len(viewer.values("event")) > 0, True)
    for name, path in (("Tables", "/tables"), ("Slow", "/slow"), ("Events", "/events")):
        viewer.page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()
        check(f"the address of {name}", viewer.page.url, f"{origin}{path}?time=6h")
    check("the chosen range", viewer.page.get_by_test_id("time-range").input_value(), "6h")
    viewer.verify("the range of time")
    viewer.context.close()
    done("a range of time is kept")


def the_bar_of_ranges_ends_at_its_border(browser, origin):
    viewer = Viewer(browser, origin)
    viewer.open("/tables/web/tablets", live=True)
    gap = viewer.page.evaluate('''() => {
        const bar = document.querySelector('[data-testid="key-range-bar"]');
        const last = bar.querySelector("rect:last-of-type");
        return bar.getBoundingClientRect().right - last.getBoundingClientRect().right;
    }''')
    # The border itself is one pixel.
    check(f"the gap at the right border, {gap} pixels", -0.5 <= gap <= 1.5, True)
    viewer.context.close()
    done("the bar of ranges ends at its border")


def many_tablets_are_paged(browser, cluster, origin):
    viewer, seen = Viewer(browser, origin), []
    viewer.open("/tables/large/tablets", live=True)
    while True:
        seen += viewer.values("tablet")
        following = viewer.page.get_by_test_id("next")
        if following.count() == 0:
            break
        following.click()
        viewer.page.wait_for_load_state("domcontentloaded")
    viewer.verify("/tables/large/tablets")
    check("tablets on all pages", seen, [str(tablet["tablet"]) for tablet in cluster.json("tablet", "list", "large")])
    viewer.context.close()
    done("many tablets are paged")


def pages_work_without_a_script(browser, cluster, origin):
    viewer = Viewer(browser, origin, script=False)
    viewer.open("/servers")
    check("server without a script", viewer.value("server-1-state"), "up")
    check("a link to load it again", viewer.page.locator("noscript a, header a:has-text('Refresh')").count() > 0, True)
    viewer.open("/tables/web/data")
    viewer.page.locator("input[name=prefix]").fill("org.")
    viewer.page.get_by_role("button", name="Read").click()
    check("a form without a script", viewer.values("row-key"), ["org.x"])
    viewer.context.close()
    done("pages work without a script")


def a_cell_is_written(browser, cluster, origin):
    viewer = Viewer(browser, origin)
    viewer.open("/tables/web/data")
    for name, value in (("key", "zzz"), ("column", "anchor:q"), ("value", "from a browser")):
        viewer.page.get_by_test_id(f"cell-{name}").fill(value)
    viewer.page.get_by_test_id("write-cell").click()
    viewer.page.wait_for_load_state("domcontentloaded")
    check("the written value", viewer.values("value"), ["from a browser"])
    check("the value of the API", "from a browser" in cluster.ebla("row", "get", "web", "zzz"), True)
    viewer.verify("the form of a cell")
    viewer.context.close()
    done("a cell is written")


def darkest_cells(viewer):
    """The key bucket of the darkest cell of each column. The first column says nothing, because no ranges of keys were known when its writes
    were counted, and neither do columns with few counts, such as the last one."""
    return viewer.page.evaluate("""() => {
        const columns = {}, counts = {};
        for (const cell of document.querySelectorAll('[data-testid="heat-map"] rect')) {
            const x = Number(cell.dataset.x), shade = Number(cell.getAttribute('class').slice(1));
            if (!columns[x] || columns[x][0] < shade) columns[x] = [shade, Number(cell.dataset.y)];
            // The title is `TIME: COUNT UNIT, keys …`.
            const count = Number(cell.querySelector('title').textContent.split(': ')[1].split(' ')[0]);
            counts[x] = (counts[x] || 0) + count;
        }
        delete counts[Math.min(...Object.keys(counts).map(Number))];
        const most = Math.max(...Object.values(counts));
        const busy = Object.keys(counts).map(Number).filter(x => counts[x] * 4 >= most);
        return busy.sort((a, b) => a - b).map(x => columns[x][1]);
    }""")


def a_hot_row_is_a_line_and_a_sequential_writer_a_diagonal(browser, cluster, origin):
    """Writes until the page says what it sees, then compares the cells of the picture."""
    for table in ("hot", "sequential"):
        cluster.ebla("table", "create", table, "--family", "f")
    counter, ended = itertools.count(), threading.Event()

    def write():
        while not ended.is_set():
            number = next(counter)
            row = "row-500" if number % 2 else f"row-{number * 7919 % 1000:03}"
            cluster.ebla("row", "set", "hot", row, "f:q=v")
            cluster.ebla("row", "set", "sequential", f"{number:08}", "f:q=v")

    writers = [threading.Thread(target=write, daemon=True) for _ in range(3)]
    for writer in writers:
        writer.start()
    viewer, end = Viewer(browser, origin), time.monotonic() + HEAT_MAX
    try:
        for table, finding in (("hot", "one row takes"), ("sequential", "sequential writer")):
            path = f"/heat/{table}?metric=writes&time=15m"
            viewer.open(path)
            while not any(finding in said for said in viewer.values("heat-finding")) or len(darkest_cells(viewer)) < COLUMNS_MIN:
                if time.monotonic() > end:
                    fail(f"{path} does not say {finding!r} with {COLUMNS_MIN} columns: {viewer.values('heat-finding')}")
                time.sleep(1)
                viewer.open(path)
            viewer.picture(f"/heat-{table}")
            darkest = darkest_cells(viewer)
            if table == "hot":
                check("the darkest cells of a hot row are in one line", len(set(darkest)), 1)
            else:
                check("the darkest cells of a sequential writer go down", darkest, sorted(darkest))
                if len(set(darkest)) < 3:
                    fail(f"no diagonal: {darkest}")
        link = viewer.page.locator('[data-testid="heat-map"] a').last.get_attribute("href")
        check("a cell leads to its tablet", "/tables/sequential/tablets?tablet=" in link, True)
    finally:
        ended.set()
        for writer in writers:
            writer.join()
    viewer.context.close()
    done("a hot row is a line, and a sequential writer a diagonal")


def a_killed_server_is_seen(browser, cluster, origin):
    viewer = Viewer(browser, origin)
    viewer.open("/servers", live=True)
    victim = max(server for server, (_name, console) in cluster.consoles.items() if console != origin)
    check("state before", viewer.value(f"server-{victim}-state"), "up")
    process = cluster.processes[cluster.consoles[victim][0]]
    killed = time.monotonic()
    process.send_signal(signal.SIGKILL)
    process.wait()
    # The content security policy refuses a function that waits in the page.
    while viewer.value(f"server-{victim}-state") == "up" and time.monotonic() < killed + KILLED_MAX_SHORT:
        viewer.page.wait_for_timeout(20)
    took = time.monotonic() - killed
    viewer.picture("/servers-killed")
    viewer.verify("/servers")
    viewer.context.close()
    if took > (KILLED_MAX_SHORT if options.short else KILLED_MAX):
        fail(f"a killed server was seen after {took:.2f} s")
    done(f"a killed server is seen, after {took:.2f} s")


def run(cluster):
    cluster.ebla("table", "create", "web", "--family", "anchor", "--family", "contents:maxversions=3",
                 "--split", "m", "--split", "t")
    cluster.ebla("row", "set", "web", "com.<cnn>", "anchor:a&b=<b>CNN</b>")
    cluster.ebla("row", "set", "web", "org.x", "contents:=text")
    splits = [word for number in range(1, options.tablets) for word in ("--split", f"k{number:06}")]
    cluster.ebla("table", "create", "large", "--family", "f", *splits)
    origin = cluster.consoles[min(cluster.consoles)][1]
    with sync_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        pages_in_both_themes(browser, cluster, origin)
        a_theme_is_kept(browser, origin)
        values_are_those_of_the_api(browser, cluster, origin)
        requests_have_rates_and_latencies(browser, cluster, origin)
        replicas_have_positions_in_their_log(browser, cluster, origin)
        tables_are_files(browser, cluster, origin)
        a_range_of_time_is_kept(browser, origin)
        the_bar_of_ranges_ends_at_its_border(browser, origin)
        many_tablets_are_paged(browser, cluster, origin)
        pages_work_without_a_script(browser, cluster, origin)
        a_cell_is_written(browser, cluster, origin)
        if not options.short:
            a_hot_row_is_a_line_and_a_sequential_writer_a_diagonal(browser, cluster, origin)
        a_killed_server_is_seen(browser, cluster, origin)
        browser.close()
    print("all done", flush=True)


with tempfile.TemporaryDirectory() as folder:
    cluster = Cluster(Path(folder))
    try:
        cluster.begin()
        run(cluster)
    finally:
        cluster.stop()
