"""What the soak takes for a leak, on made-up series of the length and the noise of a run of six minutes."""

import random
from collections.abc import Callable

import pytest
from bench.growth import Point, growth
from bench.soak import MAX_BYTES_A_REQUEST

SECONDS = 240
REQUESTS = 87_000
MB = 1_000_000
Series = Callable[[float], float]


def step(size: float, at: float) -> Series:
    """Memory that jumps once, after a share of the requests."""
    return lambda share: size * (share >= at)


def leak(each: float) -> Series:
    """Memory that grows by so many bytes a request."""
    return lambda share: each * REQUESTS * share


def stair(each: float, steps: int, phase: float = 0.5) -> Series:
    """The same leak, in so many jumps."""
    return lambda share: each * REQUESTS / steps * int(share * steps + phase)


def sawtooth(size: float, teeth: float) -> Series:
    """Memory that an allocator takes little by little, and gives back at once."""
    return lambda share: size * (share * teeth % 1)


def warming(size: float) -> Series:
    """A slow start: half of it after a fifth of the requests, half of the rest after another."""
    return lambda share: size * (1 - 0.5 ** (share / 0.2))


def together(*series: Series) -> Series:
    return lambda share: sum(each(share) for each in series)


def points(series: Series, noise: float = 30_000.0) -> list[Point]:
    draw = random.Random(1)
    shares = [second / SECONDS for second in range(SECONDS)]
    return [Point(int(share * REQUESTS), 70 * MB + series(share) + draw.gauss(0, noise)) for share in shares]


@pytest.mark.parametrize(
    "series",
    [
        pytest.param(lambda _share: 0.0, id="flat"),
        *(pytest.param(step(3 * MB, at), id=f"a step after {at}") for at in (0.05, 0.3, 0.5, 0.54, 0.63, 0.95)),
        pytest.param(together(step(3 * MB, 0.3), step(2 * MB, 0.7)), id="two steps"),
        pytest.param(together(step(3 * MB, 0.4), sawtooth(0.3 * MB, 9)), id="a step and a sawtooth"),
        *(pytest.param(sawtooth(MB, teeth), id=f"{teeth} teeth") for teeth in (3, 5, 10, 30)),
        pytest.param(warming(2 * MB), id="a slow start"),
        pytest.param(together(warming(MB), step(3 * MB, 0.5)), id="a slow start and a step"),
        pytest.param(together(step(3 * MB, 0.3), step(-3 * MB, 0.7)), id="a step that goes again"),
    ],
)
def test_what_does_not_go_on_is_no_leak(series: Series) -> None:
    assert growth(points(series)).each < MAX_BYTES_A_REQUEST


@pytest.mark.parametrize("noise", [0.0, 30_000.0, 100_000.0])
def test_noise_is_no_leak(noise: float) -> None:
    assert abs(growth(points(lambda _share: 0.0, noise)).each) < MAX_BYTES_A_REQUEST / 4


@pytest.mark.parametrize(
    "series",
    [
        *(pytest.param(leak(each), id=f"{each} bytes") for each in (45, 50, 80)),
        *(pytest.param(together(leak(each), step(3 * MB, 0.5)), id=f"{each} bytes and a step") for each in (45, 80)),
        pytest.param(together(leak(50), step(3 * MB, 0.2), step(3 * MB, 0.8)), id="50 bytes and two steps"),
        pytest.param(together(leak(50), sawtooth(MB, 10)), id="50 bytes and a sawtooth"),
        pytest.param(lambda share: max(0.0, share - 0.5) * 100 * REQUESTS, id="100 bytes from the middle on"),
        *(
            pytest.param(stair(each, steps, phase / 8), id=f"{each} bytes in {steps} steps, {phase}")
            for each, steps in ((100, 4), (80, 5), (60, 6), (50, 8), (50, 12), (50, 40))
            for phase in range(8)
        ),
    ],
)
def test_what_goes_on_is_a_leak(series: Series) -> None:
    assert growth(points(series)).each > MAX_BYTES_A_REQUEST


def test_what_a_leak_of_a_known_size_is_said_to_be() -> None:
    found = growth(points(together(leak(80), step(3 * MB, 0.5))))
    assert found.each == pytest.approx(80, rel=0.05)
    assert found.total == pytest.approx(80 * found.requests, rel=0.05)
    assert found.steps[0] == pytest.approx(3 * MB, rel=0.3)


def test_few_samples_are_judged_too() -> None:
    assert growth([Point(0, 100), Point(10, 200)]).each == 10
    assert growth([Point(5, 100), Point(5, 200)]).each == growth([]).each == 0
