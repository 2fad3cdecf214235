"""Which cuts of our prompts end in which blocks of an engine."""

from collections.abc import Callable

import pytest

from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.server.engines.kv_blocks import KvBlocks

BLOCK = 16  # tokens; the prompts here have 4 bytes a token, so 64 bytes
PROMPT = Chain([11, 12, 13], [100, 256, 300])  # they end in tokens 25, 64 and 75: in blocks 1, 3 and 4


def expecting(chain: Chain = PROMPT, tag: str = "t", **limits: int) -> KvBlocks:
    blocks = KvBlocks(**limits)
    blocks.expect(tag, chain)
    blocks.settled(tag, chain.total_bytes // 4)
    return blocks


def test_a_cut_is_where_its_last_block_is() -> None:
    blocks = expecting()
    assert blocks.stored([900, 901, 902, 903], None, "t", BLOCK, "device", pairs=False) == ([11, 12], 4)
    assert blocks.removed([903], "device") == ([12], 1)
    assert blocks.removed([902], "device") == ([], 1)
    assert blocks.removed([900, 901], "device") == ([11], 2)
    assert blocks.removed([900, 901, 902, 903], "device") == ([], 0)
    assert blocks.blocks == 0


def test_blocks_that_follow_known_ones_are_counted_on() -> None:
    blocks = expecting()
    blocks.stored([900, 901], None, "t", BLOCK, "device", pairs=False)
    assert blocks.stored([902, 903], 901, "t", BLOCK, "device", pairs=False).keys == [11, 12]  # 11 ends just before
    assert blocks.stored([904], 903, "t", BLOCK, "device", pairs=False).keys == [12, 13]  # its end came with the answer


def test_the_next_turn_counts_on_from_the_answer() -> None:
    blocks = expecting()
    blocks.stored(
        [900, 901, 902, 903, 904, 905], None, "t", BLOCK, "device", pairs=False
    )  # 96 tokens: prompt and answer
    blocks.expect("u", Chain([11, 12, 13, 14, 15], [100, 256, 300, 384, 512]))
    blocks.settled("u", 128)
    assert blocks.stored([906, 907], 905, "u", BLOCK, "device", pairs=False).keys == [13, 14, 15]
    assert blocks.removed([907], "device").keys == [15]
    assert blocks.removed([906], "device").keys == [14]  # 13 is in the blocks of the turn before


def test_blocks_behind_unknown_ones_are_not_joined() -> None:
    blocks = expecting()
    assert blocks.stored([901], 900, "t", BLOCK, "device", pairs=False) == ([], 0)
    assert blocks.stored([900], None, "of another proxy", BLOCK, "device", pairs=False) == ([], 0)
    assert blocks.stored([900], None, None, BLOCK, "device", pairs=False) == ([], 0)
    assert blocks.removed([900, 901], "device") == ([], 0)


@pytest.mark.parametrize("ends", ["before its events", "between them", "after them"])
def test_blocks_behind_unknown_ones_are_placed_by_the_cached_tokens(ends: str) -> None:
    """The proxy started beside a warm engine: it has not seen the event of block 900, which holds the system prompt."""
    blocks = KvBlocks()
    blocks.expect("t", PROMPT)
    steps: list[Callable[[], object]] = [
        lambda: blocks.stored([901, 902], 900, "t", BLOCK, "device", pairs=False),
        lambda: blocks.stored([903], 902, "t", BLOCK, "device", pairs=False),
    ]
    steps.insert(["before its events", "between them", "after them"].index(ends), lambda: blocks.settled("t", 75, 16))
    for step in steps:
        step()
    assert blocks.removed([903], "device") == ([12], 1)
    assert blocks.removed([901], "device") == ([11], 1)


def test_the_last_cached_block_stands_for_those_before_it() -> None:
    blocks = KvBlocks()
    for tag, own in (("t", [911, 912]), ("u", [921, 922])):  # both begin with two cached blocks, of which 901 is named
        blocks.expect(tag, Chain([1, 2, own[0]], [64, 128, 256]))
        blocks.stored(own, 901, tag, BLOCK, "device", pairs=False)
        blocks.settled(tag, 64, 32)
    assert blocks.removed([912, 911, 922, 921], "device").keys == [911, 921]
    assert blocks.removed([901], "device") == ([1, 2], 1)
    assert blocks.blocks == 0


@pytest.mark.parametrize("cached_tokens", [None, 0])
def test_blocks_behind_unknown_ones_are_not_placed_by_a_guess(cached_tokens: int | None) -> None:
    """Without cached tokens, or if another request stored the first blocks meanwhile, the depth is not known."""
    blocks = KvBlocks()
    blocks.expect("t", PROMPT)
    blocks.stored([902, 903], 901, "t", BLOCK, "device", pairs=False)
    assert blocks.settled("t", 75, cached_tokens) == []
    assert blocks.removed([902, 903], "device") == ([], 0)


def test_blocks_of_an_answer_do_not_stand_for_those_of_a_prompt() -> None:
    """The prompt's first computed blocks came from another request, so the first kept block is deeper."""
    blocks = KvBlocks()
    blocks.expect("t", PROMPT)
    blocks.stored([903], 902, "t", BLOCK, "device", pairs=False)
    blocks.stored([904, 905], 903, "t", BLOCK, "device", pairs=False)
    assert blocks.settled("t", 64, 16, 32) == []
    assert blocks.removed([903, 904, 905], "device") == ([], 0)


def test_what_came_before_the_index_was_dropped_is_not_counted() -> None:
    blocks = KvBlocks()
    blocks.expect("t", PROMPT)
    blocks.stored([901, 902, 903], 900, "t", BLOCK, "device", pairs=False)
    blocks.clear()
    blocks.stored([904, 905], 903, "t", BLOCK, "device", pairs=False)
    blocks.settled("t", 64, 16, 32)
    assert blocks.removed([904, 905], "device") == ([], 0)


def test_a_prompt_that_left_before_its_depth_was_known_is_gone() -> None:
    blocks = KvBlocks()
    blocks.expect("t", PROMPT)
    blocks.stored([901, 902, 903], 900, "t", BLOCK, "device", pairs=False)
    blocks.removed([903], "device")
    assert blocks.settled("t", 75, 16) == [12]
    assert blocks.removed([903, 901], "device") == ([11], 1)


def test_copies_between_tiers_need_no_tag() -> None:
    blocks = expecting()
    blocks.stored([900, 901], None, "t", BLOCK, "device", pairs=False)
    assert blocks.stored([900, 901], None, None, BLOCK, "host", pairs=False) == ([11], 2)
    assert blocks.removed([901, 900], "device") == ([11], 2)
    assert blocks.stored([900, 901], None, None, BLOCK, "device", pairs=False) == ([11], 2)
    assert blocks.removed([901], "host") == ([11], 1)
    assert blocks.removed([901], "host") == ([], 1)  # it is known, but was not there
    assert blocks.removed([901], "device") == ([11], 1)
    assert blocks.removed([901], "device") == ([], 0)


def test_a_cut_is_there_while_one_of_its_blocks_is() -> None:
    blocks = expecting()
    blocks.stored([900, 901], None, "t", BLOCK, "device", pairs=False)  # cut 11 ends in the middle of block 901
    blocks.expect("u", Chain([11, 22], [100, 256]))
    blocks.settled("u", 64)
    assert blocks.stored([911, 912, 913], 900, "u", BLOCK, "device", pairs=False).keys == [11, 22]
    assert blocks.removed([901], "device").keys == []
    assert blocks.removed([913, 912, 911], "device").keys == [22, 11]


def test_a_unit_of_pairs_reaches_one_token_further() -> None:
    chain = Chain([11], [4 * 17])  # 17 tokens are 16 pairs: one block, where plain tokens need two
    assert expecting(chain).stored([900], None, "t", BLOCK, "device", pairs=False).keys == []
    assert expecting(chain).stored([900], None, "t", BLOCK, "device", pairs=True).keys == [11]


def test_a_wrong_estimate_of_tokens_moves_cuts_but_loses_none() -> None:
    for tokens in (50, 75, 100):
        blocks = KvBlocks()
        blocks.expect("t", PROMPT)
        blocks.settled("t", tokens)
        keys = blocks.stored(list(range(900, 920)), None, "t", BLOCK, "device", pairs=False).keys
        assert keys == [11, 12, 13]


def test_page_size_one_works() -> None:
    blocks = expecting()
    assert blocks.stored(list(range(1000, 1075)), None, "t", 1, "device", pairs=False).keys == [11, 12, 13]
    assert blocks.removed([1074], "device").keys == [13]
    assert blocks.removed([1063], "device").keys == [12]


def test_the_maps_are_bounded() -> None:
    blocks = KvBlocks(max_blocks=10, max_tags=2)
    for n in range(100):
        blocks.expect(f"t{n}", PROMPT)
        blocks.settled(f"t{n}", 75)
        blocks.stored([10 * n + at for at in range(5)], None, f"t{n}", BLOCK, "device", pairs=False)
        assert blocks.blocks <= 20
    assert blocks.stored([7], None, "t0", BLOCK, "device", pairs=False).known == 0  # that tag is long gone
    assert blocks.removed([990, 991], "device").known == 2
    assert blocks.removed([0, 1], "device").known == 0


def test_blocks_that_were_forgotten_hold_no_cuts() -> None:
    blocks = KvBlocks(max_blocks=2)
    for n in range(3):
        blocks.expect(f"t{n}", Chain([11], [64]))
        blocks.settled(f"t{n}", 16)
        blocks.stored([10 * n, 10 * n + 1], None, f"t{n}", BLOCK, "device", pairs=False)
    assert blocks.removed([10], "device").keys == []
    assert blocks.removed([20], "device").keys == [11]  # the block of the first prompt would hold it for ever


def test_hostile_block_sizes_do_no_harm() -> None:
    assert expecting().stored([1, 2], None, "t", 0, "device", pairs=False) == ([], 0)
    assert expecting().stored([], None, "t", BLOCK, "device", pairs=False) == ([], 0)


def test_blocks_of_prompts_that_nobody_announces_are_bounded() -> None:
    blocks = KvBlocks()
    for number in range(100):
        blocks.stored(range(1000 * number, 1000 * number + 1000), None, f"t{number}", BLOCK, "device", pairs=False)
    assert blocks.blocks == 0
    blocks.expect("t0", PROMPT)
    assert blocks.blocks == 0  # forgotten
    blocks.expect("t99", PROMPT)
    assert blocks.blocks == 1000


def test_what_left_before_the_turn_ended_is_gone_then() -> None:
    blocks = KvBlocks()
    blocks.expect("t", PROMPT)
    blocks.stored([900, 901, 902, 903], None, "t", BLOCK, "device", pairs=False)
    blocks.stored([900, 901, 902, 903], None, None, BLOCK, "host", pairs=False)
    assert blocks.removed([903, 902], "device") == ([], 2)
    assert blocks.settled("t", 75) == [12]
    assert blocks.removed([903], "host").keys == [12]
    assert blocks.settled("t", 75) == []
    assert blocks.settled("unknown", 75) == []
    assert blocks.settled("t", 0) == []
