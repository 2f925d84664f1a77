"""Scalars over steps for TensorBoard, without TensorBoard: an event file of TFRecords.

A record is its length, a masked CRC-32C of that, a message, and a masked CRC-32C of the message.
The message is protobuf `Event`: wall time, step, and a summary of tag and value, written out here.

Source: the formats are TensorFlow's public `record_writer` and `event.proto`.
"""

import os
import struct
import time
from collections.abc import Mapping
from io import FileIO
from pathlib import Path

from hydraplan.errors import InputError
from hydraplan.files.parquet import seen_to_disk

_POLYNOMIAL, _MASK = 0x82F63B78, 0xA282EAD8


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """The Castagnoli checksum."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def record(message: bytes) -> bytes:
    """A message as TFRecord."""
    length = struct.pack("<Q", len(message))
    return length + _masked(length) + message + _masked(message)


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def event(wall_s: float, step: int, values: Mapping[str, float]) -> bytes:
    """Scalars of one step as a message."""
    head = b"\x09" + struct.pack("<d", wall_s) + b"\x10" + _varint(step)
    scalars = (
        _field(1, _field(1, tag.encode()) + b"\x15" + struct.pack("<f", value))
        for tag, value in values.items()
    )
    return head + _field(5, b"".join(scalars))


def open_events(folder: Path) -> FileIO:
    """A new event file in a folder, which is made if it is not there.

    Raises:
        InputError: The folder cannot be made, or written to.
    """
    now_s = time.time()
    path = folder / f"events.out.tfevents.{now_s:.6f}.{os.getpid()}.hydraplan"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("xb", buffering=0)
    except OSError as error:
        raise InputError(
            f"--log-dir {folder} cannot be written to: {error.strerror or error}",
            "choose another folder",
        ) from None
    version = b"\x09" + struct.pack("<d", now_s) + _field(3, b"brain.Event:2")
    _put(file, version)
    return file


def write_scalars(file: FileIO, step: int, values: Mapping[str, float]) -> None:
    """Put scalars of a step into the file, at once.

    Raises:
        RunFailed: The disk refuses them.
    """
    _put(file, event(time.time(), step, values))


def _put(file: FileIO, message: bytes) -> None:
    """Write a record; nothing is kept back, which closing the file would fail on once more."""
    rest = record(message)
    with seen_to_disk(Path(str(file.name))):
        while rest:
            rest = rest[file.write(rest) :]
