"""`warmroute demo`: recorded agent sessions, played against a fleet, and an audit of the result.

The modules here start fleets and read their logs. They decide nothing: that is the proxy's.

arguments       its options
command         chooses the demo
embedded        the demo on embedded engines, with affinity off and on
sglang          the demo on the real SGLang on this CPU
tight           more sessions than a small fleet has KV for, without and with admission by working set
drive           clients that send the recorded sessions
audit           compares the logs of clients, engines and ledgers
ideal           how many tokens a perfect cache would have found
results, results_sglang     the figures, and what must hold of them
report, report_sglang       the output on the terminal
"""
