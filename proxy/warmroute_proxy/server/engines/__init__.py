"""The engines of a region: connections to them, what they report, and what they publish about their caches.

This package sends bytes to engines and reads their answers and reports. It never decides where a request goes, and
knows neither clients' requests nor tenants: code that sends a request passes a `Leg`, which gets the answer.
"""
