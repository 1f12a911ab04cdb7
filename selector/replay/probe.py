"""Reads a replay store to its end, in a process that may end over it: ``python -I probe.py DIRECTORY``.

Exit code 0: every page that keys and values are reached by is there. It imports nothing but LMDB, so that it costs a
start next to nothing; payloads, which have checksums, are not read.
"""

import os
import sys
from pathlib import Path

import lmdb

_PAYLOADS = b"payloads"


def read_all(directory: str) -> None:
    """Look at every key, and at every value but the payloads.

    Raises:
        ValueError: something is out of order, or reaches beyond the end of the file.
        lmdb.Error: LMDB says so.
    """
    with lmdb.open(directory, readonly=True, lock=False, max_dbs=16, map_size=0) as env, env.begin(buffers=True) as txn:
        start, end = _mapped(Path(directory, "data.mdb"))
        whole = end - start >= (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        for name in [bytes(key) for key, _ in txn.cursor() if key != b"format"]:
            last = b""
            for key, value in txn.cursor(db=env.open_db(name, txn=txn, create=False)):
                if bytes(key) <= last:
                    raise ValueError(f"keys of {name.decode()} are not in order")
                last = bytes(key)
                if name != _PAYLOADS:
                    bytes(value)
                elif not whole and end and not start <= _address(value) <= end - len(value):
                    raise ValueError("payloads lie beyond the end of the file")


def _mapped(file: Path) -> "tuple[int, int]":
    """Addresses of the file's first byte and behind its last; (0, 0) where the system does not tell."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return 0, 0
    resolved = str(file.resolve())
    for line in maps.read_text().splitlines():
        if line.endswith(resolved):
            start = int(line.split("-")[0], 16)
            return start, start + os.stat(file).st_size
    return 0, 0


def _address(value: "memoryview[int]") -> int:
    import ctypes

    # A read-only buffer has no address in ctypes, so the object that describes it is asked.
    class Buffer(ctypes.Structure):
        _fields_ = [("buf", ctypes.c_void_p), ("rest", ctypes.c_byte * 120)]

    view = Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(value), ctypes.byref(view), 0)
    try:
        return int(view.buf or 0)
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))


if __name__ == "__main__":
    try:
        read_all(sys.argv[1])
    except (ValueError, lmdb.Error) as error:
        sys.exit(str(error))
