"""Check one CUDA machine: kernels, rates, predictions, a run; one table, at most 8 minutes.

    scripts/gpu_check [--keep | --out FOLDER]
    scripts/gpu_check --device cpu --quick        # a dry run of the code, tiny sizes

Parts, in order: attention kernels in bfloat16 by the ratio test; a profile of the device; slots of
a plan for 2,048 GPUs replayed one by one against their prediction; FLOP rates; Triton's kernels
against torch's ops; a one-process run of `execute` and `verify`. Each has its share of the budget;
what there was no time for is named in the table. Exit code 0, 1 if any part failed, 2 for wrong
options, 3 without CUDA.
"""

import argparse
import json
import math
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

BEGAN_S = time.monotonic()  # imports count

import torch  # noqa: E402

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / name) for name in ("planner", "prediction")]

import glue_rates  # noqa: E402
import kernel_ratios  # noqa: E402
import own_profile  # noqa: E402
import plan_slots  # noqa: E402
import rates  # noqa: E402
import small_run  # noqa: E402
from budget import Left, Part, Row, is_failed, run_parts  # noqa: E402
from scale import Scale, chosen_scale, cpu_seconds  # noqa: E402
from tables import Table, commit, progress  # noqa: E402

from hydraplan.errors import HydraplanError  # noqa: E402
from hydraplan.profiler import measure  # noqa: E402

SCHEMA_VERSION = 1
PROFILE = "here.profile.parquet"
COLUMNS = ("part", "what", "value", "unit", "verdict", "note")


def main(words: Sequence[str] | None = None) -> int:
    """Run all parts, print the table, keep it where asked; the exit code."""
    parser = argparse.ArgumentParser(description="Check one CUDA machine within 8 minutes.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: a dry run of the code")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--out", type=Path, metavar="FOLDER", help="write table and JSON there")
    place.add_argument("--keep", action="store_true", help="write them to benchmarks/gpu")
    args = parser.parse_args(words)
    folder = HERE if args.keep else args.out
    try:
        scale = chosen_scale(args.device, args.quick)
    except HydraplanError as error:
        print(f"error: {error}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    if not scale.is_cuda:
        torch.set_num_threads(1)
        measure.cpu_timer = cpu_seconds
    with TemporaryDirectory(prefix="hydraplan-") as name:
        made = Path(name)
        parts = parts_of(scale, made)
        rows = run_parts(parts, Left(BEGAN_S + scale.budget_s), part_done)
        text = table_of(scale, rows, args.quick).markdown()
        print(text, flush=True)
        if folder is not None:
            known = about(scale, args.quick) | {"parts": [part.name for part in parts]}
            write(folder, known, rows, text)
            if args.out and (made / PROFILE).exists():
                shutil.copy(made / PROFILE, args.out)
    return int(is_failed(rows))


def part_done(text: str) -> None:
    """Tell it, and give back the memory that torch holds on: another process may need it next."""
    progress(text)
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def parts_of(scale: Scale, folder: Path) -> list[Part]:
    """All parts in order, with their shares of the budget."""
    profile = folder / PROFILE
    parts = (
        (kernel_ratios.PART, "kernels", partial(kernel_ratios.kernel_rows, scale)),
        (own_profile.PART, "profile", partial(own_profile.profile_rows, scale, profile)),
        (plan_slots.PART, "slots", partial(plan_slots.slot_rows, scale, profile, folder)),
        (rates.PART, "rates", partial(rates.rate_rows, scale)),
        (glue_rates.PART, "glue", partial(glue_rates.glue_rows, scale)),
        (small_run.PART, "run", partial(small_run.small_run_rows, scale, folder)),
    )
    return [Part(name, scale.shares_s[share], run) for name, share, run in parts]


def about(scale: Scale, quick: bool) -> dict[str, object]:
    """What ran where, and whether its figures mean anything."""
    return {
        "schema_version": SCHEMA_VERSION,
        "device": scale.device_name,
        "dry_run": quick,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "commit": commit(),
    }


def table_of(scale: Scale, rows: Sequence[Row], quick: bool) -> Table:
    """The one table."""
    known = about(scale, quick)
    title = f"{known['device']}: torch {known['torch']}, commit {known['commit'] or 'unknown'}"
    if quick:
        title += "; a dry run of the code with tiny sizes, whose figures say nothing of any GPU"
    cells = [row._asdict() | {"value": shown(row.value)} for row in rows]
    return Table(title, COLUMNS).of(cells)


def shown(value: float | None) -> str:
    """A figure with four digits, whole numbers in full."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def write(folder: Path, known: Mapping[str, object], rows: Sequence[Row], text: str) -> None:
    """Table and JSON, named after the device; a dry run's files say so."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^a-z0-9]+", "-", str(known["device"]).lower()).strip("-")
    if known["dry_run"]:
        stem = f"dry-run-{stem}"
    (folder / f"{stem}.md").write_text(text + "\n")
    cells = [plain(row._asdict()) for row in rows]
    values = {**known, "failed": is_failed(rows), "rows": cells}
    (folder / f"{stem}.json").write_text(json.dumps(values, indent=1, allow_nan=False) + "\n")


def plain(value: object) -> object:
    """As JSON has it: no number that is none, no number of numpy."""
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    sys.exit(main())
