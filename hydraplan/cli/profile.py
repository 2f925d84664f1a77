"""`hydraplan profile`: measure this device, or write a cluster's constants."""

from pathlib import Path
from typing import Annotated

import typer

from hydraplan.cli import options as o

DEFAULT_SECONDS = 60.0
QUICK_SECONDS = 15.0


def profile(
    device: Annotated[str, typer.Option(help="cpu, cuda, or analytic (nothing measured)")],
    model: Annotated[
        str,
        typer.Option(help="built-in model, TOML file, or Hugging Face config.json or its folder"),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="file, *.profile.parquet")],
    cluster: Annotated[
        str | None,
        typer.Option(help="built-in cluster or TOML file; for analytic, and for links on cuda"),
    ] = None,
    attention: o.Attention = None,
    quick: Annotated[bool, typer.Option("--quick", help="spend 15 s instead of 60 s")] = False,
    seconds: Annotated[float | None, typer.Option(help="spend about this long")] = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing file")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
) -> None:
    """Measure attention, linear and link costs on this device, or write an analytic profile.

    Under torchrun every rank measures, and the profile tells slow devices. `profile --refit RUN`
    learns costs from a run instead.
    """
    from hydraplan.config import builtin_names, load_cluster
    from hydraplan.errors import InputError
    from hydraplan.files.parquet import refuse_existing
    from hydraplan.files.profilefile import Measurement, write_profile
    from hydraplan.huggingface import find_model
    from hydraplan.profiler.analytic import analytic_header
    from hydraplan.profiler.report import as_object, as_text

    if device not in ("analytic", "cpu", "cuda"):
        raise InputError(f"--device {device!r} is unknown", "known: analytic, cpu, cuda")
    budget_s = _budget_s(device, quick, seconds)
    if device == "cuda":
        _require_torch(device)
    if device == "cpu" and cluster is not None:
        raise InputError("--cluster has no use with --device cpu", "its links are measured")
    if device == "analytic" and attention is not None:
        raise InputError("--attention has no use with --device analytic", "nothing is timed")
    by_all = device != "analytic" and _is_one_of_many(device)
    if device != "cpu" and cluster is None and not by_all:
        raise InputError(f"--device {device} needs --cluster", _known_clusters())
    shape, notes = find_model(model)
    for note in notes:
        _note(note)
    links = load_cluster(cluster) if cluster is not None else None
    refuse_existing(output, force)
    rows: list[Measurement] = []
    if links is not None and device == "analytic":
        header = analytic_header(links, shape)
        if shape.dtype in ("float32", "float64") and cluster in builtin_names("cluster"):
            _note(f"model dtype is {shape.dtype}; a built-in cluster has the rates of bfloat16")
    else:
        _require_torch(device)
        from hydraplan.executor.profile_parts import ABOVE
        from hydraplan.profiler.all_ranks import profile_all_ranks
        from hydraplan.profiler.profile import profile_cpu, profile_cuda

        asked = budget_s, _note, ABOVE
        kernel = attention or "auto"
        if by_all:
            found = profile_all_ranks(shape, links, device, kernel, *asked)
            if found is None:
                return
            header, rows = found
        elif links is None:
            header, rows = profile_cpu(shape, *asked, kernel)
        else:
            header, rows = profile_cuda(shape, links, *asked, kernel)
    write_profile(output, header, rows)
    typer.echo(as_object(output, header, rows) if as_json else as_text(header, rows))
    _note(f"wrote {output}")


def _is_one_of_many(device: str) -> bool:
    """Whether torchrun started this process, so that every rank measures."""
    _require_torch(device)
    from hydraplan.executor.launch import torchrun_place, under_torchrun

    if not under_torchrun():
        return False
    torchrun_place()
    return True


def _budget_s(device: str, quick: bool, seconds: float | None) -> float:
    from hydraplan.errors import InputError

    if device == "analytic" and (quick or seconds is not None):
        raise InputError("--quick and --seconds have no use with --device analytic")
    if quick and seconds is not None:
        raise InputError("--quick and --seconds exclude each other", "--quick is --seconds 15")
    if seconds is None:
        return QUICK_SECONDS if quick else DEFAULT_SECONDS
    if not 0 < seconds < float("inf"):
        raise InputError(f"--seconds {seconds:g} is not a positive number")
    return seconds


def _known_clusters() -> str:
    from hydraplan.config import builtin_names

    return f"built in: {', '.join(builtin_names('cluster'))}; or a TOML file"


def _require_torch(device: str) -> None:
    from hydraplan.errors import MissingDependency

    hint = "pip install 'hydraplan[torch]', or use --device analytic"
    try:
        import torch
    except ImportError as error:
        raise MissingDependency(f"--device {device} needs torch: {error}", hint) from None
    if device == "cuda" and not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built for CPU"
        raise MissingDependency(
            f"--device cuda needs a CUDA device: torch {torch.__version__} ({built}) finds none",
            "use --device cpu or --device analytic",
        )


def _note(text: str) -> None:
    typer.echo(text, err=True)
