"""`warmroute plan`: reads what a plan is made of, has it made and sized, and writes its files.

It holds no formula: the planner is `warmroute_backend.plan`, the engine model of the sizing is that of the replay.
"""
