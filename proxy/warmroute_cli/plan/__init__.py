"""`warmroute plan`: reads the inputs of a plan, makes and sizes the plan, and writes its files.

The planner's formulas are in `warmroute_backend.plan`; the sizing uses the simulated engines of `warmroute replay`.
"""
