"""Where the service under test runs, and how it is interrupted: by a restart, or by kill -9."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import grpc

from clients.errors import from_rpc_error
from selector.replay.errors import StorageFailed
from selector.replay.store import ReplayStore
from tests.resume.operations import Answer, Operation, answered, answered_stream
from tests.service.bad_input import METHODS, Stubs
from tests.service.running import InProcessService, ServiceProcess

# So long that no selection is answered from an older estimate.
_TIMEOUT_S = 300.0


class Site:
    """A service with the connection to it.

    Attributes:
        window: steps for which groups that left the buffer can be brought back.
        in_process: whether its storage can be made to fail from here.
    """

    in_process = False

    def __init__(self, path: Path, window: int) -> None:
        path.mkdir(parents=True)
        self._path = path
        self._copies = 0
        self.state_dir = path / "state"
        self.window = window
        self._start()
        self._stubs = Stubs(self.address)

    def call(self, operation: Operation) -> Answer:
        """The answer over the wire."""
        method, _ = METHODS[operation.rpc]
        try:
            found = self._stubs.call(
                operation.rpc, operation.messages if method.client_streaming else operation.request, _TIMEOUT_S
            )
        except grpc.RpcError as error:
            return Answer(from_rpc_error(error).reason or str(error))
        return answered_stream(operation.rpc, found) if method.server_streaming else answered(found)

    def restart(self) -> None:
        """Stop the server as it should be stopped, and start another one."""
        self._stubs.close()
        self._stop()
        self._start()
        self._stubs = Stubs(self.address)

    def kill(self) -> None:
        """kill -9, and start another server."""
        self._stubs.close()
        self._kill()
        self._start()
        self._stubs = Stubs(self.address)

    def close(self) -> None:
        self._stubs.close()
        self._end()

    @property
    def address(self) -> str:
        raise NotImplementedError

    def _start(self) -> None:
        raise NotImplementedError

    def _stop(self) -> None:
        raise NotImplementedError

    def _kill(self) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        self._stop()


class LocalSite(Site):
    """A server in this process. Instead of being killed it loses its directory: the next server gets a copy of what
    was on disk while it was still running, so nothing that it might do when it stops is of any use.
    """

    in_process = True

    def __init__(self, path: Path, window: int, snapshot_groups: int = 8) -> None:
        self._service: InProcessService | None = None
        self._settings = {"rewind_window_steps": window, "snapshot_groups": snapshot_groups}
        super().__init__(path, window)

    @property
    def address(self) -> str:
        assert self._service is not None
        return self._service.address

    @contextmanager
    def full_disk(self) -> Iterator[mock.Mock]:
        """Writes to the replay store fail, and are counted; the state database is on another disk."""
        with mock.patch.object(ReplayStore, "write", side_effect=StorageFailed("no space left on device")) as write:
            yield write

    def _start(self) -> None:
        if self._service is None:
            self._service = InProcessService(self.state_dir, **self._settings)
        else:
            self._service.restart(state_dir=self.state_dir)

    def _stop(self) -> None:
        """``restart`` of the service stops it."""

    def _kill(self) -> None:
        self._copies += 1
        copy = self._path / f"copy-{self._copies}"
        shutil.copytree(self.state_dir, copy)
        self.state_dir = copy

    def _end(self) -> None:
        assert self._service is not None
        self._service.close()


class ProcessSite(Site):
    """A server that is a process of its own, and is really killed."""

    @property
    def address(self) -> str:
        return self._process.address

    def _start(self) -> None:
        self._process = ServiceProcess(self.state_dir, f"--rewind-window-steps={self.window}", "--snapshot-groups=8")

    def _stop(self) -> None:
        assert self._process.terminate() == 0

    def _kill(self) -> None:
        self._process.kill()
