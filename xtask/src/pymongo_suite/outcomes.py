"""A plugin for pytest: appends one line per test, its outcome and name, to the file that
QUORATE_OUTCOMES names. Written as they happen, so that a run that is cut short has said what it did.

It also makes the surroundings what the tests take for granted: that they do not run in a container,
which the driver would tell the server, and that a client that is told no address finds the server."""

import os

import pymongo
import pytest
from pymongo import pool_options

BAD = {"failed", "error"}


class Outcomes:
    def __init__(self, path):
        self.file = open(path, "w", buffering=1)
        self.current = {}

    def pytest_runtest_logreport(self, report):
        outcome = report.outcome
        if outcome == "failed" and report.when != "call":
            outcome = "error"
        known = self.current.get(report.nodeid)
        # A test has three phases; the worst counts, and a skip before the call stands for all.
        if known is None or outcome in BAD or (known == "passed" and outcome == "skipped"):
            self.current[report.nodeid] = outcome
        if report.when == "teardown":
            self.file.write(f"{self.current.pop(report.nodeid)} {report.nodeid}\n")

    def pytest_collectreport(self, report):
        if report.failed:
            self.file.write(f"error {report.nodeid}\n")


@pytest.hookimpl
def pytest_configure(config):
    pool_options.DOCKER_ENV_PATH = "/nowhere"
    pymongo.MongoClient.HOST = os.environ["DB_IP"]
    pymongo.MongoClient.PORT = int(os.environ["DB_PORT"])
    config.pluginmanager.register(Outcomes(os.environ["QUORATE_OUTCOMES"]))
