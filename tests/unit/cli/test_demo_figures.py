"""What the README says of the demo and is the same in each run follows from the recordings."""

from collections import defaultdict
from pathlib import Path

import pytest

from warmroute_lab.demo.ideal import Ideal, Prompt, ideals, prompt_of
from warmroute_lab.fleet import PAGE_SIZE
from warmroute_lab.recordings import load_recordings

README = (Path(__file__).parents[3] / "README.md").read_text()

pytestmark = pytest.mark.full


def test_turns_prompts_and_the_ideal_are_those_of_the_recordings() -> None:
    table = README.partition("<!-- demo -->")[2].partition("<!-- end of demo -->")[0]
    written = [[cell.strip() for cell in line.strip("|").split("|")][:4] for line in table.strip().splitlines()[2:]]
    recordings = sorted(load_recordings(), key=lambda recording: recording.name)
    turns = [(recording, request) for recording in recordings for request in recording.requests]
    prompts = [prompt_of(recording.name, request.body, PAGE_SIZE) for recording, request in turns]
    found: dict[str, list[tuple[Prompt, Ideal]]] = defaultdict(list)
    for (recording, _), prompt, ideal in zip(turns, prompts, ideals(prompts, PAGE_SIZE), strict=True):
        for name in (recording.harness, "all"):
            found[name].append((prompt, ideal))
    assert {row[0] for row in written} == set(found)
    for name, *cells in written:
        tokens = sum(prompt.tokens for prompt, _ in found[name])
        shared = sum(ideal.shared for _, ideal in found[name])
        assert cells == [str(len(found[name])), f"{tokens:,}", f"{shared / tokens:.1%}"]
