"""Columns of a parquet, CSV or JSON Lines file, as Python values with None for what is missing.

A cell of a CSV file is text; an empty one is missing. Rows keep the name a person finds them by: the line of a text
file, the number of the row, from 1, of a parquet file. What a value means is decided in ``rates``.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selector.evaluation.errors import DataError

_PARQUET = (".parquet", ".pq")
_JSON_LINES = (".jsonl", ".ndjson", ".jsonlines")
_CSV = (".csv", ".tsv")
# Also found in pairs, which are whole characters.
_SURROGATE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
FORMATS = ", ".join((*_PARQUET, *_CSV, *_JSON_LINES))


@dataclass(frozen=True)
class Columns:
    """A file's content.

    Attributes:
        path: of the file.
        values: name -> one value per row, None = missing; columns in the order of the file.
        places: of the rows, such as ``line 7``.
        textual: every value is text that may stand for a number (CSV).
    """

    path: Path
    values: dict[str, list[Any]]
    places: list[str]
    textual: bool

    def __len__(self) -> int:
        return len(self.places)


def read_columns(path: Path) -> Columns:
    """Read a file by its suffix.

    Raises:
        DataError: unknown suffix, or the file cannot be read or is malformed, naming the line.
    """
    suffix = path.suffix.lower()
    try:
        if suffix in _PARQUET:
            return _read_parquet(path)
        if suffix in _CSV:
            return _read_csv(path, "\t" if suffix == ".tsv" else ",")
        if suffix in _JSON_LINES:
            return _read_json_lines(path)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected UTF-8; {error}") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    raise DataError(f"{path}: expected a file ending in one of {FORMATS}; got {suffix or 'no suffix'}")


def _read_parquet(path: Path) -> Columns:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            table = file.read()
    except pa.ArrowException as error:
        raise DataError(f"{path}: not a readable parquet file: {str(error).splitlines()[0]}") from error
    repeated = [name for name in table.column_names if table.column_names.count(name) > 1]
    if repeated:
        raise DataError(f"{path}: column {repeated[0]!r} occurs twice")
    values: dict[str, list[Any]] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            values[name] = column.to_pylist()
        except (ValueError, OverflowError) as error:
            # Text that is no UTF-8, or a date that Python does not know.
            raise DataError(f"{path}: column {name!r}: not readable: {error}") from error
    return Columns(path, values, [f"row {i + 1}" for i in range(table.num_rows)], textual=False)


def _read_csv(path: Path, delimiter: str) -> Columns:
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(_without_limit(file), delimiter=delimiter, strict=True)
        try:
            header = next(reader, None)
            if not header:
                raise DataError(f"{path}: the file is empty: expected a line of column names")
            for place, name in enumerate(header):
                if not name.strip():
                    raise DataError(f"{path}: column {place + 1} has no name")
                if header.index(name) != place:
                    raise DataError(f"{path}: column {name!r} occurs twice")
            values: dict[str, list[Any]] = {name: [] for name in header}
            places = []
            before = reader.line_num
            for row in reader:
                place_of_row, before = f"line {before + 1}", reader.line_num
                if not row:
                    continue
                if len(row) != len(header):
                    raise DataError(f"{path}: {place_of_row}: expected {len(header)} cells; got {len(row)}")
                for name, cell in zip(header, row, strict=True):
                    values[name].append(cell if cell != "" else None)
                places.append(place_of_row)
        except csv.Error as error:
            raise DataError(f"{path}: line {reader.line_num}: not valid CSV: {error}") from error
    return Columns(path, values, places, textual=True)


def _without_limit(file: Iterator[str]) -> Iterator[str]:
    # Prompts are longer than the 128 KiB that the reader takes to be a mistake.
    csv.field_size_limit(2**31 - 1)
    return file


def _read_json_lines(path: Path) -> Columns:
    values: dict[str, list[Any]] = {}
    places: list[str] = []
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            record = _json_object(line, path, f"line {number}")
            for name, value in record.items():
                values.setdefault(name, [None] * len(places)).append(value)
            places.append(f"line {number}")
            for column in values.values():
                if len(column) < len(places):
                    column.append(None)
    return Columns(path, values, places, textual=False)


def _json_object(line: str, path: Path, place: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: {place}: not valid JSON: {error.msg}") from error
    except RecursionError as error:
        raise DataError(f"{path}: {place}: lists or objects are nested too deep") from error
    except ValueError as error:
        # Python reads no integer of thousands of digits.
        raise DataError(f"{path}: {place}: a number has too many digits") from error
    if not isinstance(record, dict):
        raise DataError(f"{path}: {place}: expected an object; got {type(record).__name__}")
    if _SURROGATE.search(line):
        for name, value in record.items():
            _refuse_surrogates([name, value], f"{path}: column {name!r}, {place}")
    return record


def _refuse_surrogates(value: Any, where: str) -> None:
    """JSON can escape half of a character, which can be neither embedded, printed nor sent."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise DataError(f"{where}: expected whole characters; got {half}, half of one") from error
    except RecursionError as error:
        raise DataError(f"{where}: lists or objects are nested too deep") from error
