"""The engine at work: requests go to schedulers, whose steps pass at the pace of the wall clock.

It decides no cache content and no step length: the model does.
"""
