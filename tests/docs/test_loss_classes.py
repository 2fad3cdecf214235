"""Each loss class of the contract is explained wherever losses are put into words."""

from pathlib import Path

import pytest

from warmroute.contract.receipt import LOSS_CLASSES

ROOT = Path(__file__).parents[2]
PLACES = {
    "docs/reference/receipt.md": "| `{}` |",
    "sdk/warmroute/contract/meanings.py": '"{}": "',
    "integrations/opencode/src/words.ts": '\n  {}: "',
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", LOSS_CLASSES)
def test_a_loss_class_is_put_into_words(place: str, name: str) -> None:
    assert PLACES[place].format(name) in (ROOT / place).read_text()
