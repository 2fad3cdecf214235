"""The lab: an engine without a GPU, traffic played again, and programs that try and score endpoints.

No proxy needs it, and no proxy imports it.

engine      the embedded engine: SGLang's HTTP interface over a model of its scheduler and cache
replay      traces on a virtual clock, through the placement of production or another policy
fleet       starts embedded engines, proxies and the network between them
up          `warmroute up`: that fleet until Ctrl-C
demo        `warmroute demo`
conform     `warmroute conform`: an endpoint scored against the profile
audit       `warmroute audit`: whether one tenant can tell what another has sent
recordings  the packaged recordings of agent sessions
wan         a TCP relay that adds the delay between regions
"""
