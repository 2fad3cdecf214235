"""`warmroute doctor`: says what a machine has, what a plan or a proxy's configuration lacks there, and the remedies.

`warmroute_backend.doctor` collects facts and judges them. This package has the checks of the proxy, and the output.
"""
