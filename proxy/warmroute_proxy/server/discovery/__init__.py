"""Engines that a config does not name: found in a folder of files, by a DNS name, or in a Kubernetes cluster.

A source is read again and again. While it is away, or names no engine at all, what it named last stays. Nothing here
connects to an engine.

    source      what a source is, and the limits of all
    folder      a folder of TOML files, each with one engine
    srv         SRV records of a DNS name
    kubernetes  endpoints of a Service, or pods of an InferencePool
    kubernetes_watch  one collection of objects, listed and watched
    kubernetes_api    requests to the API server
    candidates  which of the engines that were found are used, and why not the others
    last_known  what was found last, kept over a restart
    discovery   all sources of a config, read in turn
"""
