"""The files of a deployment, each made of a plan alone. `deployment_files` gives their texts, and writes none."""

from warmroute_backend.plan.files.bundle import deployment_files, processes

__all__ = ["deployment_files", "processes"]
