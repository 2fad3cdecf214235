"""Connections that bring much are read by turns, tenant by tenant, and a few in one iteration of the event loop."""

import asyncio

import uvloop

from warmroute_proxy.server.http.read_slices import GO_ON, SLICE_BYTES, ReadSlices

READ = SLICE_BYTES // 2


class Uploading:
    """A connection whose socket always has more to read."""

    def __init__(self, slices: ReadSlices, tenant: str, log: list[str]) -> None:
        self._tenant = tenant
        self._slices = slices
        self._log = log
        self._paused = False

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        asyncio.get_running_loop().call_soon(self.bring)

    def bring(self) -> None:
        """As the loop does: read until paused, 32 times at most."""
        for _ in range(32):
            if self._paused:
                return
            self._log.append(self._tenant)
            self._slices.read(self, READ, self._tenant)


async def _read(tenants: list[str], iterations: int) -> list[list[str]]:
    """Whose bytes are read, iteration by iteration."""
    slices, log, found = ReadSlices(), list[str](), list[list[str]]()
    for tenant in tenants:
        asyncio.get_running_loop().call_soon(Uploading(slices, tenant, log).bring)
    for _ in range(iterations):
        before = len(log)
        await asyncio.sleep(0)
        found.append(log[before:])
    return found


def test_one_connection_has_a_slice_in_each_iteration() -> None:
    found = uvloop.run(_read(["a"], 6))
    assert all(len(each) <= SLICE_BYTES // READ + 1 for each in found)
    assert sum(map(len, found)) > 6


def test_many_connections_bring_no_more_in_an_iteration_than_a_few() -> None:
    first, *later = uvloop.run(_read(["a"] * 50, 20))
    assert len(first) <= 50 + SLICE_BYTES // READ
    assert all(len(each) <= SLICE_BYTES // READ + GO_ON for each in later)
    assert sum(map(len, later)) > 19


def test_a_tenant_with_one_connection_is_read_as_often_as_one_with_many() -> None:
    read = [tenant for each in uvloop.run(_read(["hostile"] * 50 + ["innocent"], 60))[1:] for tenant in each]
    turns = [tenant for tenant, following in zip(read, [*read[1:], ""], strict=True) if tenant != following]
    assert abs(turns.count("innocent") - turns.count("hostile")) <= 1
    assert turns.count("innocent") > 50
