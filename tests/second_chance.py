"""`--second-chance`: failed tests run again, alone and last; what passes then is UNSTABLE."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import pytest

from tests.temp_folder import leftovers

MAX_UNSTABLE = 5
_OPTION = "--second-chance"
_VARIABLES = dict(os.environ)  # as they are before other plugins change them


def pytest_addoption(parser: pytest.Parser) -> None:
    text = f"run failed tests again, each alone, and report up to {MAX_UNSTABLE} that pass then"
    parser.getgroup("second chance").addoption(_OPTION, action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if config.option.second_chance and not is_worker and not config.option.collectonly:
        config.pluginmanager.register(SecondChance(config))


@dataclass
class SecondChance:
    """Collects the results of a run, and decides at its end whether it passes."""

    config: pytest.Config
    collected: set[str] = field(default_factory=set[str])
    completed: set[str] = field(default_factory=set[str])
    failures: dict[str, str] = field(default_factory=dict[str, str])
    collection_errors: list[str] = field(default_factory=list[str])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.collection_errors.append(report.nodeid)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected.update(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self.collected.update(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failures.setdefault(report.nodeid, _cause(report))
        if report.when not in ("setup", "call"):  # after tear-down, or when its worker crashed
            self.completed.add(report.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # the workers have ended, the summary is printed
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        result = yield
        if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            session.exitstatus = self._exit_status(session)
        return result

    def _exit_status(self, session: pytest.Session) -> int:
        if problem := self._problem(session):
            self._say(f"no second chance: {problem}")
            return pytest.ExitCode.TESTS_FAILED
        if not self.failures:
            return session.exitstatus
        self._say(f"second chance: {len(self.failures)} failed, now each runs again alone")
        # all of them, whatever the first ones say: whoever reads this wants to know each
        passed = [test for test in self.failures if self._passes_alone(test)]
        for test in passed:
            self._say(f"UNSTABLE {test}: {self.failures[test]}")
        all_passed = len(passed) == len(self.failures)
        return pytest.ExitCode.OK if all_passed else pytest.ExitCode.TESTS_FAILED

    def _problem(self, session: pytest.Session) -> str:
        """Say why this run is red whatever would pass now."""
        if self.collection_errors:
            return f"could not collect {', '.join(self.collection_errors)}"
        if session.shouldstop or session.shouldfail:
            return f"the run broke off: {session.shouldstop or session.shouldfail}"
        if missing := sorted(self.collected - self.completed):
            return f"{len(missing)} collected tests have no result: {', '.join(missing[:5])}"
        files = leftovers(self.config).items()
        if unexplained := [name for name, test in files if test not in self.failures]:
            return f"left in the temp folder: {', '.join(unexplained)}"
        if len(self.failures) > MAX_UNSTABLE:
            return f"{len(self.failures)} tests failed, more than {MAX_UNSTABLE}"
        return ""

    def _passes_alone(self, test: str) -> bool:
        started = time.monotonic()
        path = self.config.rootpath / test
        command = [sys.executable, "-m", "pytest", *self._options(), str(path)]
        run = subprocess.run(
            command,
            cwd=self.config.invocation_params.dir,
            env=_VARIABLES,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        # a test that is skipped has not passed
        passes = run.returncode == 0 and bool(re.search(r"^=+ 1 passed", run.stdout, re.M))
        seconds = time.monotonic() - started
        self._say(f"{test} {'passed' if passes else 'failed again'} in {seconds:.0f} s")
        if not passes:
            self._say(run.stdout)
        return passes

    def _options(self) -> list[str]:
        """Return the options of this run, less its files and its workers."""
        without = {_OPTION, *self.config.option.file_or_dir}
        options = [text for text in self.config.invocation_params.args if text not in without]
        if self.config.pluginmanager.hasplugin("xdist"):
            options += ["-n", "0"]
        return [*map(str, options), "--verbosity=0", "--color=no", "-p", "no:cacheprovider"]

    def _say(self, line: str) -> None:
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(line)


def _cause(report: pytest.TestReport) -> str:
    """Return one line: the exception, or what is known of a crash."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(crash.message if crash else report.longreprtext).strip().splitlines()
    return (lines[0] if crash else lines[-1]) if lines else "no message"
