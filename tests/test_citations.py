"""What docs and comments cite lies in the repository."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "hydraplan", "planner", "profiler", "executor", "kernels", "benchmarks", "tests")
SOURCES = [p for folder in FOLDERS for p in sorted((ROOT / folder).glob("**/*.py"))]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/**/*.md")]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_nothing_cites_notes_or_folders_of_the_workplace() -> None:
    outside = re.compile(r"(?<![\w/])(notes/\w+\.md|shared/(data|notes)|/work/)")
    found = {
        relative(path): outside.findall(path.read_text())
        for path in [*SOURCES, *PAGES]
        if path != Path(__file__) and outside.search(path.read_text())
    }
    assert found == {}


def test_pages_named_in_sources_exist() -> None:
    named = {
        (relative(path), page)
        for path in SOURCES
        for page in re.findall(r"`?(docs/[\w-]+\.md)`?", path.read_text())
    }
    assert len(named) > 5
    assert [pair for pair in sorted(named) if not (ROOT / pair[1]).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not re.match(r"https?:", target):
            file, _, _ = target.partition("#")
            assert not file or (page.parent / file).exists(), target
