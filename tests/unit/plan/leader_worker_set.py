"""Fields of a LeaderWorkerSet v1, and which of them are required, as its CRD is generated from.

Source: https://github.com/kubernetes-sigs/lws/blob/024af0845195be26fb4a0847c37d7209849d69da/api/leaderworkerset/v1/
leaderworkerset_types.go. Pod templates are Kubernetes' own, which its schemas judge.
"""

from collections.abc import Mapping
from typing import Any, Final

POD_TEMPLATE: Final = "PodTemplateSpec"
INT_OR_TEXT: Final = (int, str)

SPEC: Final[Mapping[str, Any]] = {
    "replicas": int,
    "leaderWorkerTemplate": {
        "leaderTemplate": POD_TEMPLATE,
        "workerTemplate": POD_TEMPLATE,
        "size": int,
        "restartPolicy": {"Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"},
        "subGroupPolicy": {"subGroupPolicyType": {"LeaderWorker", "LeaderExcluded"}, "subGroupSize": int},
        "volumeClaimTemplates": list,
        "persistentVolumeClaimRetentionPolicy": dict,
    },
    "rolloutStrategy": {
        "type": {"RollingUpdate"},
        "rollingUpdateConfiguration": {"partition": int, "maxUnavailable": INT_OR_TEXT, "maxSurge": INT_OR_TEXT},
    },
    "startupPolicy": {"LeaderCreated", "LeaderReady"},
    "networkConfig": {"subdomainPolicy": {"Shared", "UniquePerReplica"}},
}
REQUIRED: Final = ("leaderWorkerTemplate.workerTemplate",)


def wrong(value: Any, kind: Any = SPEC, path: str = "spec") -> list[str]:
    """The paths of a spec that the CRD would refuse; pod templates are left to others."""
    if kind == POD_TEMPLATE:
        return []
    if isinstance(kind, Mapping):
        if not isinstance(value, dict):
            return [path]
        unknown = [f"{path}.{key}" for key in value if key not in kind]
        return unknown + [
            each for key in value if key in kind for each in wrong(value[key], kind[key], f"{path}.{key}")
        ]
    if isinstance(kind, set):
        return [] if value in kind else [path]
    return [] if isinstance(value, kind) and not isinstance(value, bool) else [path]
