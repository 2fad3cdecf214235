"""The ladder: where cached tokens went between what was possible and what was billed, in tokens and USD.

Pure: rows and lines of logs in, sums out. Files are opened by whoever asks.

steps        the steps, the causes of what is lost between two of them, and remedies
turn         one turn on the ladder: its losses, and what each of them cost
sums         turns added up, by session, tenant, model, harness or day
of_entries   rows of the ledger as turns
of_reports   lines of foreign logs as turns: what one of them says, and which steps it knows
prefixes     how much of each prompt was seen before, and how much a cache of some size would have kept
readers      one reader for each foreign log
"""
