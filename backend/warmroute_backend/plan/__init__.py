"""The planner: turns a model, GPUs and traffic into a deployment of SGLang that fits, with every choice explained.

It is pure: no clock, no I/O, no randomness. Equal requests give equal plans. Callers read the files of a model and
write those of a plan. It knows SGLang 0.5.23; formulas name the lines that they are from.

errors        PlanError: a sentence, and what would work
tables        tables of TOML as records, and as text
words         what parts of a plan can be called
hardware      GPUs and clusters
model         the shape of a model, from its config.json
models        models that are known by name
weights       bytes of weights on a GPU
cache         bytes of KV for a token
memory        the memory of a GPU: reserve, fraction, pool, tokens
measured      the figures of one GPU in their place
kernels       what kernels reach of a GPU's peaks, with sources
speed         a roofline: seconds of prompts and of decode steps
speculation   draft models, and the batch up to which they pay
request       what is asked of the planner
deployment    a plan and its engines
layout        the engines that fit on a number of GPUs
choose        makes a plan
tiers         HiCache, storage, LMCache
lmcache       LMCache's daemon
reasons       the sentences that explain choices
check         what is wrong with a plan
argv          command lines and environments
page          the readable page
plan_file     plan.toml
files         all files of a deployment
"""
