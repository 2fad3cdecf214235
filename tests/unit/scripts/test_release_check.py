"""`scripts/release_check.py` names what is wrong with the files of a release."""

import tarfile
import zipfile
from pathlib import Path

import pytest
from scripts.release_check import NATIVE, PACKAGES, VERSION, problems, version_problems

METADATA = f"Metadata-Version: 2.4\nName: warmroute\nVersion: {VERSION}\n\n[sdk](https://example.org/sdk.md)\n"
OF_THE_SDIST = ("pyproject.toml", "hatch_build.py", "scripts/compile.py", "scripts/slots.h", "README.md", "LICENSE")


def wheel(folder: Path, tag: str, *more: str, metadata: str = METADATA) -> None:
    with zipfile.ZipFile(folder / f"warmroute-{VERSION}-{tag}.whl", "w") as file:
        file.writestr(f"warmroute-{VERSION}.dist-info/METADATA", metadata)
        for name in (*(f"{package}/py.typed" for package in PACKAGES), *more):
            file.writestr(name, "")


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """A release that has its sdist and its pure wheel."""
    empty = tmp_path / "empty"
    empty.touch()
    (folder := tmp_path / "dist").mkdir()
    with tarfile.open(folder / f"warmroute-{VERSION}.tar.gz", "w:gz") as file:
        for name in OF_THE_SDIST:
            file.add(empty, f"warmroute-{VERSION}/{name}")
    wheel(folder, "py3-none-any")
    return folder


def test_a_release_with_both_wheels_is_sound(dist: Path) -> None:
    wheel(dist, "cp311-cp311-manylinux_2_28_x86_64", f"{NATIVE}.so")
    assert list(problems(dist)) == []


def test_a_wheel_that_should_be_compiled_and_is_not_is_named(dist: Path) -> None:
    wheel(dist, "cp311-cp311-manylinux_2_28_x86_64")
    assert [each.partition(": ")[2] for each in problems(dist)] == ["it should be compiled, and has no extension"]


def test_a_link_into_the_checkout_is_named(dist: Path) -> None:
    wheel(dist, "cp311-cp311-musllinux_1_2_aarch64", f"{NATIVE}.so", metadata=METADATA + "[more](docs/sdk.md)\n")
    assert [each.partition(": ")[2] for each in problems(dist)] == [
        "its README has a link into the checkout: docs/sdk.md"
    ]


def test_a_release_without_a_compiled_wheel_is_named(dist: Path) -> None:
    assert len(list(problems(dist))) == 1


def test_a_tag_needs_the_day_of_the_release() -> None:
    citation = f"cff-version: 1.2.0\nversion: {VERSION}\n"
    waiting, released = f"## [{VERSION}] - unreleased\n", f"## [{VERSION}] - 2026-12-01\n"
    assert list(version_problems(waiting, citation, tagged=False)) == []
    assert len(list(version_problems(waiting, citation, tagged=True))) == 1
    assert list(version_problems(released, citation, tagged=True)) == []
    assert len(list(version_problems("## [Unreleased]\n", "version: 0.0.1\n", tagged=False))) == 2
