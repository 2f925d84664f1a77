"""Checkpoints of a run: folders `checkpoints/step-N`, N steps done, each whole or not there.

A folder has a file of named arrays for every worker that saved something (`tensorfile`) and
`checkpoint.json`, which says whose it is, how far the ledger (`steps.parquet`) was, and the size
and digest of every file. It is made under another name and renamed once all is on the disk, so
whatever ends a run leaves whole checkpoints only.
"""

import os
import re
import shutil
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, ValidationError

from hydraplan.config import Config, Count, validation_text
from hydraplan.errors import InputError
from hydraplan.files.tensorfile import DAMAGED, SUFFIX

CHECKPOINTS = "checkpoints"
MANIFEST = "checkpoint.json"
_FOLDER = re.compile(r"step-([0-9]{8,18})")
_FILE = re.compile(rf"stage-[0-9]+-lane-[0-9]+\{SUFFIX}")


class SavedFile(Config):
    """Size and SHA-256 of a file of a checkpoint."""

    size_bytes: Annotated[int, Field(ge=0, le=1 << 48)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Checkpoint(Config):
    """What `checkpoint.json` says. `steps` are done; `ledger_digest` is that of their rows."""

    schema_version: Literal[1] = 1
    steps: Annotated[int, Field(ge=0, le=1 << 40)]
    plan_digest: str
    pp: Count
    ranks: Count
    ledger_digest: str
    files: dict[str, SavedFile]


class Saved(NamedTuple):
    """A checkpoint and the folder it lies in."""

    path: Path
    about: Checkpoint


def worker_file(stage: int, lane: int) -> str:
    """Name of what one worker saves."""
    return f"stage-{stage}-lane-{lane}{SUFFIX}"


def begin_checkpoint(run: Path, steps: int) -> Path:
    """Make the folder that becomes a checkpoint, in place of one that was never finished."""
    spare = spare_folder(run, steps)
    if spare.is_dir():
        shutil.rmtree(spare)
    spare.parent.mkdir(exist_ok=True)
    spare.mkdir()
    return spare


def spare_folder(run: Path, steps: int) -> Path:
    """Where the files of a checkpoint lie until all of them are there."""
    return run / CHECKPOINTS / f".step-{steps:08}.tmp"


def publish_checkpoint(run: Path, about: Checkpoint, keep: int) -> Path:
    """Give a finished checkpoint its name, see it to the disk, and remove all but the last `keep`.

    Raises:
        InputError: A file that a worker wrote is not in the folder, which is then not shared.
    """
    spare = spare_folder(run, about.steps)
    for name, saved in about.files.items():
        _check_size(spare / name, saved, "every host has to see the same run folder")
    with (spare / MANIFEST).open("x", encoding="ascii") as file:
        file.write(about.model_dump_json())
        file.flush()
        os.fsync(file.fileno())
    _to_disk(spare)
    path = run / CHECKPOINTS / f"step-{about.steps:08}"
    spare.rename(path)
    _to_disk(path.parent)
    for old in checkpoint_folders(run)[:-keep]:
        away = old.with_name(f".{old.name}.tmp")
        old.rename(away)
        shutil.rmtree(away)
    return path


def checkpoint_folders(run: Path) -> list[Path]:
    """Finished checkpoints of a run, oldest first."""
    folder = run / CHECKPOINTS
    found = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return sorted(path for path in found if _FOLDER.fullmatch(path.name))


def newest_checkpoint(run: Path) -> Saved | None:
    """The last checkpoint of a run, None where there is none.

    Raises:
        InputError: It is damaged: a file is absent, or has not the size that was written.
    """
    folders = checkpoint_folders(run)
    return open_checkpoint(folders[-1]) if folders else None


def open_checkpoint(path: Path) -> Saved:
    """Read what a checkpoint says of itself, and see that its files are there, whole by size."""
    manifest = path / MANIFEST
    try:
        about = Checkpoint.model_validate_json(manifest.read_bytes())
    except OSError as error:
        raise InputError(f"{manifest} cannot be read: {error.strerror}", DAMAGED) from None
    except ValidationError as error:
        raise InputError(f"{manifest}: {validation_text(error)}", DAMAGED) from None
    if path.name != f"step-{about.steps:08}":
        raise InputError(f"{manifest} says that {about.steps} steps are done", DAMAGED)
    for name, saved in about.files.items():
        if not _FILE.fullmatch(name):
            raise InputError(f"{manifest} names {name!a}, which no worker writes", DAMAGED)
        _check_size(path / name, saved, DAMAGED)
    return Saved(path, about)


def only_checkpoints(folder: Path) -> bool:
    """Whether a folder holds nothing but checkpoints, finished or not."""
    names = [path.name for path in folder.iterdir()]
    return all(_FOLDER.fullmatch(n.removeprefix(".").removesuffix(".tmp")) for n in names)


def remove_unfinished(run: Path) -> None:
    """Remove what a killed run left of a checkpoint that it was writing, or removing."""
    for path in (run / CHECKPOINTS).glob(".step-*.tmp"):
        shutil.rmtree(path)


def _check_size(path: Path, saved: SavedFile, hint: str) -> None:
    if not path.is_file():
        raise InputError(f"{path} is not there, the checkpoint was written with it", hint)
    size = path.stat().st_size
    if size != saved.size_bytes:
        raise InputError(f"{path} has {size} bytes, {saved.size_bytes} were written", hint)


def _to_disk(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
