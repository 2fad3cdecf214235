"""The ladder: where cached tokens went between what was possible and what was billed, in tokens and USD.

Pure: rows and lines of logs in, sums out. Files are opened by whoever asks.
"""
