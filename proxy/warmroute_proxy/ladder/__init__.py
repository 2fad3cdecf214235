"""The ladder: where cached tokens went between what was possible and what was billed, in tokens and USD.

Pure: takes ledger rows and log lines, and returns sums. Callers open the files.
"""
