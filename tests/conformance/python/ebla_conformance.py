"""A pytest plugin that runs the system tests of google-cloud-bigtable against a server that does more than an emulator.

The tests look at BIGTABLE_EMULATOR_HOST twice: when they are collected, to skip what Google's emulator lacks, and when a
client is made, to find the server. Here the variable is set between the two, so that nothing is skipped for an emulator's
sake. What is left out instead stands in a list, one line a test or a group, each with its reason.

    EBLA_CONFORMANCE_ADDRESS   host:port of the server
    EBLA_CONFORMANCE_LISTS     files of tests that are left out, with a colon between; none: everything runs
    EBLA_CONFORMANCE_CA        file of a CA: every connection uses TLS
    EBLA_CONFORMANCE_TOKEN_FILE  file with the token that every call has then
    EBLA_CONFORMANCE_REPORT    where the outcome of each test is written, as JSON, and how many tests each line fits

A line of a list is a test's id, in which * stands for anything, then blanks, then the reason. Whoever reads the report
takes a line that fits no test for an error, so that the lists stay true, and a test that skips itself too.
"""

import concurrent.futures
import json
import os
import re

import pytest

ADDRESS = os.environ["EBLA_CONFORMANCE_ADDRESS"]
EMULATOR = "BIGTABLE_EMULATOR_HOST"
NAME = "ebla-conformance"
# A late registration fails its test; this only bounds the wait.
REGISTRATION_SECONDS = 60

# What a client with credentials sets, and one that speaks to an emulator does not: a row may be larger than 4 MiB.
NO_LIMIT = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class Left:
    """A line of a list: which tests are left out, and why."""

    def __init__(self, line):
        parts = line.split(None, 1)
        self.pattern = parts[0]
        self.reason = parts[1].strip() if len(parts) == 2 else ""
        pieces = [re.escape(piece) for piece in self.pattern.split("*")]
        self.expression = re.compile(".*".join(pieces) + r"\Z")
        self.count = 0


def read_list(path):
    """The lines of a list, without comments and empty ones."""
    with open(path, encoding="utf-8") as lines:
        texts = [line.strip() for line in lines]
    return [Left(text) for text in texts if text and not text.startswith("#")]


class Plugin:
    """Leaves out what is listed, and keeps account of the rest."""

    def __init__(self):
        paths = [path for path in os.environ.get("EBLA_CONFORMANCE_LISTS", "").split(":") if path]
        self.left = [line for path in paths for line in read_list(path)]
        self.outcomes = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        """Takes the listed tests away."""
        kept, gone = [], []
        for item in items:
            lines = [line for line in self.left if line.expression.match(name(item.nodeid))]
            for line in lines:
                line.count += 1
            (gone if lines else kept).append(item)
            if lines:
                self.outcomes[name(item.nodeid)] = ("deselected", lines[0].reason)
        config.hook.pytest_deselected(items=gone)
        items[:] = kept

    def pytest_collection_finish(self):
        """From here on clients find the server."""
        os.environ[EMULATOR] = ADDRESS

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef, request):
        """What the tests' own fixtures would take from the variable."""
        answers = {"skip_on_emulator": None, "in_emulator": False}
        if fixturedef.argname not in answers:
            return None
        answer = answers[fixturedef.argname]
        fixturedef.cached_result = (answer, fixturedef.cache_key(request), None)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem):
        """Waits until the client has registered the instance of the test's table or view.

        A client registers it in another thread when the table is made. test_ping_and_warm pings all registered instances at
        once, without waiting for that thread, and finds none when the thread is late. Tasks of the asynchronous client
        begin in their order, so nothing is waited for there.
        """
        registration = getattr(pyfuncitem.funcargs.get("target"), "_register_instance_future", None)
        if isinstance(registration, concurrent.futures.Future):
            concurrent.futures.wait([registration], timeout=REGISTRATION_SECONDS)

    def pytest_runtest_logreport(self, report):
        """Notes how a test went: the worst of its three parts."""
        test = name(report.nodeid)
        if report.failed:
            self.outcomes[test] = ("failed", f"{report.when}: {report.longreprtext}")
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.outcomes.setdefault(test, ("skipped", reason))
        elif report.when == "call":
            self.outcomes.setdefault(test, ("passed", f"{report.duration:.1f}"))

    def pytest_sessionfinish(self):
        """Writes the report."""
        tests = [{"test": test, "outcome": what, "detail": detail} for test, (what, detail) in self.outcomes.items()]
        lines = [{"pattern": line.pattern, "reason": line.reason, "tests": line.count} for line in self.left]
        with open(os.environ["EBLA_CONFORMANCE_REPORT"], "w", encoding="utf-8") as report:
            json.dump({"tests": tests, "lines": lines}, report, indent=1)


def name(nodeid):
    """A test's id without the folders that all have in common."""
    return nodeid.removeprefix("tests/system/")


def without_limit(channel):
    """The same way to make a channel, with messages of any size."""

    def make(target, options=None, **rest):
        return channel(target, options=[*(options or []), *NO_LIMIT], **rest)

    return make


def with_tls(secure_channel, credentials):
    """A way to make a channel with TLS and a token where an emulator's client makes one without."""

    def make(target, options=None, **rest):
        return secure_channel(target, credentials, options=options, **rest)

    return make


def credentials():
    """TLS with the CA of the server, and the token of the caller; None without both."""
    import grpc

    ca, token = os.environ.get("EBLA_CONFORMANCE_CA"), os.environ.get("EBLA_CONFORMANCE_TOKEN_FILE")
    if not ca or not token:
        return None
    with open(ca, "rb") as file:
        channel = grpc.ssl_channel_credentials(file.read())
    with open(token, encoding="utf-8") as file:
        call = grpc.access_token_call_credentials(file.read().strip())
    return grpc.composite_channel_credentials(channel, call)


def reach_the_server():
    """The admin clients of the overlay know no emulator: their channels lead to the server here too."""
    import grpc

    secured = credentials()
    if secured is not None:
        grpc.insecure_channel = with_tls(grpc.secure_channel, secured)
        grpc.aio.insecure_channel = with_tls(grpc.aio.secure_channel, secured)
    # Before anything of Google's is imported: it takes these by name.
    grpc.insecure_channel = without_limit(grpc.insecure_channel)
    grpc.aio.insecure_channel = without_limit(grpc.aio.insecure_channel)

    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.bigtable_admin_v2.services import bigtable_instance_admin, bigtable_table_admin

    project = os.environ["GOOGLE_CLOUD_PROJECT"]
    google.auth.default = lambda *_args, **_kwargs: (AnonymousCredentials(), project)
    for service in (bigtable_table_admin, bigtable_instance_admin):
        for kind, transport in service.transports._transport_registry.items():
            if kind == "grpc":
                transport.create_channel = lambda *_args, **_kwargs: grpc.insecure_channel(ADDRESS)
            elif kind == "grpc_asyncio":
                transport.create_channel = lambda *_args, **kwargs: grpc.aio.insecure_channel(
                    ADDRESS, interceptors=kwargs.get("interceptors")
                )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests():
    """Begins before the tests' own configuration, which imports Google's client."""
    os.environ.pop(EMULATOR, None)
    reach_the_server()


def pytest_configure(config):
    """Takes part from the start."""
    config.pluginmanager.register(Plugin(), NAME)
