"""Another config in all processes of a proxy: all of them have it, or none."""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.subjects.processes import until

from .reload_scene import Scene, deaths, kill, price


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with Scene(tmp_path_factory.mktemp("reload_processes"), extra="processes = 2") as found:
        yield found


def prices(scene: Scene) -> set[str]:
    """What an output token costs at each of some connections, which the system deals out to the processes."""
    return {price(scene.ask(f"price {number}")) for number in range(12)}


def hang_up(scene: Scene) -> None:
    assert scene.proxy.child is not None
    os.kill(scene.proxy.child.pid, signal.SIGHUP)


def test_all_processes_apply_a_file_and_one_that_starts_later_too(scene: Scene) -> None:
    done = scene.apply(scene.first.replace('output = "3.00"', 'output = "6.00"') + scene.tables[2])
    assert (done["processes"], done["processes_behind"]) == (2, 0)
    assert prices(scene) == {"6"}
    kill(scene, 0)
    assert prices(scene) == {"6"}
    until(lambda: scene.states().get("e2") == "up", "it knows the engine that has joined")


@pytest.mark.parametrize("order", ["reload", "SIGHUP"])
def test_a_refused_file_changes_no_process_and_all_say_so_until_one_is_accepted(scene: Scene, order: str) -> None:
    def says() -> set[bool]:
        return {"problems" in str(scene.ready().get("degraded")) for _ in range(12)}

    scene.apply(scene.first)
    assert says() == {False}
    scene.write(scene.first.replace('output = "3.00"', 'output = "-3"'))
    if order == "reload":
        assert scene.reload().status_code == 400
    else:
        hang_up(scene)
        until(lambda: True in says(), "it is said")
    assert says() == {True}
    assert prices(scene) == {"3"}
    scene.apply(scene.first)  # which was in force all the time
    assert says() == {False}


def test_the_supervisor_refuses_what_its_processes_would_refuse(scene: Scene) -> None:
    scene.apply(scene.first)
    scene.write(f'{scene.first}{scene.tables[2]}\nkey_file = "nowhere.key"\n')
    hang_up(scene)
    until(lambda: "cannot read the engine key" in scene.log(), "the file is refused")
    before = deaths(scene)
    kill(scene, 1)
    assert deaths(scene) == before + 1
    assert scene.states().keys() == {"e0", "e1"}


def test_the_supervisor_watches_the_file(scene: Scene) -> None:
    scene.apply(scene.first.replace("[proxy]", "[proxy]\nwatch_config = true"))
    scene.write(scene.first.replace('output = "3.00"', 'output = "7.00"'))
    until(lambda: prices(scene) == {"7"}, "all processes have it")
