"""Gauges of groups: what a scrape shows of them, and that a deleted group leaves nothing."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from shardherd.telemetry.gauges import GroupGauge
from shardherd.telemetry.metrics import CONDITION, GROUP_PRODUCED

CLICKS, ORDERS = ("shop", "clicks"), ("shop", "orders")


def shown(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_the_last_values_of_each_group_are_shown_and_no_earlier_ones() -> None:
    registry = CollectorRegistry()
    conditions, produced = GroupGauge(CONDITION, registry), GroupGauge(GROUP_PRODUCED, registry)
    conditions.show(CLICKS, {"Ready": False, "OrderPreserved": True})
    conditions.show(CLICKS, {"Ready": True})
    conditions.show(ORDERS, {"Stalled": False})
    produced.show(CLICKS, {"": 2.5})

    assert shown(registry) == [
        'shardherd_group_condition{condition="Ready",consumergroup="clicks",namespace="shop"} 1.0',
        'shardherd_group_condition{condition="Stalled",consumergroup="orders",namespace="shop"} 0.0',
        'shardherd_group_produced_records_per_second{consumergroup="clicks",namespace="shop"} 2.5',
    ]


def test_nothing_is_left_of_a_deleted_group() -> None:
    registry = CollectorRegistry()
    conditions = GroupGauge(CONDITION, registry)
    conditions.show(CLICKS, {"Ready": True})
    conditions.show(ORDERS, {"Ready": True})

    conditions.forget(CLICKS)
    conditions.forget(CLICKS)

    assert shown(registry) == ['shardherd_group_condition{condition="Ready",consumergroup="orders",namespace="shop"} 1.0']
