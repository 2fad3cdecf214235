"""The files of a deployment, each made from a plan alone. `deployment_files` returns their texts; it writes none."""

from warmroute_backend.plan.files.bundle import deployment_files, processes

__all__ = ["deployment_files", "processes"]
