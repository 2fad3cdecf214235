"""The engines of a region: connections to them, what they report, and what they publish of their caches.

This room sends bytes to engines and reads their answers and reports. It never decides where a request goes, and knows
neither requests nor tenants: code that sends a request passes a `Leg`, which gets the answer.
"""
