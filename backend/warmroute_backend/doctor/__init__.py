"""The doctor: what a machine has, and what of it keeps a plan from running, with what to do about it.

Readers take a root folder, so that tests give them the tree of another machine. What they cannot read is `None`, and
never a guess. Judgement is pure.

facts      what is read of a machine
finding    one judgement, with what to do
nvidia     GPUs, by NVML
fabric     RDMA devices and their links
host       memory, NUMA, limits, clock
isolation  IOMMU, PCI bridges, the cgroup, errors that the driver logged
disk       how fast a folder is written and read
versions   of sglang, mooncake, nixl and CUDA in a Python
judgement  findings of facts, with and without a plan
health     findings of errors, heat, PCI bridges and cgroups
bandwidth  how fast cards and NVLink are, measured
trials     that the embedded engine starts, and whether SGLang on a CPU would
reading    all facts of this machine
"""
