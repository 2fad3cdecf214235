"""Planner, launcher and doctor for real SGLang and the machines that run it.

No module imports the proxy; only `engine` imports the lab.
"""
