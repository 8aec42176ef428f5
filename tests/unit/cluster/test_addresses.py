"""Instances get addresses that do not collide."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dev.cluster.errors import ClusterError
from dev.cluster.registry import Addresses, Registry, allocate, check_name


def test_the_first_instance_gets_the_first_addresses() -> None:
    assert allocate("demo", {}, []) == Addresses(1)


def test_an_instance_keeps_the_addresses_that_it_has() -> None:
    assert allocate("demo", {"demo": 7}, ["10.88.7.0/24"]) == Addresses(7)


def test_the_lowest_number_that_no_instance_has_is_given() -> None:
    assert allocate("new", {"a": 1, "b": 3}, []) == Addresses(2)


@pytest.mark.parametrize("route", ["10.88.1.0/24", "10.89.1.128/25", "10.90.1.5", "10.88.0.0/23"])
def test_addresses_that_the_machine_already_routes_are_passed_over(route: str) -> None:
    assert allocate("new", {}, [route]) == Addresses(2)


def test_a_machine_that_routes_all_of_them_is_named_as_the_cause() -> None:
    with pytest.raises(ClusterError, match="no address left for instance 'new'"):
        allocate("new", {}, ["10.0.0.0/8"])


def test_every_network_of_an_instance_is_its_own() -> None:
    one, two = Addresses(1), Addresses(2)
    networks = [one.wire, one.pods, one.services, two.wire, two.pods, two.services]
    assert len(set(networks)) == 6
    assert (one.machine, one.node, one.first_service) == ("10.88.1.1", "10.88.1.2", "10.90.1.1")


def test_the_name_of_the_wire_fits_into_what_the_kernel_allows() -> None:
    assert max(len(Addresses(index).link) for index in (1, 254)) <= 15


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a b", "1a", "a" * 33, "a/b", "../x"])
def test_a_name_that_cannot_be_a_folder_and_a_host_is_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="lower-case letters"):
        check_name(name)


def test_two_processes_that_start_at_once_get_different_numbers(tmp_path: Path) -> None:
    registry = Registry(tmp_path)

    def start(name: str) -> int:
        with registry.open() as content:
            index = allocate(name, content["instances"], []).index
            content["instances"][name] = index
        return index

    with ThreadPoolExecutor(8) as pool:
        given = list(pool.map(start, [f"i{number}" for number in range(24)]))
    assert sorted(given) == list(range(1, 25))


def test_a_change_that_fails_leaves_the_registry_as_it_was(tmp_path: Path) -> None:
    registry = Registry(tmp_path)

    def half_a_change() -> None:
        with registry.open() as content:
            content["instances"]["other"] = 2
            raise RuntimeError

    with registry.open() as content:
        content["instances"]["demo"] = 1
    with pytest.raises(RuntimeError):
        half_a_change()
    assert json.loads((tmp_path / "registry.json").read_text())["instances"] == {"demo": 1}
