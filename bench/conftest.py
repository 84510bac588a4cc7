"""What every benchmark runs under, and what a run leaves behind: one table and one file."""

from __future__ import annotations

import datetime
import functools
import time
from typing import Any

import pytest

from bench import machine, record

BEGAN, LOAD = datetime.datetime.now(datetime.UTC), machine.load()
SKIPPED: list[str] = []


@pytest.fixture
def race(benchmark: Any) -> Any:
    """``record.race`` with this test's fixture of pytest-benchmark."""
    return functools.partial(record.race, benchmark)


@pytest.fixture
def timed(request: pytest.FixtureRequest) -> bool:
    """Whether this run times anything: not under --benchmark-disable."""
    return not request.config.option.benchmark_disable


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The plugin times CPU time, as all of this does."""
    for item in items:
        item.add_marker(pytest.mark.benchmark(timer=time.process_time))


def _note_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    file = report.nodeid.partition("::")[0].rpartition("/")[2]
    if report.skipped and file.startswith("bench_"):
        SKIPPED.append(report.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note_skipped(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note_skipped(report)


def pytest_runtestloop(session: pytest.Session) -> None:
    """What an earlier run found is not to be taken for this one's."""
    if not (session.config.option.collectonly or session.config.option.benchmark_disable):
        record.RESULTS.unlink(missing_ok=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the file. A peer that is missing and a ratio below its must are failures."""
    if record.ROWS:
        record.write(record.RESULTS, machine.describe(BEGAN, LOAD), record.ROWS)
    if SKIPPED or any(row.missed_must for row in record.ROWS):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for nodeid in SKIPPED:
        terminalreporter.write_line(f"FAILED {nodeid}: skipped, so nothing was compared")
    if record.ROWS:
        terminalreporter.section("CPU time of peers over ours")
        terminalreporter.write_line(record.table(record.ROWS))
        terminalreporter.write_line("")
        terminalreporter.write_line(machine.lines(machine.describe(BEGAN, LOAD)))
        terminalreporter.write_line(f"{'rows':<11} {record.RESULTS}")
