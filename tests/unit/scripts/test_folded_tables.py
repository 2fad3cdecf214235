"""`scripts/site/folded_tables.py` folds long tables, and leaves short ones as they are."""

from scripts.site.folded_tables import MOST_ROWS, folded


def test_a_long_table_is_folded_and_a_short_one_is_not() -> None:
    short, long = (f"<table>{'<tr></tr>' * (1 + rows)}</table>" for rows in (MOST_ROWS, MOST_ROWS + 1))
    assert folded(f"<p>a</p>{short}{long}") == (
        f"<p>a</p>{short}<details><summary>The table: {MOST_ROWS + 1} rows</summary>{long}</details>"
    )
