"""The fixtures for pytest: `quorate_set` for the whole run, `fresh_quorate_set` for one test."""

import pytest

from ._set import ReplicaSet


def pytest_addoption(parser):
    group = parser.getgroup("quorate")
    group.addoption("--quorate-members", type=int, default=3, help="members of the sets that tests get (default 3)")


@pytest.fixture(scope="session")
def quorate_set(request):
    """A replica set that all tests of the run share."""
    with ReplicaSet(members=request.config.getoption("--quorate-members")) as replica_set:
        yield replica_set


@pytest.fixture
def fresh_quorate_set(request):
    """A replica set of the test's own, to break."""
    with ReplicaSet(members=request.config.getoption("--quorate-members")) as replica_set:
        yield replica_set
