"""`warmroute plan`: read the inputs of a plan, make and size the plan, and write its files.

The planner's formulas are in `warmroute_backend.plan`; the sizing uses the replay's engine model.
"""
