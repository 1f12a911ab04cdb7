"""A real Prometheus for tests: started on a free loopback port with storage of its own, asked over HTTP, and stopped.

Needs ``prometheus`` on the path (Debian package ``prometheus``). A test takes the fixture ``prometheus``::

    def test_something(prometheus: StartPrometheus) -> None:
        server = prometheus([f"127.0.0.1:{port}"])
        [(labels, value)] = server.wait_for("up == 1")

Other test folders make the fixture theirs with ``from tests.quality.prometheus_server import prometheus``.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

Vector = list[tuple[dict[str, str], float]]
StartPrometheus = Callable[[Sequence[str]], "PrometheusServer"]

_STARTING_S = 30.0
_STOPPING_S = 20.0
_POLL_S = 0.2


class PrometheusServer:
    """A running Prometheus that scrapes ``/metrics`` of its targets every second."""

    def __init__(self, targets: Sequence[str], folder: Path) -> None:
        """Start it.

        Args:
            targets: ``host:port`` of each.
            folder: empty; holds configuration, storage and log.

        Raises:
            RuntimeError: it does not start; with the end of its log.
        """
        config = folder / "prometheus.yml"
        # JSON is YAML.
        scrape = {"job_name": "selector", "static_configs": [{"targets": list(targets)}]}
        intervals = {"scrape_interval": "1s", "scrape_timeout": "1s"}
        config.write_text(json.dumps({"global": intervals, "scrape_configs": [scrape]}), encoding="utf-8")
        self.address = f"127.0.0.1:{_free_port()}"
        self._log = folder / "prometheus.log"
        command = [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'storage'}",
            f"--web.listen-address={self.address}",
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def query(self, promql: str) -> Vector:
        """Labels and value of every series an instant query answers with.

        Raises:
            RuntimeError: Prometheus refuses the query; with its message.
        """
        try:
            answer = json.loads(self._get("/api/v1/query?" + urllib.parse.urlencode({"query": promql})))
        except urllib.error.HTTPError as error:
            with error:
                raise RuntimeError(f"{promql}: {error.read().decode()}") from error
        return [(series["metric"], float(series["value"][1])) for series in answer["data"]["result"]]

    def wait_for(self, promql: str, timeout_s: float = 30.0) -> Vector:
        """Ask until the answer is not empty; put the condition into the query, such as ``up == 1``.

        Raises:
            TimeoutError: it stays empty; with the last errors of the targets.
        """
        deadline = time.monotonic() + timeout_s
        while not (found := self.query(promql)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{promql} has no answer after {timeout_s:g} s; last errors: {self.target_errors()}")
            time.sleep(_POLL_S)
        return found

    def target_errors(self) -> list[str]:
        """The last scrape error of every target that has one."""
        answer = json.loads(self._get("/api/v1/targets"))
        return [target["lastError"] for target in answer["data"]["activeTargets"] if target["lastError"]]

    def close(self) -> None:
        """Stop it and wait until it is gone."""
        self._process.terminate()
        try:
            self._process.wait(_STOPPING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _STARTING_S
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Prometheus did not start:\n{self._log.read_text(errors='replace')[-2000:]}")
            time.sleep(_POLL_S)

    def _ready(self) -> bool:
        try:
            self._get("/-/ready")
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False
        return True

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=10) as response:
            body: bytes = response.read()
            return body


@pytest.fixture
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartPrometheus]:
    """Starts servers, which are stopped when the test ends."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed")
    started: list[PrometheusServer] = []

    def start(targets: Sequence[str]) -> PrometheusServer:
        server = PrometheusServer(targets, tmp_path_factory.mktemp("prometheus"))
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
