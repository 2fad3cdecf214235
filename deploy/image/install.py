"""Fills the image's environment: pinned packages by their hashes, then the compiled wheel of this Python.

Called while the image is built, as `install.py ENVIRONMENT FOLDER`; needs nothing but Python and its module venv.
Bytecode is made for all of it, without times in it, so that two builds give the same bytes.
"""

import compileall
import os
import py_compile
import re
import shutil
import struct
import subprocess
import sys
import venv
from pathlib import Path

AFTERWARDS = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
"""What the image does without: all that `venv` installs."""

SOURCES = (".c", ".h", ".pxd", ".pyi", ".pyx")
"""Endings of files that only compilers and type checkers read."""

SELDOM = re.compile(r"/site-packages/(openai|pygments)/")
"""The proxy imports none of these: bytecode of them would be a tenth of the image."""


def main(environment: Path, build: Path) -> None:
    """Install everything."""
    venv.create(environment, with_pip=True, symlinks=True)
    pip = [environment / "bin/python", "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", "--quiet"]
    install = [*pip, "install", "--no-compile", "--no-deps"]
    subprocess.run([*install, "--require-hashes", "--requirement", build / "requirements.txt"], check=True)
    subprocess.run([*install, _compiled_wheel(build / "dist")], check=True)
    subprocess.run([*pip, "check"], check=True)
    packages = next(environment.glob("lib/python3*/site-packages"))
    for name in AFTERWARDS:
        for folder in (*packages.glob(name), *packages.glob(f"{name}-*.dist-info")):
            shutil.rmtree(folder)
    for path in (*environment.glob("bin/pip*"), *packages.glob("distutils-precedence.pth")):
        path.unlink()
    _slim(packages)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    if not compileall.compile_dir(packages, quiet=1, rx=SELDOM, invalidation_mode=mode):
        raise SystemExit("some packages could not be compiled")
    for name in ("state", "etc"):
        (build / name).mkdir()
    for folder in (environment, build):
        for path in (*folder.rglob("*"), folder):
            os.utime(path, (0, 0), follow_symlinks=False)  # the image's history has a digest that times are part of


def _slim(packages: Path) -> None:
    for folder in (*packages.rglob("__pycache__"), *packages.glob("*/tests"), *packages.glob("*/testing")):
        shutil.rmtree(folder, ignore_errors=True)
    for path in packages.rglob("*"):
        if path.suffix in SOURCES:
            path.unlink()
        elif ".so" in path.suffixes and path.is_file():
            _strip(path)


def _strip(library: Path) -> None:
    """Cut off what stands behind the segments of a 64-bit ELF file, as `sstrip` does: symbols and what debuggers read,
    half of all libraries. A loader reads segments only (System V ABI, chapter 5), and slim images have no `strip`.
    """
    content = bytearray(library.read_bytes())
    if content[:6] != b"\x7fELF\x02\x01":  # 64 bits, little-endian
        return
    (table,), (size, count) = struct.unpack_from("<Q", content, 32), struct.unpack_from("<HH", content, 54)
    ends = [table + size * count]
    for at in range(table, ends[0], size):
        offset, _, _, in_file = struct.unpack_from("<4Q", content, at + 8)
        ends.append(offset + in_file)
    struct.pack_into("<Q", content, 40, 0)  # no table of sections
    struct.pack_into("<HH", content, 60, 0, 0)
    library.write_bytes(content[: max(ends)])


def _compiled_wheel(dist: Path) -> Path:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    found = sorted(dist.glob(f"warmroute-*-{tag}-{tag}-*.whl"))
    if len(found) != 1:
        raise SystemExit(f"dist/ has {len(found)} compiled wheels for this Python ({tag}): run scripts/release")
    return found[0]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
