"""The files of a deployment, made from a plan alone. `deployment_files` returns their texts and writes no file."""

from warmroute_backend.plan.files.bundle import deployment_files, processes

__all__ = ["deployment_files", "processes"]
