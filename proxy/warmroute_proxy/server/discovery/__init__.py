"""Engines that a config does not name: found in a folder of files, by a DNS name, or in a Kubernetes cluster.

Each source is read repeatedly. While a source cannot be read or names no engine, the engines that it last named stay.
Nothing here connects to an engine.
"""
