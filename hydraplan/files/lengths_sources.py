"""Sequence lengths from what a command line names: files, globs, folders, stdin, mixes.

A glob and a folder stand for their files sorted by name: a folder for those of one kind, told by
their suffix, without its subfolders; a saved dataset of Hugging Face for the files it names.
`-` is stdin, kept in a temporary file so that its kind can be told by its first bytes.
"""

import shutil
import sys
import tempfile
from collections.abc import Sequence
from glob import glob
from pathlib import Path

import numpy as np

from hydraplan.errors import InputError, printable
from hydraplan.files.lengths import SUFFIXES, Kind, Lengths, read_lengths, refuse_unknown
from hydraplan.files.lengths_arrow import SPLITS, STATE, saved_files
from hydraplan.files.lengths_columns import MAX_TOTAL_TOKENS
from hydraplan.files.lengths_synthetic import PREFIX, draw
from hydraplan.files.megatron_idx import Unit

STDIN = "-"

_IN_FOLDERS: dict[str, Kind] = {**SUFFIXES, ".csv": "text", ".txt": "text"}


def read_sources(
    sources: Sequence[str], unit: Unit = "sequences", tokenizer: Path | None = None
) -> Lengths:
    """Read all sources, in their order; what `read_lengths` says of one file holds for each.

    Raises:
        InputError: A source stands for no file, or a file is refused.
    """
    found = [_read_source(source, unit, tokenizer) for source in sources]
    if len(found) == 1:
        return found[0]
    return _joined(f"{found[0].name} and {len(found) - 1} more", unit, found)


def _read_source(source: str, unit: Unit, tokenizer: Path | None) -> Lengths:
    if source == STDIN:
        return _read_stdin(unit, tokenizer)
    if source.startswith(PREFIX):
        refuse_unknown(source, "synthetic", unit, tokenizer)
        name, length_tokens, origin = draw(source)
        return Lengths(name, unit, length_tokens, origin)
    name = printable(Path(source).resolve().name)
    found = [read_lengths(path, unit, tokenizer) for path in files_of(source)]
    return _joined(name, unit, found)


def _joined(name: str, unit: Unit, found: list[Lengths]) -> Lengths:
    length_tokens = np.concatenate([each.length_tokens for each in found])
    if length_tokens.sum(dtype=np.float64) >= MAX_TOTAL_TOKENS:
        raise InputError(f"files of {name} sum to more than {MAX_TOTAL_TOKENS} tokens")
    origins = dict.fromkeys(each.source for each in found if each.source)
    return Lengths(name, unit, length_tokens, "; ".join(origins))


def files_of(source: str) -> list[Path]:
    """The files a path, a glob or a folder stands for; a path that is not there is itself.

    Raises:
        InputError: A glob finds nothing, a folder holds no length files, or several kinds.
    """
    path = Path(source)
    if path.is_dir():
        return _files_in(path)
    if path.exists() or not set("*?[") & set(source):
        return [path]
    paths = sorted(Path(found) for found in glob(source))
    if not paths:
        raise InputError(f"no file matches {source}", "check the pattern, and the folder it is in")
    return paths


def _files_in(folder: Path) -> list[Path]:
    if (folder / STATE).is_file() or (folder / SPLITS).is_file():
        return saved_files(folder)
    try:
        every = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise InputError(f"folder {folder} cannot be read: {error.strerror}") from None
    paths = [p for p in every if p.suffix in _IN_FOLDERS and not p.name.startswith((".", "_"))]
    if not paths:
        raise InputError(
            f"folder {folder} holds no length files",
            f"their names end in {', '.join(_IN_FOLDERS)}; a glob takes others",
        )
    kinds = {_IN_FOLDERS[p.suffix]: p.name for p in paths}
    if len(kinds) > 1:
        raise InputError(
            f"folder {folder} holds files of several kinds:"
            f" {printable(', '.join(sorted(kinds.values())))}",
            "name those that are meant, as a glob",
        )
    return paths


def _read_stdin(unit: Unit, tokenizer: Path | None) -> Lengths:
    with tempfile.NamedTemporaryFile(prefix="hydraplan-stdin-") as kept:
        shutil.copyfileobj(sys.stdin.buffer, kept)
        kept.flush()
        try:
            found = read_lengths(Path(kept.name), unit, tokenizer)
        except InputError as error:
            raise InputError(str(error).replace(kept.name, "stdin"), error.hint) from None
    return Lengths("stdin", unit, found.length_tokens)
