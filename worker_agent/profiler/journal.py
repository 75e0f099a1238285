"""A journal of finished rounds, so that a measurement which was stopped goes on where it was.

A file of lines: a checksum, a space, and a JSON document. The first says what is measured and where; each other one is
a record. A last line without an end is what a kill while writing leaves behind, and is dropped; anything else that is
not as it was written is refused, for a profile made of it would be wrong.
"""

import fcntl
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Self

import torch
from pydantic import TypeAdapter, ValidationError

from worker_agent.profiler.machine import device_name, num_cores
from worker_agent.profiler.records import Record
from worker_agent.profiler.settings import ProfilingSettings

FORMAT = 1
_RECORD: TypeAdapter[Record] = TypeAdapter(Record)
_NOT_COMPARED = ("timeout_s",)
"""Settings that change nothing about what is measured."""


class JournalRefused(ValueError):  # noqa: N818 - names what happened, as the other faults do
    """A journal that cannot be gone on with: damaged, of another measurement, or in use."""


def header_of(settings: ProfilingSettings) -> dict[str, Any]:
    """Return what a journal's records hold for: the settings, this machine and the version of torch."""
    asked = {name: value for name, value in asdict(settings).items() if name not in _NOT_COMPARED}
    header = {
        "format": FORMAT,
        "device": device_name(settings.device),
        "num_cores": num_cores(),
        "torch": torch.__version__,
        **asked,
    }
    return dict(json.loads(json.dumps(header)))


class Journal:
    """The open journal of one measurement; no other process can open it meanwhile.

    Parameters
    ----------
    path
        The file; made if there is none.
    settings
        What is measured.

    Attributes
    ----------
    records
        The records found when it was opened.

    Raises
    ------
    JournalRefused
        If the file is damaged, of another measurement, or in use.
    OSError
        If it cannot be read or written.
    """

    def __init__(self, path: Path, settings: ProfilingSettings) -> None:
        self._path = path
        self._file: IO[bytes] = path.open("a+b")
        try:
            self._lock()
            self.records = self._read(header_of(settings))
        except BaseException:
            self._file.close()
            raise

    def append(self, record: Record) -> None:
        """Keep one more record; it is on the disk when this returns.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        self._write(record.model_dump(mode="json"))

    def close(self, *, discard: bool = False) -> None:
        """Let go of the file, and delete it where it is of no more use."""
        if discard:
            self._path.unlink(missing_ok=True)
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalRefused(
                f"journal {self._path} is being written by another process; wait for it, or name another --journal"
            ) from None

    def _read(self, expected: Mapping[str, Any]) -> tuple[Record, ...]:
        self._file.seek(0)
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]
        records: tuple[Record, ...] = ()
        if whole:
            header, *lines = whole.splitlines()
            self._check_header(self._document(header, 1), expected)
            records = tuple(self._record(line, number) for number, line in enumerate(lines, start=2))
        elif not _line(expected).startswith(content):
            raise self._damaged(1)
        # Nothing is cut off before all is known to be a journal, and not somebody's file.
        if len(whole) < len(content):
            self._file.truncate(len(whole))
        if not whole:
            self._write(expected)
        return records

    def _check_header(self, found: Any, expected: Mapping[str, Any]) -> None:
        if not isinstance(found, dict):
            raise self._damaged(1)
        unlike = [name for name in sorted({*found, *expected}) if found.get(name) != expected.get(name)]
        if unlike:
            told = "; ".join(f"{name} was {found.get(name)!r} and is {expected.get(name)!r}" for name in unlike)
            raise JournalRefused(
                f"journal {self._path} is of another measurement: {told}. Ask for the same to go on with it, or delete "
                "it or name another --journal to begin anew"
            )

    def _record(self, line: bytes, number: int) -> Record:
        document = self._document(line, number)
        try:
            # As JSON, in which a tuple is a list, and for which pydantic is as strict as it can be.
            return _RECORD.validate_json(json.dumps(document), strict=True)
        except ValidationError:
            raise self._damaged(number) from None

    def _document(self, line: bytes, number: int) -> Any:
        checksum, _, text = line.partition(b" ")
        if checksum != _checksum(text):
            raise self._damaged(number)
        try:
            return json.loads(text)
        except ValueError:
            raise self._damaged(number) from None

    def _damaged(self, number: int) -> JournalRefused:
        return JournalRefused(
            f"journal {self._path} is damaged, or no journal: line {number} is not what was written; delete the file, "
            "or name another --journal, to begin anew"
        )

    def _write(self, document: Mapping[str, Any]) -> None:
        self._file.write(_line(document))
        self._file.flush()
        os.fsync(self._file.fileno())


def _checksum(text: bytes) -> bytes:
    return f"{zlib.crc32(text):08x}".encode()


def _line(document: Mapping[str, Any]) -> bytes:
    text = json.dumps(document).encode()
    return _checksum(text) + b" " + text + b"\n"
