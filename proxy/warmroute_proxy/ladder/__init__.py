"""The ladder: where cached tokens were lost between what was possible and what was billed, in tokens and USD.

Pure: takes rows of the ledger (the proxy's record of turns) or lines of logs, and returns sums. Callers open the files.
"""
