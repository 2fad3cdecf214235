"""The chart: rendered by Helm's own library, its manifests judged by Kubernetes' schemas, its config by the proxy."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.unit.plan.plans import KINDS, kind
from warmroute_backend.plan.files import deployment_files
from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.base.config_difference import LIVE_LIMITS, LIVE_PROXY
from warmroute_proxy.server.base.config_file import load_config
from warmroute_proxy.server.main import serve

from .charts import CHART, Rendered, accepted, notes, render, render_with
from .container import ROOT

OF_OPERATORS = {"ServiceMonitor", "PrometheusRule", "ScaledObject", "HTTPRoute", "InferencePool"}
"""Kinds that others define; Kubernetes has no schema of them."""

EVERYTHING: dict[str, Any] = {
    "replicas": 3,
    "region": "east",
    "regions": [{"name": "west", "url": "https://west.example", "rttMs": 60}],
    "tenants": [{"name": "acme", "keySha256": ["6" * 64]}],
    "limits": {"queue_requests": 100, "body_bytes": 67108864},
    "proxy": {"processes": 2},
    "secrets": {
        "adminKey": {"name": "admin"},
        "ledgerDsn": {"name": "ledger"},
        "redisUrl": {"name": "redis"},
        "tls": {"name": "tls"},
        "ca": {"name": "ca"},
        "engineKeys": {"name": "engine-keys"},
    },
    "ledger": {"sync": "disk", "keepDays": 400},
    "persistence": {"storageClass": "fast"},
    "autoscaling": {"kind": "hpa", "maxReplicas": 5},
    "networkPolicy": {"clients": [{"podSelector": {"matchLabels": {"app": "agents"}}}]},
    "monitoring": {"proxies": True, "engines": True, "rules": True, "labels": {"release": "prometheus"}},
    "embeddedEngines": {"enabled": True},
}


USD = '[[model]]\nname = "m"\nfree = true\n[[budget]]\nname = "b"\ntenants = ["acme"]\nusd_per_day = "5"\n'
"""A config with a budget."""

LIMITS = USD.replace("usd_per_day", "requests_per_minute").replace('"5"', "5")
TRACING = '[tracing]\nendpoint = "http://c:4318"\n\n# more\nfollow_clients = false\n'


@pytest.fixture(scope="module")
def everything() -> Rendered:
    return accepted(EVERYTHING)


@pytest.fixture(scope="module")
def plain() -> Rendered:
    return accepted({"embeddedEngines": {"enabled": True}})


def validate(found: Rendered, version: str = "1.36") -> None:
    """Check the manifests by the schemas of a version of Kubernetes."""
    for manifest in found.manifests:
        if manifest["kind"] not in OF_OPERATORS:
            kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", ["1.30", "1.33", "1.36"])
@pytest.mark.parametrize("which", ["plain", "everything"])
def test_kubernetes_takes_its_manifests(which: str, version: str, request: pytest.FixtureRequest) -> None:
    found: Rendered = request.getfixturevalue(which)
    assert {"StatefulSet", "Service", "PodDisruptionBudget"} <= found.kinds()
    validate(found, version)


@pytest.fixture(scope="module")
def finding() -> Rendered:
    """Engines are found by their InferencePool."""
    engine = {"models": ["kimi-k2.5"], "kv_events": "off"}
    return accepted({"discovery": {"enabled": True, "kind": "inferencepool", "pool": "sglang", "engine": engine}})


def test_a_proxy_that_finds_engines_may_read_what_it_needs(finding: Rendered) -> None:
    account = finding.pod()["serviceAccountName"]
    assert finding.one("RoleBinding")["subjects"][0]["name"] == account
    verbs = {kind: rule["verbs"] for rule in finding.one("Role")["rules"] for kind in rule["resources"]}
    assert verbs == {kind: ["get", "list", "watch"] for kind in ("inferencepools", "pods")}
    assert finding.pod()["automountServiceAccountToken"]


def test_pods_get_their_deletion_cost_where_it_is_asked_for() -> None:
    values = {"enabled": True, "service": "sglang", "engine": {"models": ["kimi-k2.5"]}, "deletionCost": True}
    found = render({"discovery": values})
    rules = {kind: rule["verbs"] for rule in found.one("Role")["rules"] for kind in rule["resources"]}
    assert rules["pods"] == ["patch"]
    assert "deletion_cost = true" in found.one("ConfigMap")["data"]["warmroute.toml"]


@pytest.mark.parametrize("which", ["plain", "everything", "finding"])
def test_the_proxy_takes_its_config(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    found: Rendered = request.getfixturevalue(which)
    secrets = tmp_path / "secrets"
    for name, content in (("fleet/secret", "5" * 64), ("ledger/dsn", "postgresql://a@b/c"), ("redis/url", "redis://a")):
        path = secrets / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o440)
    text = found.config().replace("/etc/warmroute-secrets", str(secrets)).replace("/var/lib/warmroute", str(tmp_path))
    text = "\n".join(line for line in text.splitlines() if not line.startswith("tls_"))
    config = tmp_path / "warmroute.toml"
    config.write_text(f'{text}\n[[tenant]]\nname = "a"\nkey_sha256 = ["{"5" * 64}"]\n')
    assert serve(str(config), True, None) == 0


def test_the_proxy_takes_each_of_its_limits(tmp_path: Path) -> None:
    limits = dataclasses.replace(Limits(), shutdown_grace_s=900.0, new_sessions_wait=False)
    values = {name: value for name, value in dataclasses.asdict(limits).items() if name != "shutdown_grace_s"}
    found = accepted({"limits": values, "tenants": EVERYTHING["tenants"], "embeddedEngines": {"enabled": True}})
    config = tmp_path / "warmroute.toml"
    config.write_text(found.config())
    assert load_config(config).limits == limits


def test_a_pod_has_longer_to_end_than_its_longest_stream(everything: Rendered) -> None:
    found = render({"longestStreamSeconds": 3600, "preStopSeconds": 7, "embeddedEngines": {"enabled": True}})
    assert "shutdown_grace_s = 3600\n" in found.config()
    assert found.pod()["terminationGracePeriodSeconds"] > 3607
    assert found.pod()["containers"][0]["lifecycle"]["preStop"] == {"sleep": {"seconds": 7}}


def test_containers_may_nothing(everything: Rendered) -> None:
    pods = [each["spec"]["template"]["spec"] for each in everything.manifests if each["kind"] == "StatefulSet"]
    pods.append(everything.one("Job", "east-warmroute-migrate")["spec"]["template"]["spec"])
    containers = [each for pod in pods for each in pod["containers"]]
    assert len(containers) == 3
    for container in containers:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert context["runAsNonRoot"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert not context["allowPrivilegeEscalation"]
    assert not any(pod["automountServiceAccountToken"] for pod in pods)


def test_secrets_are_named_and_mounted_as_folders_so_that_new_ones_arrive(everything: Rendered) -> None:
    pod = everything.pod()
    named = {each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
    assert named == {"warmroute-fleet", "ledger", "redis", "tls", "ca", "engine-keys"}
    assert not any("subPath" in mount for mount in pod["containers"][0]["volumeMounts"])
    assert "Secret" not in everything.kinds()
    assert "watch_config = true" in everything.config()


def test_proxies_keep_a_disk_or_say_that_they_do_not(plain: Rendered) -> None:
    assert plain.one("StatefulSet")["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] == "state"
    without = render({"persistence": {"enabled": False}, "embeddedEngines": {"enabled": True}})
    assert "volumeClaimTemplates" not in without.one("StatefulSet")["spec"]
    assert {"name": "state", "emptyDir": {}} in without.pod()["volumes"]


def test_the_ledger_file_keeps_to_two_thirds_of_the_volume(plain: Rendered) -> None:
    assert f"ledger_file_bytes = {20 * 2**30 * 2 // 3}\n" in plain.config()
    values: dict[str, Any] = {"ledger": {"fileDays": 3}, "embeddedEngines": {"enabled": True}}
    assert "ledger_file_days = 3\n" in render(values).config()
    assert "ledger_file_bytes" not in render({**values, "persistence": {"enabled": False}}).config()


def test_proxies_name_all_that_there_may_be(everything: Rendered) -> None:
    """Each leaves itself out."""
    assert all(
        f"https://east-warmroute-{number}.east-warmroute-proxies:8000" in everything.config() for number in range(5)
    )


def test_they_are_scaled_by_tokens_in_flight_and_by_the_queue(everything: Rendered) -> None:
    hpa = everything.one("HorizontalPodAutoscaler")["spec"]
    metrics = hpa["metrics"]
    page = (ROOT / "docs/reference/metrics.md").read_text()
    names = [each["pods"]["metric"]["name"] for each in metrics]
    assert names == ["warmroute_tokens_in_flight", "warmroute_queue_requests"]
    assert all(f"`{name}`" in page for name in names)
    keda = render({"autoscaling": {"kind": "keda"}, "embeddedEngines": {"enabled": True}}).one("ScaledObject")
    assert all(name in each["metadata"]["query"] for name, each in zip(names, keda["spec"]["triggers"], strict=True))
    assert keda["spec"]["advanced"]["horizontalPodAutoscalerConfig"] == {"behavior": hpa["behavior"]}
    assert "replicas" not in everything.one("StatefulSet")["spec"]


def test_nobody_reaches_the_admin_port_where_no_monitoring_is_named(plain: Rendered) -> None:
    """An empty `from` would admit everybody."""

    def rules(found: Rendered) -> list[list[dict[str, Any]]]:
        ingress = found.one("NetworkPolicy")["spec"]["ingress"]
        return [each["from"] for each in ingress if {"port": "admin"} in each["ports"]]

    assert all(rules(plain))
    assert rules(plain)
    found = render({"networkPolicy": {"monitoring": []}, "embeddedEngines": {"enabled": True}})
    assert not rules(found)


def test_traces_are_sent_where_there_is_an_endpoint(plain: Rendered, tmp_path: Path) -> None:
    def ports(found: Rendered) -> set[int]:
        return {port["port"] for rule in found.one("NetworkPolicy")["spec"]["egress"] for port in rule["ports"]}

    assert "[tracing]" not in plain.config()
    assert not {4317, 4318} & ports(plain)
    tracing = {"endpoint": "http://collector.monitoring:4318", "ratio": 0.25}
    found = render({"tracing": tracing, "tenants": EVERYTHING["tenants"], "embeddedEngines": {"enabled": True}})
    assert ports(found) >= {4317, 4318}
    path = tmp_path / "warmroute.toml"
    path.write_text(found.config())
    config = load_config(path).tracing
    assert config is not None
    assert (config.endpoint, config.ratio) == ("http://collector.monitoring:4318", 0.25)


def test_the_database_is_migrated_before_an_upgrade_or_by_hand_alone(everything: Rendered) -> None:
    job = everything.one("Job", "east-warmroute-migrate")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][:3] == ["ledger", "migrate", "--expand-only"]
    named = {each["name"]: each["secret"] for each in pod["volumes"] if "secret" in each}["secret-ledger"]
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}["secret-ledger"]
    assert container["args"][-1] == f"{mounted}/{named['items'][0]['path']}"
    assert "initContainers" not in everything.pod()
    assert "Job" not in render({**EVERYTHING, "ledger": {"migrate": "never"}}).kinds()
    assert "Job" not in render({"embeddedEngines": {"enabled": True}}).kinds()


def test_names_and_keys_of_secrets_are_texts_whatever_they_look_like() -> None:
    odd = {"name": "1e3", "key": "007"}
    kinds = ("fleet", "adminKey", "ledgerDsn", "redisUrl", "ca")
    secrets = dict.fromkeys(kinds, odd) | {"tls": {"name": "2"}, "engineKeys": {"name": "3"}}
    found = render({"secrets": secrets, "monitoring": {"proxies": True}, "embeddedEngines": {"enabled": True}})
    named = [each["secret"] for each in found.pod()["volumes"] if "secret" in each]
    assert {each["secretName"] for each in named} == {"1e3", "2", "3"}
    assert {each["key"] for one in named for each in one.get("items", [])} == {"007"}
    endpoint = found.one("ServiceMonitor")["spec"]["endpoints"][0]
    assert endpoint["authorization"]["credentials"] == odd


def test_values_say_where_keys_of_engines_are(everything: Rendered) -> None:
    folder = next(
        mount["mountPath"]
        for mount in everything.pod()["containers"][0]["volumeMounts"]
        if mount["mountPath"].endswith("/engine-keys")
    )
    assert f"a file in {folder}" in (CHART / "values.yaml").read_text()


def test_prometheus_reads_proxies_and_engines(everything: Rendered) -> None:
    proxies = everything.one("ServiceMonitor")
    service = everything.one("Service", "east-warmroute-proxies")
    assert proxies["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert proxies["spec"]["endpoints"][0]["authorization"]["credentials"] == {"name": "admin", "key": "key"}
    assert everything.one("ServiceMonitor", "east-warmroute-engines")["metadata"]["labels"]["release"] == "prometheus"
    assert everything.one("PrometheusRule")["spec"]["groups"]


def test_its_rules_are_those_of_the_reference() -> None:
    reference = (ROOT / "docs/reference/prometheus-rules.yml").read_text()
    assert (CHART / "files/prometheus-rules.yml").read_text() == reference


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"replica": 2}, "replica"),
        ({"replicas": 0}, "only with gateway.enabled"),
        ({"gateway": {"enabled": True, "failureMode": "FailSometimes"}}, "failureMode"),
        ({"config": USD, "replicas": 0, "gateway": {"enabled": True}}, "2 proxies would each spend"),
        ({"proxy": {"port": 9}}, "port"),
        ({"limits": {"shutdown_grace_s": 9}}, "limits"),
        ({"secrets": {"fleet": {"name": "", "key": "a"}}}, "fleet"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"discovery": {"enabled": True}}, "service"),
        ({"discovery": {"enabled": True, "kind": "inferencepool"}}, "pool"),
        ({"monitoring": {"proxies": True}}, "adminKey"),
        ({"autoscaling": {"kind": "hpa", "minReplicas": 5, "maxReplicas": 4}}, "more than maxReplicas, 4"),
        ({"autoscaling": {"kind": "keda", "minReplicas": 5, "maxReplicas": 4}}, "more than maxReplicas, 4"),
        ({"tracing": {"endpoint": "collector:4318"}}, "endpoint"),
        ({"config": USD}, "2 proxies would each spend the budgets of config: they need secrets.ledgerDsn.name"),
        ({"config": USD, "replicas": 1, "autoscaling": {"kind": "hpa"}}, "8 proxies would each spend"),
        ({"config": USD.replace("usd_per_day", "  tokens_per_minute")}, "they need secrets.redisUrl.name"),
        ({"proxy": {"counts_alone": True}}, "counts_alone"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], reason: str) -> None:
    assert reason in render(values).refused


EXTRAS: dict[str, Any] = {
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "serving",
    "podLabels": {"team": "agents"},
    "serviceAccount": {"annotations": {"iam.example/role": "ledger"}},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "extraVolumes": [{"name": "more", "configMap": {"name": "more"}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/etc/more", "readOnly": True}],
    "ingress": {"enabled": True, "className": "nginx", "hosts": ["w.example"], "tlsSecret": "w-tls"},
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}], "hostnames": ["w.example"]},
    "monitoring": {"dashboards": True},
    "embeddedEngines": {"enabled": True},
}


def test_what_charts_are_expected_to_have() -> None:
    found = accepted(EXTRAS)
    validate(found)
    pod, template = found.pod(), found.one("StatefulSet")["spec"]["template"]["metadata"]
    assert (pod["priorityClassName"], pod["affinity"]) == ("serving", {"nodeAffinity": {}})
    assert template["labels"]["team"] == "agents"
    assert found.one("ServiceAccount")["metadata"]["annotations"] == {"iam.example/role": "ledger"}
    container = pod["containers"][0]
    assert EXTRAS["extraEnv"][0] in container["env"]
    assert EXTRAS["extraVolumes"][0] in pod["volumes"]
    assert EXTRAS["extraVolumeMounts"][0] in container["volumeMounts"]
    assert found.one("Ingress")["spec"]["rules"][0]["host"] == "w.example"
    (rule,) = found.one("HTTPRoute")["spec"]["rules"]
    assert (rule["backendRefs"][0]["port"], rule["timeouts"]) == (8000, {"request": "0s"})
    for name in ("money", "operators", "stores"):
        file = f"warmroute-{name}.json"
        shown = found.one("ConfigMap", f"east-warmroute-{name}")
        assert shown["data"][file] == (ROOT / f"deploy/grafana/{file}").read_text()
        assert shown["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_the_migration_has_what_the_dsn_may_need() -> None:
    """The file of an authority, a variable such as PGSSLROOTCERT, the nodes that reach the database."""
    affinity: dict[str, dict[str, Any]] = {"nodeAffinity": {}, "podAntiAffinity": {}}
    found = accepted({**EVERYTHING, **EXTRAS, "affinity": affinity})
    validate(found)
    proxy, job = found.pod(), found.one("Job", "east-warmroute-migrate")["spec"]["template"]["spec"]
    (of_proxy,), (of_job,) = proxy["containers"], job["containers"]
    own = {"state", "config", "secret-redis", "secret-tls", "secret-engine-keys"}
    assert of_job["volumeMounts"] == [each for each in of_proxy["volumeMounts"] if each["name"] not in own]
    assert job["volumes"] == [each for each in proxy["volumes"] if each["name"] not in own]
    assert (of_job["env"], job["priorityClassName"]) == (of_proxy["env"], proxy["priorityClassName"])
    assert (proxy["affinity"], job["affinity"]) == (affinity, {"nodeAffinity": {}}), "none that keeps proxies apart"


@pytest.fixture(scope="module")
def picking() -> Rendered:
    """Pickers for a gateway, in the place of proxies."""
    gateway = {"enabled": True, "engine": {"kv_events": "off"}, "enginePort": 8080}
    return accepted({"replicas": 0, "gateway": gateway, "region": "east"})


def test_kubernetes_takes_the_manifests_of_pickers(picking: Rendered) -> None:
    validate(picking)


@pytest.mark.parametrize("name", ["team-a-kimi-k2-production-us-east-1-gpus-of-a-company", "a" * 44 + "warmroute"])
def test_names_of_long_releases_leave_room_for_what_kubernetes_appends(name: str) -> None:
    """It writes the name of a StatefulSet and a hash of ten characters into a label, which may have 63."""
    assert len(name) == 53, "the longest that Helm takes"
    found = render_with(name, ["gateway.enabled=true", "embeddedEngines.enabled=true"], [])
    names = [each["metadata"]["name"] for each in found.manifests if each["kind"] == "StatefulSet"]
    assert len(names) == 3, found.refused
    assert all(len(each) <= 63 - len("-0123456789") and "warmroute" in each for each in names)


def test_a_gateway_finds_its_pickers_by_the_pool(picking: Rendered) -> None:
    pool = picking.one("InferencePool")["spec"]
    service = picking.one("Service", pool["endpointPickerRef"]["name"])
    assert service["spec"]["ports"][0]["port"] == pool["endpointPickerRef"]["port"]["number"]
    template = picking.one("StatefulSet", "east-warmroute-picker")["spec"]["template"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    (container,) = template["spec"]["containers"]
    assert container["args"][:2] == ["epp", "--config"]
    assert template["spec"]["automountServiceAccountToken"]
    resources = {each for rule in picking.one("Role")["rules"] for each in rule["resources"]}
    assert resources == {"inferencepools", "pods"}
    policy = picking.one("NetworkPolicy", "east-warmroute-picker")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert {"port": "grpc"} in policy["ingress"][0]["ports"]
    assert {"ports": [{"port": pool["targetPorts"][0]["number"]}]} in policy["egress"]
    spread = template["spec"]["topologySpreadConstraints"]
    assert all(each["labelSelector"]["matchLabels"] == service["spec"]["selector"] for each in spread)


def test_a_picker_takes_its_config(picking: Rendered, tmp_path: Path) -> None:
    text = str(picking.one("ConfigMap", "east-warmroute-picker")["data"]["warmroute.toml"])
    path = tmp_path / "warmroute.toml"
    path.write_text(f'{text}\n[[tenant]]\nname = "a"\nkey_sha256 = ["{"5" * 64}"]\n')
    config = load_config(path)
    assert (config.proxy.port, config.proxy.admin_port) == (9002, 8001)
    assert [(each.kind, each.name) for each in config.discoveries] == [("inferencepool", "east-warmroute")]
    assert config.proxy.others_than("east-warmroute-picker-0") == (
        "http://east-warmroute-picker-1.east-warmroute-pickers:8001",
    )


def restarts(values: dict[str, Any]) -> str:
    """What pods are replaced by when it changes."""
    found = render({"embeddedEngines": {"enabled": True}, "replicas": 1, **values})
    return str(found.one("StatefulSet")["spec"]["template"]["metadata"]["annotations"]["checksum/restart"])


@pytest.mark.parametrize(
    "values",
    [
        {"config": '[[model]]\nname = "other"\nfree = true\n'},
        {"tenants": EVERYTHING["tenants"]},
        {"limits": {"queue_requests": 9}},
        {"proxy": {"websockets": False}},
        {"longestStreamSeconds": 901},
    ],
)
def test_values_that_are_live_replace_no_pod(values: dict[str, Any]) -> None:
    annotations = restarts(values), restarts({})
    assert annotations[0] == annotations[1]


@pytest.mark.parametrize(
    "values",
    [
        {"limits": {"connections": 9}},
        {"proxy": {"processes": 2}},
        {"replicas": 3},
        {"ledger": {"sync": "disk"}},
        {"secrets": {"redisUrl": {"name": "redis"}}},
        {"tracing": {"endpoint": "http://c:4318"}},
    ],
)
def test_values_that_need_a_restart_replace_the_pods(values: dict[str, Any]) -> None:
    assert restarts(values) != restarts({})


@pytest.mark.parametrize(
    ("before", "after", "replaced"),
    [
        ("", TRACING, True),
        (TRACING, TRACING.replace("false", "true"), True),
        (TRACING, f"{TRACING}\n[[engine]]\nid = '0'\n", False),
        ("", USD, True),
        (USD, USD.replace("5", "6"), False),
        (LIMITS, LIMITS.replace("5", "6"), False),
        (LIMITS, USD, True),
    ],
)
def test_tables_of_config_replace_the_pods_if_they_wait_for_a_restart(before: str, after: str, replaced: bool) -> None:
    assert (restarts({"config": before}) != restarts({"config": after})) is replaced


def test_the_chart_knows_which_keys_are_live() -> None:
    helpers = (CHART / "templates/_helpers.tpl").read_text()
    restart = helpers.partition('define "warmroute.restart"')[2].partition("{{- end }}")[0]
    picked = set(re.findall(r'"(\w+)"', restart.partition("pick .Values.limits")[2].partition("}}")[0]))
    assert picked == {field.name for field in dataclasses.fields(Limits)} - LIVE_LIMITS
    omitted = set(re.findall(r'"(\w+)"', restart.partition("omit .Values.proxy")[2].partition("}}")[0]))
    assert omitted == LIVE_PROXY - {"watch_config"}


@pytest.mark.parametrize(
    "values",
    [
        {"replicas": 1},
        {"eachProxyCountsAlone": True},
        {"eachProxyCountsAlone": True, "replicas": 1, "gateway": {"enabled": True}},
        {"secrets": {"ledgerDsn": {"name": "ledger"}}},
    ],
)
def test_a_budget_is_counted_once_or_the_release_says_that_it_is_not(values: dict[str, Any], tmp_path: Path) -> None:
    values = {"config": USD, "tenants": EVERYTHING["tenants"], "embeddedEngines": {"enabled": True}, **values}
    path = tmp_path / "warmroute.toml"
    path.write_text(render(values).config())
    assert load_config(path).budgets
    alone = "eachProxyCountsAlone" in values
    assert ("counts budgets and limits alone" in notes(values)) is alone
    assert load_config(path).proxy.counts_alone is alone


def test_notes_say_who_serves() -> None:
    pickers = notes({"replicas": 0, "gateway": {"enabled": True}})
    assert "2 pickers of region here" in pickers
    assert "/v1" not in pickers
    assert "2 to 8 proxies of region here" in notes({"autoscaling": {"kind": "hpa"}})


@pytest.mark.parametrize("name", KINDS)
def test_the_chart_takes_the_values_of_a_plan(name: str, tmp_path: Path) -> None:
    plan = kind(name)
    found = accepted(json.loads(deployment_files(plan, "model", "")["helm/values.json"]))
    config = tmp_path / "warmroute.toml"
    config.write_text(found.config())
    assert [engine.id for engine in load_config(config).engines] == [engine.name for engine in plan.engines]
