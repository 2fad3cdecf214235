"""The lab: a simulated engine, replays of recorded traffic, and programs that test and score endpoints.

No proxy imports the lab.
"""
