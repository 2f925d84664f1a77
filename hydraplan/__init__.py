"""hydraplan: profile, plan and execute dynamic context parallelism on pipelines."""

from hydraplan.version import __version__

__all__ = ["__version__", "load_plan"]


def __getattr__(name: str) -> object:
    """Load `load_plan` on first use, so that `import hydraplan` imports nothing heavy."""
    if name == "load_plan":
        from hydraplan.files.planfile import load_plan

        return load_plan
    raise AttributeError(f"module 'hydraplan' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Names of the module, those not loaded yet too."""
    return sorted({*globals(), *__all__})
