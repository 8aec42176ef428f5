"""Groups in a table."""

from __future__ import annotations

from typing import Any

from shardherd.core.planning.listing import GROUP_HEADS, group_row, table


def test_a_group_is_a_row_of_what_its_status_says() -> None:
    conditions = [
        {"type": "Stalled", "status": "False", "message": "Nothing is in the way."},
        {"type": "Ready", "status": "True", "message": "2 consumers read 4 shards."},
    ]
    status = {
        "conditions": conditions,
        "shards": {"total": 5, "alreadyAlloc": 4},
        "readyReplicas": 1,
        "desiredReplicas": 2,
        "lag": {"records": 70},
    }
    told: dict[str, Any] = {"metadata": {"namespace": "shop", "name": "clicks"}, "status": status}
    new: dict[str, Any] = {"metadata": {"namespace": "shop", "name": "x"}}

    assert table(GROUP_HEADS, map(group_row, (told, new))) == [
        "GROUP        READY    SHARDS  ASSIGNED  CONSUMERS  LAG  WHY",
        "shop/clicks  True     5       4         1/2        70   2 consumers read 4 shards.",
        "shop/x       Unknown  -       -         0/-        -    nothing was looked at yet",
    ]


def test_a_table_without_rows_is_its_heads() -> None:
    assert table(("A", "B"), ()) == ["A  B"]
