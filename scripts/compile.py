#!/usr/bin/env python3
"""Compiles the proxy's request path to C extensions with mypyc. This is optional: the sources run without it.

    scripts/compile.py [FOLDER]                  makes a copy of the packages with extensions (default: build/compiled)
    PYTHONPATH=build/compiled warmroute proxy    runs the copy; `warmroute --version` says `compiled`
    scripts/compile.py --check FOLDER            checks that a compiled copy has the structures of the sources

The sources stay unchanged. Extensions are not written beside the sources, since Python would load them in place of an
edited source. `WARMROUTE_COMPILE=1 pip install .` puts the extensions into a wheel (`hatch_build.py`).
`MYPYC_OPT_LEVEL` is the C compiler's `-O`, 2 unless it is set.

The modules of `MODULES` are compiled, since a request spends its time there. docs/decisions/013-compiled.md says which
modules can be compiled, and why others were left out. mypyc silently drops the options of a msgspec structure, and
annotations of more than a name, which msgspec needs for decoding. So after a build, all structures of the compiled
modules and the types of their decoders are compared with those of the sources.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGES: Final = (
    "sdk/warmroute",
    "proxy/warmroute_proxy",
    "proxy/warmroute_cli",
    "backend/warmroute_backend",
    "lab/warmroute_lab",
)
SLOTS: Final = ROOT / "scripts" / "slots.h"
JOBS: Final = len(os.sched_getaffinity(0))
NAME: Final = "warmroute_proxy.native"  # the library with the code; `proxy/warmroute_proxy/__init__.py` looks for it
LIBRARIES: Final = ("httptools", "msgspec", "xxhash")
"""The libraries that the modules import. A build needs no other library."""

_MYPY: Final = f"""
[mypy]
strict = true
mypy_path = sdk:proxy
explicit_package_bases = true
namespace_packages = true
follow_imports = skip

[mypy-{",".join(f"{name}.*" for name in ("warmroute", "warmroute_proxy", *LIBRARIES))}]
follow_imports = silent
"""
"""mypy's configuration. It skips libraries that the modules do not import: mypy then reads 500 of 3,600 files, and the
C code is the same."""

_COMPILED: Final = {
    "core/accounting": "entry_steps losses receipt usage",
    "core/cache": "affinity index occupancy residents return_times tiers",
    "core/load": "ahead availability comparison load pace prefill_rate suspects traffic",
    "core/placement": "accuracy choices costs fleet_state histories in_flight listener matched_prompt"
    " placement prices router ticket working_set",
    "core/prompt": "bytes_per_token fingerprint",
    "core/queue": "fair_budget memory_wait retry_budget",
    "core/replicas": "replica",
    "server": "arrival authentication endpoint",
    "server/engines": "engine engine_headers engines leg passthrough small_get sse upstream",
    "server/http": "body_memory exchange header_lines http1 incoming_body listener open_connections request_reader"
    " request_starts",
    "server/intake": "body body_fields body_template caller intake request_parser known_body",
    "server/ledger": "journal ledger",
    "server/tracing": "traced_request",
    "server/request": "answer attempt client_answer deadlines dispatch forwarding inference_request"
    " placing prefill_leg request_metrics settlement states",
}
"""Package below `proxy/warmroute_proxy` -> names of its modules that are compiled."""

MODULES: Final = tuple(
    f"proxy/warmroute_proxy/{room}/{name}.py" for room, names in _COMPILED.items() for name in names.split()
)


def extensions(folder: Path, modules: Sequence[str] = MODULES, name: str = NAME) -> dict[str, Path]:
    """Compile the modules. Returns the extensions by their paths in a wheel.

    `folder`: for the extensions and all intermediate files. `name`: the name of the library that holds the code.
    """
    from mypyc.build import mypycify
    from setuptools import Distribution

    _look_for_compiler()
    os.chdir(ROOT)  # paths in mypy's configuration are relative to it
    config = folder / "mypy.ini"
    config.write_text(_MYPY)
    made = mypycify(
        ["--config-file", str(config), *modules],
        opt_level=os.environ.get("MYPYC_OPT_LEVEL", "2"),
        debug_level="0",
        multi_file=True,  # GCC needs five times as long for a single file
        target_dir=str(folder / "c"),
        group_name=name,
    )
    for extension in made:
        # mypyc 2.4 forgets this folder if the name has a dot
        extension.include_dirs.append(str(folder / "c" / name.partition(".")[0]))
        if len(extension.sources) > 1:  # the library; other extensions only look a module up in it
            more = ["-fvisibility=hidden", "-include", str(SLOTS)]
            extension.extra_compile_args = [*extension.extra_compile_args, *more]
    with ThreadPoolExecutor(JOBS) as pool:
        build = _builder(pool)(Distribution({"name": "warmroute", "ext_modules": made}))
        build.build_lib, build.build_temp = str(folder / "lib"), str(folder / "tmp")
        build.parallel = JOBS
        build.ensure_finalized()
        build.run()
    return {path.relative_to(folder / "lib").as_posix(): path for path in (folder / "lib").rglob("*.so")}


def _look_for_compiler() -> None:
    """Exit with a message that says what to install, if the compiler or Python's headers are missing."""
    compiler = (sysconfig.get_config_var("CC") or "gcc").split()[0]
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if shutil.which(os.environ.get("CC", compiler).split()[0]) is None:
        sys.exit(f"compiling needs a C compiler: {compiler} is not there; install the package gcc")
    if not headers.exists():
        version = ".".join(map(str, sys.version_info[:2]))
        sys.exit(f"compiling needs Python's headers: {headers} is not there; install the package python{version}-dev")


def _builder(pool: ThreadPoolExecutor) -> Any:
    """A builder of extensions that compiles several C files at a time, one on each processor."""
    from setuptools.command.build_ext import build_ext

    class Builder(build_ext):  # type: ignore[misc]
        def build_extensions(self) -> None:
            one_by_one = self.compiler.compile

            def compile_all(sources: list[str], **options: Any) -> list[str]:
                runs = [pool.submit(one_by_one, [source], **options) for source in sources]
                return [path for run in runs for path in run.result()]

            self.compiler.compile = compile_all
            super().build_extensions()

    return Builder


def compiled_copy(target: Path) -> None:
    """Copy the packages with the extensions to a folder, which is emptied before."""
    with tempfile.TemporaryDirectory(prefix="warmroute-compile-") as folder:
        made = extensions(Path(folder))
        shutil.rmtree(target, ignore_errors=True)
        for package in PACKAGES:
            shutil.copytree(
                ROOT / package, target / Path(package).name, ignore=shutil.ignore_patterns("__pycache__", "*.so")
            )
        for place, path in made.items():
            shutil.copy(path, target / place)
    check(target)


def check(compiled: Path) -> None:
    """Exit with a message about the differences, if structures of a compiled copy differ from those of the sources."""
    ours, theirs = structures(ROOT / "sdk", ROOT / "proxy"), structures(compiled)
    if ours != theirs:
        different = [name for name in ours if theirs.get(name) != ours[name]]
        sys.exit(f"compiled structures differ from those of the sources: {', '.join(different)}")


def structures(*folders: Path) -> dict[str, str]:
    """Fields, defaults and options of all structures of the modules, and what their decoders decode, as seen by a new
    process that imports the modules from `folders`."""
    command = [sys.executable, __file__, "--structures", *map(str, folders)]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def _print_structures(folders: Sequence[str]) -> None:
    sys.path[:0] = folders
    import importlib

    import msgspec
    import msgspec.inspect

    found = {}
    for path in MODULES:
        name = ".".join(Path(path).with_suffix("").parts[1:])
        for variable, kind in vars(importlib.import_module(name)).items():
            decoder = getattr(kind, "__self__", kind)
            if isinstance(decoder, msgspec.json.Decoder | msgspec.msgpack.Decoder):
                shape = repr(msgspec.inspect.type_info(decoder.type))
                found[f"{name}.{variable}"] = re.sub(r" at 0x[0-9a-f]+", "", shape)
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == name:
                config = kind.__struct_config__
                options = {each: getattr(config, each) for each in dir(config) if each[0] != "_"}
                found[f"{name}.{kind.__name__}"] = repr((kind.__struct_fields__, kind.__struct_defaults__, options))
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "compiled")
    parser.add_argument("--check", action="store_true", help="compare a compiled copy with the sources, make none")
    parser.add_argument("--structures", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    if asked.structures:
        _print_structures(asked.structures)
    elif asked.check:
        check(folder)
    else:
        compiled_copy(folder)
        print(f"PYTHONPATH={asked.folder} runs it")


if __name__ == "__main__":
    main()
