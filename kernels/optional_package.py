"""Packages that may be there: whether one can be used, and otherwise why not.

The submodule is tried, not the package: flash-attn 2 and flash-attn-4 share the name
`flash_attn`, flash-attn 2.8.3 itself ships an old copy of `flash_attn.cute`, and an older one
hides the new. So the installed distribution is asked for its version first, then the module is
imported and asked for the functions that are called.

Only imports; whether the functions compute right is for the caller to try.
"""

import re
import sys
from importlib import import_module, metadata
from typing import NamedTuple

from hydraplan.errors import first_line


class Package(NamedTuple):
    """A distribution, the module used of it, its functions, and versions from, and below which.

    `extra`: the extra of hydraplan that installs it.
    """

    distribution: str
    module: str
    functions: tuple[str, ...]
    lowest: str
    below: str
    extra: str


def why_absent(package: Package) -> str:
    """Why the module cannot be used; empty if it can."""
    name = package.distribution
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"{name} is not installed (extra {package.extra})"
    release = _order(version)[:3]
    if _order(version) < _order(package.lowest) or release >= _order(package.below)[:3]:
        return f"{name} {version} is installed, not {package.lowest} or later below {package.below}"
    try:
        module = import_module(package.module)
    except ModuleNotFoundError as error:
        root = package.module.partition(".")[0]
        place = getattr(sys.modules.get(root), "__file__", None)
        if place and f"{package.module}.".startswith(f"{error.name}."):
            return f"{name} {version} is hidden by another {root}, {place}: {error}"
        return f"{name} {version} lacks a module: {error}"
    except ImportError as error:
        if "undefined symbol" in str(error):
            return f"{name} {version} meets a library built for another torch: {first_line(error)}"
        return f"{name} {version} cannot be imported: {first_line(error)}"
    # whatever else a package does where driver, device or build do not fit is its reason
    except Exception as error:
        return f"{name} {version} cannot be imported: {type(error).__name__}: {first_line(error)}"
    missing = [function for function in package.functions if not hasattr(module, function)]
    if missing:
        return f"{name} {version} has no {', '.join(missing)} in {package.module}"
    return ""


def _order(version: str) -> tuple[float, ...]:
    """Key that sorts versions: three numbers, then alpha, beta, candidate or release."""
    found = re.match(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:(a|b|rc)(\d+))?", version)
    if found is None:
        return (-1.0,)
    *release, stage, number = found.groups()
    numbers = [float(part or 0) for part in release]
    return (*numbers, {"a": 0.0, "b": 1.0, "rc": 2.0, None: 3.0}[stage], float(number or 0))
