"""The page from a plan to traffic: each command is run, with embedded engines in place of SGLang.

There is no cluster here: a stand-in for kubectl checks the manifests by Kubernetes' schemas, and runs an embedded
engine for each pod that they ask for, by the launcher.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.machine import seconds
from tests.subjects import patient
from tests.subjects.checkout import ROOT, blocks, warmroute_in
from tests.subjects.ports import free_ports

pytestmark = pytest.mark.full

PAGE = (ROOT / "docs/how-to/eight-gpus.md").read_text()

KUBECTL = """\
import json, pathlib, subprocess, sys, time
from kubernetes_validate import validate
LAUNCH = [{python!r}, "-m", {module!r}, "launch"]
PODS = ["--state-dir", "pods"]
words = sys.argv[1:]
if words[0] == "apply":
    sets = []
    for path in sorted(pathlib.Path(words[2]).glob("*.json")):
        manifest = json.loads(path.read_text())
        if manifest["kind"] == "LeaderWorkerSet":
            sets.append(manifest["metadata"]["name"])
        else:
            validate(manifest, "1.33", strict=True)
        print(manifest["kind"], manifest["metadata"]["name"], "created")
    assert sets == ["decode", "prefill"], sets
    with open("pods.log", "w") as log:
        subprocess.Popen([*LAUNCH, "deployment/plan.toml", "--engine", "embedded", "--proxy-config",
                          "deployment/proxy.toml", *PODS], stdout=log, stderr=log, start_new_session=True)
elif words[0] == "wait":
    end_s = time.monotonic() + {limit_s}
    while time.monotonic() < end_s:
        if subprocess.run([*LAUNCH, "status", *PODS], capture_output=True).returncode == 0:
            sys.exit(0)
    sys.exit(pathlib.Path("pods.log").read_text())
else:
    sys.exit(subprocess.run([*LAUNCH, "status", *PODS]).returncode)
"""


def ported(script: str, ports: list[int]) -> str:
    """The script with ports that are free, in the plan and in the configuration of the proxy."""
    http, admin = ports[:2]
    script = script.replace("127.0.0.1:8000", f"127.0.0.1:{http}").replace("127.0.0.1:8001", f"127.0.0.1:{admin}")
    plan = "".join(f"s/^{key} = {old}$/{key} = {new}/; " for (key, old), new in zip(DEFAULTS, ports[2:], strict=True))
    change = f"sed -i '{plan}' deployment/plan.toml\n"
    after = (
        f"sed -i 's/^port = 8000/port = {http}/; s/^admin_port = 8001/admin_port = {admin}/' deployment/proxy.toml\n"
    )
    return script.replace("warmroute plan --check", f"{change}warmroute plan --check").replace(
        "openssl rand", f"{after}openssl rand"
    )


DEFAULTS = (
    ("http", 30000), ("bootstrap", 8998), ("distributed", 20000), ("kv_events", 5557), ("kv_replay", 5657),
    ("http", 30001), ("bootstrap", 8999), ("distributed", 20001), ("kv_events", 5558), ("kv_replay", 5658),
)  # fmt: skip


@pytest.mark.nightly
@pytest.mark.timeout(180)
def test_each_command_runs_with_embedded_engines(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    warmroute_in(folder, patient.MODULE)
    kubectl = KUBECTL.format(python=sys.executable, module=patient.MODULE, limit_s=seconds(60))
    (folder / "kubectl").write_text(f"#!{sys.executable}\n{kubectl}")
    (folder / "kubectl").chmod(0o755)
    script = "".join(blocks(PAGE, "sh")).replace("ENGINE=sglang", "ENGINE=embedded")
    assert script.count("ENGINE=embedded") == 1
    environment = {**patient.environment(), "PATH": f"{folder}:{os.environ['PATH']}"}
    try:
        done = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", ported(script, free_ports(12))],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=seconds(120),
        )  # fmt: skip
    finally:
        for state in (".warmroute/launch", "pods"):
            stop = [sys.executable, "-m", "warmroute_cli.main", "launch", "stop", "--state-dir", state]
            subprocess.run(stop, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert '"warmroute":{' in done.stdout, "the answer has its receipt"
    assert re.search(r'"cached":\{"device":\d+', done.stdout)
    assert "decode-0: ready" in done.stdout
    assert '"raised":[]' in done.stdout
    assert "nothing runs" in done.stdout
    assert "LeaderWorkerSet prefill created" in done.stdout
