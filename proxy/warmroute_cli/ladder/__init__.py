"""`warmroute ladder`: where cached tokens went, step by step, in tokens and USD."""
