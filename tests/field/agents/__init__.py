"""Real coding agents through the proxy, started by `warmroute run`, on engines that obey what their prompts say.

network    whether anything but this machine can be reached
taps       what the proxies send to the engines, prompt by prompt
stage      the fleet of all programs, and what one start of a program does there
cases      a table: what each program is told to do, and what may break its prefixes
lineages   what must hold of the prompts of a program: append-only, and as warm as can be
page       the table of docs/reference/harnesses.md
"""
