"""The lab: an engine without a GPU, traffic played again, and programs that try and score endpoints.

No proxy imports the lab.
"""
