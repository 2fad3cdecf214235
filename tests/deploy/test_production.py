"""docs/how-to/production.md, followed as far as that goes without a cluster and where systemd does not run."""

import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.unit.plan.plans import kind
from warmroute_backend.plan.choose import RANK_PORTS, REPLAY_PORT
from warmroute_backend.plan.files import deployment_files
from warmroute_proxy.server.base.config import TracingConfig
from warmroute_proxy.server.main import serve

from .charts import CHART, Rendered, accepted, notes, render, render_with
from .container import IMAGE, ROOT

PAGE = (ROOT / "docs/how-to/production.md").read_text()
DIGEST = "5" * 64
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def commands(language: str) -> Iterator[list[str]]:
    """The words of each command in blocks of this language."""
    for block in re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            for part in line.split(" && "):
                if words := shlex.split(part, comments=True):
                    yield words


SHOWN = [*commands("sh"), *commands("text")]


def of(program: str, *words: str) -> list[list[str]]:
    return [each for each in SHOWN if each[: len(words) + 1] == [program, *words]]


def test_the_image_is_built_by_what_the_page_says() -> None:
    """The set-up of these tests runs the same (`scripts/deploy`), so each of these commands has just worked."""
    set_up = (ROOT / "scripts/deploy").read_text() + (ROOT / "scripts/compiled-tests").read_text()
    for words in commands("sh"):
        assert " ".join(words) in set_up
    assert of("scripts/image", "install")
    assert of("scripts/image", "build")


def test_the_table_of_the_image_is_true() -> None:
    containerfile = (ROOT / "Containerfile").read_text()
    assert "USER 65532:65532" in containerfile
    for path in ("/var/lib/warmroute", "/etc/warmroute/warmroute.toml"):
        assert f"`{path}`" in PAGE
        assert path in containerfile


def installed(words: list[str], folder: Path) -> Rendered:
    """What `helm install NAME CHART ...` would send to the cluster."""
    assert (ROOT / words[3]).resolve() == CHART
    pairs = [word.replace("DIGEST", DIGEST) for word in options(words, "--set")]
    return render_with(words[2], pairs, [folder / name for name in options(words, "--values")])


def options(words: list[str], name: str) -> list[str]:
    return [words[at + 1] for at, word in enumerate(words) if word == name]


def checked(found: Rendered, folder: Path) -> int:
    """What `warmroute proxy --check` returns for the config of a release."""
    secret = folder / "secret"
    if not secret.exists():
        secret.write_text("5" * 64)
        secret.chmod(0o400)
    config = folder / "warmroute.toml"
    text = found.config().replace("/etc/warmroute-secrets/fleet/secret", str(secret))
    config.write_text(text.replace("/var/lib/warmroute", str(folder)))
    return serve(str(config), True, None)


def examples() -> list[dict[str, Any]]:
    """The values that the page shows: those of every release, and those that it adds for a database and Prometheus."""
    found = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return [yaml.safe_load(each.replace("DIGEST", DIGEST).replace(f"ADMIN_{DIGEST}", DIGEST)) for each in found]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where `warmroute plan --out deployment` was run."""
    for path, text in deployment_files(kind("inside a node"), "model", "").items():
        (tmp_path / "deployment" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "deployment" / path).write_text(text)
    (tmp_path / "values.yaml").write_text(json.dumps(examples()[0]))
    (tmp_path / "key.txt").write_text(f'API key:\n  wr-{"6" * 32}\n  key_sha256 = ["{DIGEST}"]\n')
    (edit,) = of("sed", "-i")
    command = re.search(r"^sed -i .*$", PAGE, re.MULTILINE)
    assert command
    assert any(edit[-1] in options(words, "--values") for words in of("helm", "install"))
    subprocess.run(["bash", "-euc", command[0]], cwd=tmp_path, check=True)
    return tmp_path


def test_each_installation_renders_and_names_the_secret_that_the_page_makes(folder: Path) -> None:
    (rotated,) = (words for words in of("kubectl", "create", "secret", "generic") if "--dry-run=client" in words)
    fleet = [words for words in of("kubectl", "create", "secret", "generic") if words[4] == rotated[4]]
    secrets = {tuple(options(words, "--namespace")): words for words in fleet if words != rotated}
    installations = of("helm", "install")
    assert len(installations) == 3
    for words in installations:
        secret = secrets[tuple(options(words, "--namespace"))]
        (literal,) = (word for word in secret if word.startswith("--from-literal="))
        name, key = secret[4], literal.split("=")[1]
        assert rotated[4:6] == [name, f"--from-file={key}=secret.a"]
        found = installed(words, folder)
        assert not found.refused
        mounts = [each["secret"] for each in found.pod()["volumes"] if "secret" in each]
        assert mounts[0]["secretName"] == name
        assert mounts[0]["items"] == [{"key": key, "path": "secret"}]


def test_a_release_with_a_database_and_prometheus_has_the_secrets_and_values_of_the_page() -> None:
    first, added = examples()
    assert not first.keys() & added.keys(), "what is added would replace what stands there"
    found = accepted(first | added)
    assert {"Job", "ServiceMonitor", "PrometheusRule"} <= found.kinds()
    assert tomllib.loads(found.config())["proxy"]["admin_key_sha256"] == DIGEST
    made = {}
    for words in of("kubectl", "create", "secret", "generic"):
        given = next(word for word in words if word.startswith(("--from-literal=", "--from-file=")))
        made[words[4]] = given.split("=")[1]
    pods = found.pod()["volumes"] + found.one("Job", "east-warmroute-migrate")["spec"]["template"]["spec"]["volumes"]
    mounted = [each["secret"] for each in pods if "secret" in each]
    assert {(each["secretName"], item["key"]) for each in mounted for item in each["items"]} <= made.items()
    credentials = found.one("ServiceMonitor")["spec"]["endpoints"][0]["authorization"]["credentials"]
    assert (credentials["name"], credentials["key"]) in made.items()


def test_the_kind_cluster_gets_the_image_that_was_built(folder: Path) -> None:
    """Out of the store of `scripts/image`, which neither Docker nor kind can read."""
    assert not of("kind", "load", "docker-image")
    archive = of("kind", "load", "image-archive")[0][3]
    pushed = {words[4]: words[3] for words in of("scripts/image", "store", "push")}
    loaded = next(name for target, name in pushed.items() if target == f"docker-archive:{archive}:{name}")
    assert f"docker-daemon:{loaded}" in pushed
    trial = installed(of("helm", "install")[0], folder)
    assert {each["image"] for each in trial.pod()["containers"]} == {loaded}
    assert loaded.startswith("localhost/warmroute:")
    assert "localhost/warmroute:$version" in IMAGE.read_text()
    engines = trial.one("StatefulSet", f"{of('helm', 'install')[0][2]}-warmroute-engine")
    assert engines["spec"]["replicas"] == 2


def test_each_installation_has_a_config_that_the_proxy_takes_and_a_tenant_with_a_key(folder: Path) -> None:
    """A digest of zeros, as in the values of a plan before the page's edit, would not pass."""
    for words in of("helm", "install"):
        found = installed(words, folder)
        assert checked(found, folder) == 0
        (tenant,) = tomllib.loads(found.config())["tenant"]
        assert tenant["key_sha256"] == [DIGEST]


def test_the_page_waits_for_and_forwards_what_the_chart_makes(folder: Path) -> None:
    release = installed(of("helm", "install")[0], folder)
    waited = [words[3].removeprefix("statefulset/") for words in of("kubectl", "rollout", "status")]
    assert all(release.one("StatefulSet", name) for name in waited)
    forwarded = [(words[-3], words[-2]) for words in of("kubectl", "port-forward")]
    assert len(forwarded) == 2
    for service, ports in forwarded:
        found = release.one("Service", service.removeprefix("service/"))
        assert str(found["spec"]["ports"][0]["port"]) == ports.partition(":")[2]
    asked = json.loads(of("curl")[0][-1])["model"]
    assert asked == tomllib.loads(release.config())["model"][0]["name"]


def test_the_ports_of_the_page_are_those_that_the_network_policy_allows() -> None:
    table = PAGE.partition("| Ports | For |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| ([\d ,;toand]+) \|", table, re.MULTILINE)
    listed = {int(number) for cell in cells for number in re.findall(r"\d+", cell)}
    secrets = {kind: {"name": kind.lower()} for kind in ("ledgerDsn", "redisUrl")}
    values = {"secrets": secrets, "tracing": {"endpoint": "http://c:4318"}, "embeddedEngines": {"enabled": True}}
    rules = render(values).one("NetworkPolicy")["spec"]["egress"]
    allowed = {port[end] for rule in rules for port in rule["ports"] for end in ("port", "endPort") if end in port}
    assert listed == allowed
    ranges = [(port["port"], port.get("endPort", port["port"])) for rule in rules for port in rule["ports"]]
    assert any(first <= REPLAY_PORT and last >= REPLAY_PORT + RANK_PORTS - 1 for first, last in ranges)


def test_the_policy_for_engines_fits_the_pods_of_the_chart_and_of_a_plan(folder: Path) -> None:
    hardening = (ROOT / "docs/how-to/hardening.md").read_text()
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", hardening, re.DOTALL | re.MULTILINE)
    policy = yaml.safe_load(text)
    kubernetes_validate.validate(policy, "1.36", strict=True)
    proxies, engines, _ = policy["spec"]["ingress"][0]["from"]
    labels = installed(of("helm", "install")[0], folder).one("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert proxies["podSelector"]["matchLabels"].items() <= labels.items()
    assert engines["podSelector"] == policy["spec"]["podSelector"]
    planned = json.loads((folder / "deployment/helm/values.json").read_text())["monitoring"]["engineSelector"]
    assert engines["podSelector"]["matchLabels"] == planned


def test_traces_have_the_ratio_of_the_proxy_by_default() -> None:
    release = render({"tracing": {"endpoint": "http://c:4318"}, "embeddedEngines": {"enabled": True}})
    assert tomllib.loads(release.config())["tracing"]["ratio"] == TracingConfig(endpoint="").ratio


def test_a_release_whose_tenant_nobody_can_be_says_so() -> None:
    zeros = {"tenants": [{"name": "a", "keySha256": ["0" * 64]}], "embeddedEngines": {"enabled": True}}
    assert "its clients get 401" in notes(zeros)
    assert "WARNING" not in notes(zeros | {"tenants": [{"name": "a", "keySha256": [DIGEST]}]})


def test_the_machine_without_containers_gets_what_its_unit_starts() -> None:
    environment = of("python3", "-m", "venv")[0][3]
    wanted = of(f"{environment}/bin/pip", "install")[0][2]
    extras = re.fullmatch(r"\.\[(.+)\]", wanted)
    assert extras
    assert set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])
    unit = (ROOT / of("cp")[0][1]).read_text()
    assert f"ExecStart={environment}/bin/warmroute " in unit
    assert f"User={of('useradd')[0][-1]}\n" in unit
    assert of("install")[0][-1] == "/etc/warmroute"
    assert of("systemctl", "enable", "--now")[0][3] == Path(of("cp")[0][1]).stem


def test_the_page_of_upgrades_names_what_the_chart_makes() -> None:
    page = (ROOT / "docs/how-to/upgrade-kubernetes.md").read_text()
    values = {"secrets": {"ledgerDsn": {"name": "ledger"}}, "embeddedEngines": {"enabled": True}}
    release = render(values)
    job = release.one("Job", "east-warmroute-migrate")
    assert f"job/{job['metadata']['name']}" in page
    assert f"statefulset/{release.one('StatefulSet')['metadata']['name']}" in page
    shown = re.findall(r"--show-only (\S+)", page)
    assert [(CHART / path).name for path in shown] == ["migration.yaml"]
    (set_to,) = re.findall(r"--set ledger\.migrate=(\w+)", page)
    assert render({**values, "ledger": {"migrate": set_to}}).one("Job", "east-warmroute-migrate") == job
    assert "pre-rollback" not in job["metadata"]["annotations"]["helm.sh/hook"]  # as the page says of going back
