"""Watches the service from outside: its memory, descriptors and threads, and whether it answers all the while."""

from __future__ import annotations

import os
import threading
import time
import urllib.request
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

_HEALTH_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Sample:
    """The process at one moment; ``memory`` without the pages of mapped files, which the kernel takes back."""

    seconds: float
    memory_mib: float
    resident_mib: float
    descriptors: int
    threads: int


@dataclass(frozen=True)
class Trend:
    """How a figure went after the warm-up.

    Attributes:
        growth: from the first quarter to the last, between the medians of both.
        slope: per minute, by least squares.
        early_slope, late_slope: of the first half and of the last one; what fills up to a bound flattens out.
    """

    first: float
    largest: float
    growth: float
    slope: float
    early_slope: float
    late_slope: float


def _slope(minutes: np.ndarray, values: np.ndarray) -> float:
    """Per minute, by least squares; arrays (n,)."""
    return float(np.polyfit(minutes, values, 1)[0]) if len(values) > 1 else 0.0


class Watch:
    """Looks every ``every_s`` seconds, from a thread of its own, until ``stop``.

    Attributes:
        samples: so far.
        health_s: seconds of each answered health check.
        unanswered: why each failed look failed.
    """

    def __init__(self, pid: int, address: str, metrics_address: str, every_s: float) -> None:
        self.samples: list[Sample] = []
        self.health_s: list[float] = []
        self.scrape_s: list[float] = []
        self.unanswered: list[str] = []
        self._pid = pid
        self._metrics = f"http://{metrics_address}/metrics"
        self._every_s = every_s
        self._began = time.monotonic()
        self._prepared_s = 0.0
        self._stopped = threading.Event()
        self._channel = grpc.insecure_channel(address)
        self._threads = [threading.Thread(target=each) for each in (self._look, self._ask, self._scrape)]
        for thread in self._threads:
            thread.start()

    def begin(self) -> None:
        """Trends and series count from now on; it has been watched before, too."""
        self._prepared_s = time.monotonic() - self._began

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self._channel.close()

    def trend(self, figure: str, warm_up_s: float) -> Trend:
        """Of one field of the samples."""
        warm = [sample for sample in self.samples if sample.seconds >= self._prepared_s + warm_up_s]
        values = np.array([getattr(sample, figure) for sample in warm], dtype=float)
        minutes = np.array([sample.seconds for sample in warm]) / 60
        quarter = max(len(values) // 4, 1)
        growth = float(np.median(values[-quarter:]) - np.median(values[:quarter]))
        half = len(values) // 2
        return Trend(
            first=float(np.median(values[:quarter])),
            largest=float(values.max()),
            growth=growth,
            slope=_slope(minutes, values),
            early_slope=_slope(minutes[:half], values[:half]),
            late_slope=_slope(minutes[half:], values[half:]),
        )

    def series(self, figure: str, every_s: float = 30.0) -> list[tuple[float, float]]:
        """Medians of a field over intervals: (minutes at its end, value); one without looks is left out."""
        found: dict[int, list[float]] = {}
        for sample in self.samples:
            if sample.seconds >= self._prepared_s:
                interval = int((sample.seconds - self._prepared_s) // every_s)
                found.setdefault(interval, []).append(float(getattr(sample, figure)))
        return [((i + 1) * every_s / 60, float(np.median(values))) for i, values in sorted(found.items())]

    def _look(self) -> None:
        while not self._stopped.wait(self._every_s):
            self.samples.append(self._sample())

    def _sample(self) -> Sample:
        fields: dict[str, str] = {}
        with open(f"/proc/{self._pid}/status", encoding="ascii") as status:
            for line in status:
                name, _, value = line.partition(":")
                fields[name] = value.split()[0] if value.split() else ""
        return Sample(
            seconds=time.monotonic() - self._began,
            memory_mib=int(fields["RssAnon"]) / 1024,
            resident_mib=int(fields["VmRSS"]) / 1024,
            descriptors=len(os.listdir(f"/proc/{self._pid}/fd")),
            threads=int(fields["Threads"]),
        )

    def _ask(self) -> None:
        stub: Any = health_pb2_grpc.HealthStub(self._channel)
        while not self._stopped.wait(0.2):
            began = time.monotonic()
            try:
                answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=_HEALTH_TIMEOUT_S)
            except grpc.RpcError as error:
                self.unanswered.append(f"health check: {error}")
                continue
            if answer.status != health_pb2.HealthCheckResponse.SERVING:
                self.unanswered.append(f"health check: status {answer.status}")
            self.health_s.append(time.monotonic() - began)

    def _scrape(self) -> None:
        while not self._stopped.wait(5.0):
            began = time.monotonic()
            try:
                with urllib.request.urlopen(self._metrics, timeout=_HEALTH_TIMEOUT_S) as answer:
                    answer.read()
            except OSError as error:
                self.unanswered.append(f"scrape: {error}")
                continue
            self.scrape_s.append(time.monotonic() - began)
