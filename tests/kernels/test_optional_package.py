"""Why a package cannot be used, with real folders on the path: every way in which it fails."""

import importlib
import sys

import pytest

from hydraplan.kernels import flash2, flash4
from hydraplan.kernels.optional_package import Package, why_absent

FLASH2, FLASH4 = flash2.PACKAGE, flash4.PACKAGE
WORKING2 = "def _flash_attn_varlen_forward(): ...\ndef _flash_attn_varlen_backward(): ...\n"
WORKING4 = "def _flash_attn_fwd(): ...\ndef _flash_attn_bwd(): ...\n"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Make folders of installed packages, first in the path; text of files by name."""
    before = set(sys.modules)

    def install(folder, files, **versions):
        for name, text in files.items():
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for name, version in versions.items():
            info = tmp_path / folder / f"{name}-{version}.dist-info"
            info.mkdir(parents=True)
            named = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
            (info / "METADATA").write_text(named)
        monkeypatch.syspath_prepend(tmp_path / folder)
        importlib.invalidate_caches()
        return tmp_path / folder

    yield install
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "flash_attn":
            del sys.modules[name]


def test_both_packages_in_one_folder_work(site):
    site(
        "site",
        {
            "flash_attn/__init__.py": "",
            "flash_attn/flash_attn_interface.py": WORKING2,
            "flash_attn/cute/__init__.py": "",
            "flash_attn/cute/interface.py": WORKING4,
        },
        flash_attn="2.8.3.post2",
        flash_attn_4="4.0.0b36",
    )
    assert why_absent(FLASH2) == why_absent(FLASH4) == ""


def test_flash_attn_4_works_alone(site):
    site("site", {"flash_attn/cute/interface.py": WORKING4}, flash_attn_4="4.0.0b36")
    assert why_absent(FLASH4) == ""
    assert why_absent(FLASH2) == "flash-attn is not installed (extra fa2)"


def test_the_copy_of_cute_in_flash_attn_2_is_not_taken_for_flash_attn_4(site):
    site(
        "site",
        {
            "flash_attn/__init__.py": "",
            "flash_attn/flash_attn_interface.py": WORKING2,
            "flash_attn/cute/interface.py": WORKING4,
        },
        flash_attn="2.8.3",
    )
    assert why_absent(FLASH2) == ""
    assert why_absent(FLASH4) == "flash-attn-4 is not installed (extra fa4)"


def test_an_older_flash_attn_that_hides_the_new_one_is_named_with_its_place(site):
    site("behind", {"flash_attn/cute/interface.py": WORKING4}, flash_attn_4="4.0.0b36")
    front = site(
        "front",
        {"flash_attn/__init__.py": "", "flash_attn/flash_attn_interface.py": WORKING2},
        flash_attn="2.8.3",
    )
    assert why_absent(FLASH4) == (
        f"flash-attn-4 4.0.0b36 is hidden by another flash_attn, {front}/flash_attn/__init__.py:"
        " No module named 'flash_attn.cute'"
    )
    assert why_absent(FLASH2) == ""


def test_a_library_built_for_another_torch_is_told(site):
    broken = "raise ImportError('flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda\\nmore')"
    site(
        "site",
        {
            "flash_attn/__init__.py": "from . import flash_attn_interface",
            "flash_attn/flash_attn_interface.py": broken,
            "flash_attn/cute/interface.py": WORKING4,
        },
        flash_attn="2.8.3",
        flash_attn_4="4.0.0b36",
    )
    meets = "meets a library built for another torch: flash_attn_2_cuda.so: undefined symbol: "
    assert why_absent(FLASH2) == f"flash-attn 2.8.3 {meets}_ZN3c104cuda"
    assert why_absent(FLASH4) == f"flash-attn-4 4.0.0b36 {meets}_ZN3c104cuda"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_module_6", "lacks a module: No module named 'no_such_module_6'"),
        ("raise ImportError('libcudart.so.12: cannot open shared object file')",
         "cannot be imported: libcudart.so.12: cannot open shared object file"),
        ("raise RuntimeError('no driver\\nat all')", "cannot be imported: RuntimeError: no driver"),
        ("raise OSError", "cannot be imported: OSError: OSError"),
        ("def _flash_attn_fwd(): ...",
         "has no _flash_attn_bwd in flash_attn.cute.interface"),
    ],
)  # fmt: skip
def test_whatever_an_import_raises_is_the_reason(text, reason, site):
    site("site", {"flash_attn/cute/interface.py": text}, flash_attn_4="4.0.0b36")
    assert why_absent(FLASH4) == f"flash-attn-4 4.0.0b36 {reason}"


def test_an_installation_without_its_module_is_told(site):
    site("site", {"other/__init__.py": ""}, flash_attn_4="4.0.0b36")
    assert (
        why_absent(FLASH4) == "flash-attn-4 4.0.0b36 lacks a module: No module named 'flash_attn'"
    )


@pytest.mark.parametrize(
    ("version", "works"),
    [("1.2", False), ("1.2.3", True), ("1.2.3.post4+cu12", True), ("1.2.3rc1", False),
     ("1.10.0", True), ("2.0.0a1", False), ("2.0.0", False), ("2", False), ("nightly", False)],
)  # fmt: skip
def test_versions_are_ordered_as_numbers(version, works, site):
    package = Package("flash-attn-4", "flash_attn.cute", ("f",), "1.2.3", "2", "fa4")
    site("site", {"flash_attn/cute/__init__.py": "f = 0"}, flash_attn_4=version)
    told = f"flash-attn-4 {version} is installed, not 1.2.3 or later below 2"
    assert why_absent(package) == ("" if works else told)
