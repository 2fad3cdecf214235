"""Engines that a config does not name: found in a folder of files, by a DNS name, or in a Kubernetes cluster.

A source is read again and again. While it is away, or names no engine at all, what it named last stays. Nothing here
connects to an engine.
"""
