"""``pytest --workers N``: collect once, then fork N processes that run the tests, a file at a time.

Every worker of pytest-xdist reads and collects all tests by itself, which costs ten CPU seconds and more each; these have them from
the process that forked them, with everything that it keeps (the recorded hosts, the server of ``warm``). Files are begun in the order
in which they were collected (``LONGEST`` in conftest.py first). What a worker finds it sends up a pipe; the terminal, the JUnit file and the exit
status are the first process's. A worker that dies fails the test that it was at, and the rest of its file.
"""

from __future__ import annotations

import itertools
import os
import pickle
import selectors
import signal
import struct
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

_HEAD = struct.Struct("=I")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=0, metavar="N", help="run the tests in N forked processes, a file at a time")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    config = session.config
    if not config.option.workers or config.option.collectonly or session.testsfailed:
        return None
    if config.pluginmanager.hasplugin("xdist"):
        raise pytest.UsageError("--workers goes with -p no:xdist")
    files = [[*held] for _path, held in itertools.groupby(session.items, key=lambda item: item.path)]
    _Pool(session, files).run(config.option.workers)
    return True


class _Worker(NamedTuple):
    pid: int
    pipe: int
    unread: bytearray
    left: dict[str, pytest.Item]
    """Tests of the files that it has begun, by id, without those that are through."""


class _Pool:
    """The first process's view of its workers."""

    def __init__(self, session: pytest.Session, files: Sequence[list[pytest.Item]]) -> None:
        self._session, self._files = session, files
        self._config = session.config
        self._queue = _queue(len(files))
        self._workers: list[_Worker] = []

    def run(self, count: int) -> None:
        self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # one for all, below which each has its own
        try:
            for number in range(min(count, len(self._files))):
                self._workers.append(self._forked(number))
            os.close(self._queue)
            self._listen()
        except BaseException:
            for worker in self._workers:
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGINT)
            for worker in self._workers:
                os.close(worker.pipe)  # whoever still speaks ends, too
                with suppress(ChildProcessError):
                    os.waitpid(worker.pid, 0)
            raise

    def _forked(self, number: int) -> _Worker:
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reading)
            for other in self._workers:
                os.close(other.pipe)
            _work(self._session, number, self._queue, self._files, writing)
        os.close(writing)
        return _Worker(pid, reading, bytearray(), {})

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.pipe, selectors.EVENT_READ, worker)
            while self._workers:
                for key, _events in selector.select():
                    if not self._read(key.data):
                        selector.unregister(key.fileobj)
                        self._ended(key.data)
                if self._session.shouldstop:
                    raise self._session.Interrupted(self._session.shouldstop)
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)

    def _read(self, worker: _Worker) -> bool:
        """Whether it goes on."""
        piece = os.read(worker.pipe, 1 << 20)
        worker.unread.extend(piece)
        while len(worker.unread) >= _HEAD.size:
            (length,) = _HEAD.unpack_from(worker.unread)
            if len(worker.unread) < _HEAD.size + length:
                break
            name, value = pickle.loads(worker.unread[_HEAD.size : _HEAD.size + length])
            del worker.unread[: _HEAD.size + length]
            self._heard(worker, name, value)
        return bool(piece)

    def _heard(self, worker: _Worker, name: str, value: Any) -> None:
        hook = self._config.hook
        if name == "file":
            worker.left.update((item.nodeid, item) for item in self._files[value])
        elif name == "report":
            hook.pytest_runtest_logreport(report=hook.pytest_report_from_serializable(config=self._config, data=value))
        else:
            item = worker.left.pop(value)
            hook.pytest_runtest_logfinish(nodeid=value, location=item.location)

    def _ended(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        os.close(worker.pipe)
        status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        how = f"the process that ran this file ended with {status}"
        if not worker.left and status:
            raise pytest.UsageError(f"{how}, after its last test")
        for item in worker.left.values():
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", how, "call")
            self._config.hook.pytest_runtest_logreport(report=report)


def _queue(count: int) -> int:
    """A pipe that holds the numbers below ``count``: whoever reads one is the only one to get it."""
    reading, writing = os.pipe()
    os.write(writing, b"".join(map(_HEAD.pack, range(count))))  # 4 bytes a file of tests: a pipe holds 65,536
    os.close(writing)
    return reading


class _Voice:
    """Sends what is found to the first process."""

    def __init__(self, config: pytest.Config, pipe: int) -> None:
        self._config, self._pipe = config, pipe

    def say(self, name: str, value: object) -> None:
        data = pickle.dumps((name, value))
        data = _HEAD.pack(len(data)) + data
        while data:
            data = data[os.write(self._pipe, data) :]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.say("report", self._config.hook.pytest_report_to_serializable(config=self._config, report=report))


def _work(session: pytest.Session, number: int, queue: int, files: Sequence[list[pytest.Item]], pipe: int) -> NoReturn:
    status = 1
    try:
        voice = _become_worker(session.config, number, pipe)
        try:
            _run(session, voice, queue, files)
        finally:
            session._setupstate.teardown_exact(None)
        status = 0
    except (KeyboardInterrupt, BrokenPipeError):
        status = 130
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)


def _become_worker(config: pytest.Config, number: int, pipe: int) -> _Voice:
    """Its own files for what tests print and leave, and nothing to say but to the pipe."""
    plugins = config.pluginmanager
    for plugin in [plugins.get_plugin("terminalreporter"), *(p for p in plugins.get_plugins() if type(p).__name__ == "LogXML")]:
        plugins.unregister(plugin)
    capture: Any = plugins.get_plugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    factory = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = Path(factory.getbasetemp()) / f"w{number}"
    factory._basetemp.mkdir(mode=0o700)
    voice = _Voice(config, pipe)
    plugins.register(voice)
    return voice


class _AnotherFile(NamedTuple):
    """Stands for a next test of which only the session is known, whose fixtures are kept."""

    session: pytest.Session

    def listchain(self) -> list[pytest.Session]:
        return [self.session]


def _run(session: pytest.Session, voice: _Voice, queue: int, files: Sequence[list[pytest.Item]]) -> None:
    """The next file is taken when this one is through: a test that takes minutes keeps none waiting behind it."""
    while place := os.read(queue, _HEAD.size):
        (number,) = _HEAD.unpack(place)
        voice.say("file", number)
        for item, following in itertools.zip_longest(files[number], files[number][1:], fillvalue=_AnotherFile(session)):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            voice.say("through", item.nodeid)
