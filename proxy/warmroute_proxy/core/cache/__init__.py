"""Predictions of what the engines' caches have: prefixes, tiers, and which histories are still there.

It never decides where a request goes, and never asks an engine: it learns from what the server reports.

index          which cache has which prefix: a bounded map
tiers          device, host and storage, and what using a prefix from each costs
residents      which conversations hold KV on one worker
return_times   after how long conversations come back
occupancy      what each cache still holds, by its size and the order of use
affinity       where lineages and sessions were last served
settled_turn   what is stored of a settled turn
prompt_memory  the newest prompts of each session, without their text
"""
