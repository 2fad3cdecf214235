"""The files of a deployment, each made of a plan alone. Nothing here writes one: `deployment_files` gives their texts.

bundle       all files of a plan by path, and the values of the chart
units        systemd units
kubernetes   LeaderWorkerSets, Services, PodDisruptionBudgets
proxy        the proxy's TOML, and the Mooncake store's configuration
"""

from warmroute_backend.plan.files.bundle import deployment_files, processes

__all__ = ["deployment_files", "processes"]
