"""Event files, against published checksums and a reader written from the format."""

import struct
from pathlib import Path

import pytest

from hydraplan.errors import InputError, RunFailed
from hydraplan.files.eventfile import crc32c, event, open_events, record, write_scalars
from tests.full_disk import no_file_beyond


@pytest.mark.parametrize(
    ("data", "checksum"),
    [  # RFC 3720, B.4, and the usual check value
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_checksums_are_those_of_the_standard(data, checksum):
    assert crc32c(data) == checksum


def test_a_message_is_wall_time_step_and_scalars():
    found = event(1.5, 300, {"a": 0.25})
    scalar = b"\x0a\x01a\x15" + struct.pack("<f", 0.25)
    summary = b"\x0a" + bytes([len(scalar)]) + scalar
    step = b"\x10\xac\x02"  # 300 as varint
    expected = b"\x09" + struct.pack("<d", 1.5) + step + b"\x2a" + bytes([len(summary)]) + summary
    assert found == expected


def records(content: bytes) -> list[bytes]:
    """Messages of a file of TFRecords; checksums are looked at."""
    found = []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        message, rest = content[12 : 12 + length], content[12 + length :]
        assert content[: 16 + length] == record(message)
        found.append(message)
        content = rest[4:]
    return found


def test_a_file_holds_its_version_and_a_record_each_step(tmp_path: Path):
    with open_events(tmp_path / "new" / "logs") as file:
        write_scalars(file, 1, {"gain": 2.0, "loss": -1.0})
        write_scalars(file, 2, {"gain": 3.0})
    (path,) = (tmp_path / "new" / "logs").iterdir()
    assert path.name.startswith("events.out.tfevents.")
    version, first, second = records(path.read_bytes())
    assert version.endswith(b"\x1a\x0dbrain.Event:2")
    assert b"gain\x15" + struct.pack("<f", 2.0) in first
    assert b"loss" in first
    assert b"loss" not in second


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--log-dir"):
        open_events(tmp_path / "file")


def test_a_disk_that_refuses_a_record_is_named_with_its_file(tmp_path: Path):
    said = pytest.raises(RunFailed, match=r"events\.out.*: File too large")
    with open_events(tmp_path) as file, no_file_beyond(100), said:
        write_scalars(file, 1, dict.fromkeys(map(str, range(9)), 0.0))
