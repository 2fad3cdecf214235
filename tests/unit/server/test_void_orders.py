"""An order to void a row waits until it was carried out: over restarts, a torn line and fewer processes."""

from pathlib import Path

from warmroute_proxy.server.ledger.void_orders import REWRITE_LINES, VoidOrder, VoidOrders


def order(number: int, region: str = "west") -> VoidOrder:
    return VoidOrder(f"wr-{number:024x}", region, "acme", "acme", 1000.0)


def ids(orders: VoidOrders, region: str = "west") -> list[str]:
    return [found.id for found in orders.of_region(region)]


def test_an_order_outlives_the_process_until_it_was_carried_out(tmp_path: Path) -> None:
    orders = VoidOrders(tmp_path, 0, 1)
    for number in range(3):
        orders.add(order(number))
    orders.add(order(3, "north"))
    orders.carried_out(order(1))
    again = VoidOrders(tmp_path, 0, 1)
    assert ids(again) == [order(0).id, order(2).id]
    assert ids(again, "north") == [order(3).id]
    for number in (0, 2, 3):
        again.carried_out(order(number))
    assert VoidOrders(tmp_path, 0, 1).waiting == 0


def test_a_torn_line_costs_no_other_order(tmp_path: Path) -> None:
    VoidOrders(tmp_path, 0, 1).add(order(1))
    with (tmp_path / "voids.jsonl").open("ab") as file:
        file.write(b'{"id":"wr-')
    orders = VoidOrders(tmp_path, 0, 1)
    orders.add(order(2))
    assert ids(VoidOrders(tmp_path, 0, 1)) == [order(1).id, order(2).id]


def test_the_first_process_takes_over_those_of_processes_that_are_no_more(tmp_path: Path) -> None:
    for process in range(3):
        (tmp_path / f"process-{process}").mkdir()
        VoidOrders(tmp_path, process, 3).add(order(process))
    assert ids(VoidOrders(tmp_path, 0, 2)) == [order(0).id, order(2).id]
    assert ids(VoidOrders(tmp_path, 1, 2)) == [order(1).id]
    assert ids(VoidOrders(tmp_path, 0, 3)) == [order(0).id, order(2).id]


def test_what_was_put_off_comes_last(tmp_path: Path) -> None:
    orders = VoidOrders(tmp_path, 0, 1)
    for number in range(3):
        orders.add(order(number))
    orders.put_off(order(0))
    assert ids(orders) == [order(1).id, order(2).id, order(0).id]


def test_the_file_does_not_grow_with_what_was_carried_out(tmp_path: Path) -> None:
    orders = VoidOrders(tmp_path, 0, 1)
    for number in range(2 * REWRITE_LINES):
        orders.add(order(number))
        orders.carried_out(order(number))
    assert len((tmp_path / "voids.jsonl").read_bytes().splitlines()) <= 2 * REWRITE_LINES


def test_a_full_disk_loses_none(tmp_path: Path) -> None:
    orders = VoidOrders(tmp_path, 0, 1)
    (tmp_path / "voids.jsonl").mkdir()  # no file can be written there
    orders.add(order(1))
    orders.sweep()
    assert ids(orders) == [order(1).id]
    (tmp_path / "voids.jsonl").rmdir()
    orders.sweep()
    assert ids(VoidOrders(tmp_path, 0, 1)) == [order(1).id]
