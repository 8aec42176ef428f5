"""The page in a real browser: what is seen, heard and typed while groups change.

`SHARDHERD_SCREENSHOTS=1` has these tests write the pictures of docs/page.md anew: look at them before they are committed.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from shardherd.core.model.event_reasons import CONSUMER_JOINED, SESSION_TIMEOUT, TRANSFER_ENDED
from shardherd.core.model.gauges import Gauge, GaugeKind, Stage
from shardherd.core.model.nouns import ConsumerId, ShardState
from tests.harness.browser import Browser
from tests.harness.played_page import Pages, group, moved, shard, view

IMAGES = Path(__file__).resolve().parents[3] / "docs" / "images"

PLACES = """
    const found = {};
    for (const each of document.querySelectorAll('.shard')) {
        const box = each.querySelector('rect').getBoundingClientRect();
        found[each.querySelector('title').textContent.split(' ')[0]] = [Math.round(box.x), Math.round(box.y)];
    }
    return found;
"""


def keep(browser: Browser, name: str) -> None:
    """A picture for the documentation, if pictures are asked for."""
    if os.environ.get("SHARDHERD_SCREENSHOTS"):
        IMAGES.mkdir(exist_ok=True)
        browser.picture(IMAGES / f"{name}.png")


def places(browser: Browser) -> dict[str, list[int]]:
    """Where each shard is drawn."""
    found: dict[str, list[int]] = browser.run(PLACES)
    return found


def shown(browser: Browser, pages: Pages, key: str = "shop/clicks", **size: int) -> None:
    """Open the page of a group, and wait for it."""
    browser.open(f"{pages.serve()}#/{key}", **size)
    browser.until(lambda: browser.text("article h2") == key)


def test_a_group_is_shown_and_shards_move_when_they_change_hands(browser: Browser, pages: Pages) -> None:
    made, picture = group(12, 3, lag=40)
    identity = pages.put(made, picture)
    pages.hour(identity)
    pages.history.rebalanced(identity, CONSUMER_JOINED, 4)
    shown(browser, pages)

    assert browser.text("article .said") == "Consuming: 3 consumers read 12 shards."
    assert "12 of 12 held" in browser.text(".tiles")
    assert "FollowingShards: 12 shards, 4 for each consumer." in browser.text(".answers")
    assert "It means: the operator chooses the number of consumers by the shards (mode Shards)." in browser.text(".answers")
    assert "ConsumerJoined" in browser.text("[aria-label^='Rebalances']")
    assert browser.text("[aria-label^='Rebalances'] tbody td:nth-child(3)") == "4"
    line = browser.run("return document.querySelector('.chart .line').getAttribute('d').length")
    assert line > 2000
    assert "at most" in browser.run("return document.querySelector('.chart').getAttribute('aria-label')")

    before = places(browser)
    boxes = browser.run("return [...document.querySelectorAll('.lane rect')].map((each) => each.getBoundingClientRect().x)")
    assert len(before) == 12
    assert before["clicks/0"][0] < boxes[1] <= before["clicks/1"][0] < boxes[2] <= before["clicks/2"][0]

    pages.put(made, moved(picture, _0={"state": ShardState.TRANSFER, "next_consumer": "clicks-2"}))
    pages.passes()
    browser.until(lambda: browser.run("return document.querySelectorAll('.shard.TRANSFER').length") == 1)
    assert places(browser)["clicks/0"] == before["clicks/0"]
    assert browser.run("return document.querySelector('.shard.TRANSFER').getAttribute('aria-label')") == (
        "clicks/0, TRANSFER, clicks-0 to clicks-2"
    )

    pages.put(made, moved(picture, _0={"holder": "clicks-2"}))
    pages.history.rebalanced(identity, TRANSFER_ENDED, 1)
    pages.passes()
    browser.until(lambda: places(browser)["clicks/0"][0] >= boxes[2])
    assert browser.text("#announced") == "1 shard moved; clicks/0 is with clicks-2"
    assert browser.text("[aria-label^='Rebalances'] tbody tr:first-child td") == "TransferEnded"
    assert browser.complaints() == []


def test_who_is_too_full_is_seen_beside_its_shards_and_among_the_consumers(browser: Browser, pages: Pages) -> None:
    made, picture = group(4, 2)
    disk = Gauge(GaugeKind.DISK, "/data", 940, 1000)
    full = msgspec.structs.replace(picture.consumers[0], stage=Stage.HIGH, gauges=(disk,))
    pages.put(made, msgspec.structs.replace(picture, consumers=(full, picture.consumers[1])))
    shown(browser, pages)
    said = browser.run("return [...document.querySelectorAll('.lane .about')].map((each) => each.textContent)")
    assert said == ["2 shards, above high, reading", "2 shards, reading"]
    sixth = "[aria-label=Consumers] tbody td:nth-child(6)"
    cells = f"return [...document.querySelectorAll('{sixth}')].map((each) => each.textContent)"
    assert browser.run(cells) == ["above high: disk /data 94.0% full", "-"]
    assert browser.complaints() == []


def test_a_shard_glides_to_its_new_holder_unless_nothing_is_to_move(browser: Browser, pages: Pages) -> None:
    made, picture = group(2, 2)
    pages.put(made, picture)
    shown(browser, pages)
    duration = "return getComputedStyle(document.querySelector('.shard')).transitionDuration"
    assert browser.run(duration) == "0s"
    browser.prefers(color_scheme="light", reduced_motion="no-preference")
    assert browser.run(duration) == "0.7s"


def test_without_groups_it_says_how_to_make_one_and_shows_the_first_by_itself(browser: Browser, pages: Pages) -> None:
    browser.open(pages.serve())
    browser.until(lambda: "There is no ConsumerGroup yet" in browser.text("#state"))
    pages.put(*group(2, 1))
    pages.passes()
    browser.look()
    browser.until(lambda: browser.text("article h2") == "shop/clicks")
    assert browser.text("#state") == ""

    pages.drop()
    pages.passes()
    browser.look()
    browser.until(
        lambda: (
            "There is no group shop/clicks (any more)" in browser.text("#state")
            or "no ConsumerGroup yet" in browser.text("#state")
        )
    )
    assert browser.text("article h2") == ""


def test_a_group_that_is_not_loaded_yet_is_shown_from_its_status(browser: Browser, pages: Pages) -> None:
    pages.put(group(4, 2)[0])
    shown(browser, pages)
    assert "has not loaded this group yet" in browser.text("article")
    assert "No shards are known yet." in browser.text("article")
    assert "ALREADY_ALLOC 4" in browser.text(".states")


def test_while_the_operator_is_away_it_says_so_and_goes_on_when_it_is_back(browser: Browser, pages: Pages) -> None:
    made, picture = group(4, 2, lag=5)
    pages.put(made, picture)
    shown(browser, pages)
    pages.away()
    browser.look()
    browser.until(lambda: "The operator does not answer. What is shown is of " in browser.text("#trouble"))
    assert browser.text("article h2") == "shop/clicks"
    assert browser.text("#connection") == "no answer"

    pages.put(made, moved(picture, _0={"lag_records": 1005}))
    pages.passes()
    pages.serve()
    browser.until(lambda: "1,020 records" in browser.text(".tiles"))
    assert browser.text("#trouble") == ""
    assert browser.text("#announced") == "The operator answers again."


def test_while_the_first_answer_is_awaited_it_says_that_it_loads(browser: Browser, pages: Pages) -> None:
    pages.put(*group(1, 1))
    url = pages.serve()
    with pages.made._lock:
        browser.open(url)
        assert browser.text("#state") == "Loading: the operator is asked for its groups."
    browser.until(lambda: browser.text("article h2") == "shop/clicks")


def test_an_operator_of_another_version_is_named(browser: Browser, pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    pages.put(*group(1, 1))
    browser.open(pages.serve())
    browser.until(lambda: browser.text("article h2") == "shop/clicks")
    monkeypatch.setattr(pages.made, "_made", lambda _: {"format": 99})
    pages.passes()
    browser.look()
    browser.until(lambda: "The operator is of another version than this page: reload the page." in browser.text("#trouble"))


def test_names_and_messages_are_shown_as_text_whatever_they_are(browser: Browser, pages: Pages) -> None:
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    made, picture = group(2, 1, conditions={"Ready": ("False", "CrashLooping", evil)})
    pages.put(made, moved(picture, _0={"shard": f"{evil}/0", "holder": evil}))
    shown(browser, pages)
    assert evil in browser.text("article .said")
    assert evil in browser.text("[aria-label='Shards'] tbody")
    assert browser.run("return document.querySelectorAll('main img, main script').length") == 0
    assert browser.run("return document.title") == "shop/clicks - shardherd"
    assert browser.complaints() == []


def test_no_text_becomes_a_script_or_html(browser: Browser, pages: Pages) -> None:
    browser.open(pages.serve())
    changes = (
        "document.body.innerHTML = '<b>x</b>'",
        "document.createElement('script').text = 'x'",
        "document.createElement('div').setAttribute('onclick', 'x')",
    )
    for change in changes:
        assert browser.run(f"try {{ {change}; return 'done' }} catch (error) {{ return error.name }}") == "TypeError"


def test_a_thousand_shards_are_drawn_quickly_and_found_by_a_filter(browser: Browser, pages: Pages) -> None:
    made, picture = group(1000, 12, lag=3)
    pages.put(made, moved(picture, _7={"state": ShardState.NOT_ALLOC, "holder": None}))
    shown(browser, pages)
    assert browser.run("return document.querySelectorAll('.shard').length") == 1000
    assert len({tuple(place) for place in places(browser).values()}) == 1000
    wide = browser.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]
    assert browser.text(".tools [role=status]") == "1 to 100 of 1,000"

    took = browser.run("""
        const begun = performance.now();
        window.dispatchEvent(new Event('hashchange'));
        return performance.now() - begun;
    """)
    assert took < 1000
    browser.size(1280, 1300)
    keep(browser, "page-thousand")

    browser.click("#shard-filter")
    browser.press(*"not_alloc")
    browser.until(lambda: browser.text(".tools [role=status]") == "1 to 1 of 1")
    row = browser.text("[aria-label='Shards'] tbody tr")
    assert row.startswith("clicks/7")
    assert "NoHolder: it waits for the next rebalance" in row
    # All shards of a consumer change hands at once: every square moves, and none is lost.
    pages.put(made, moved(picture, **{f"_{number}": {"holder": "clicks-1"} for number in range(0, 1000, 12)}))
    pages.passes()
    browser.look()
    browser.until(lambda: browser.text("#announced").startswith("85 shards moved"))
    assert len({tuple(place) for place in places(browser).values()}) == 1000


def test_everything_is_reached_by_the_keyboard(browser: Browser, pages: Pages) -> None:
    for name in ("clicks", "views"):
        pages.put(*group(6, 2, name=name))
    browser.open(pages.serve())
    browser.until(lambda: browser.text("#groups li:nth-child(2)") != "")
    focused = "const at = document.activeElement; return at.id || at.getAttribute('aria-label') || at.textContent"
    browser.press("tab")
    assert browser.run(focused) == "skip"
    browser.press("tab", "tab")
    assert str(browser.run(focused)).startswith("shop/views")
    browser.press("enter")
    browser.until(lambda: browser.text("article h2") == "shop/views")

    for _ in range(20):
        browser.press("tab")
        if browser.run(focused) == "Shards on consumers":
            break
    active = "return document.querySelector('.picture').getAttribute('aria-activedescendant')"
    assert browser.run(active) == "shard-views/0"
    browser.press("right")
    assert browser.run(active) == "shard-views/2"
    browser.press("right", "right")
    assert browser.run(active) == "shard-views/1"
    browser.press("enter")
    assert browser.text("[aria-label='One shard'] h4") == "views/1"
    assert browser.run("return document.querySelector('.shard.chosen').getAttribute('aria-selected')") == "true"
    assert browser.text("#announced").startswith("views/1: ALREADY_ALLOC, views-1.")
    # The next look leaves the focus where it is.
    before = browser.text("#connection")
    pages.passes()
    browser.look()
    browser.until(lambda: browser.text("#connection") != before)
    assert browser.run(focused) == "Shards on consumers"
    assert browser.run(active) == "shard-views/1"


def test_a_screen_reader_is_told_what_everything_is(browser: Browser, pages: Pages) -> None:
    pages.put(*group(3, 2))
    shown(browser, pages)
    told = browser.accessible()
    roles = {role for role, _ in told}
    assert {"banner", "navigation", "main", "contentinfo", "status", "listbox", "option", "table", "image"} <= roles
    named = {(role, name) for role, name in told if role in ("navigation", "listbox", "option", "table", "image", "region")}
    assert {
        ("navigation", "Groups"),
        ("listbox", "Shards on consumers"),
        ("table", "Shards"),
        ("table", "Rebalances, the newest first"),
    } <= named
    assert ("option", "clicks/1, ALREADY_ALLOC, clicks-1") in named
    assert [role for role, name in named if not name] == []
    controls = ("button", "link", "searchbox", "textbox", "DisclosureTriangle")
    assert [(role, name) for role, name in told if role in controls and not name] == []


def test_light_and_dark_follow_what_the_user_prefers(browser: Browser, pages: Pages) -> None:
    made, picture = group(24, 4, lag=40)
    names = [ConsumerId(f"clicks-{number}") for number in range(4)]
    shards = (
        *picture.shards[:20],
        shard(20, None),
        shard(21, "clicks-1", lag=900, state=ShardState.TRANSFER, next_consumer="clicks-3"),
        shard(22, "clicks-2", state=ShardState.TRANSFER, next_consumer="clicks-3"),
        shard(23, None, state=ShardState.OVER),
    )
    counts = {"total": 24, "wait": 0, "notAlloc": 1, "alreadyAlloc": 20, "transfer": 2, "over": 1}
    stuck = {
        "shard": "clicks/20",
        "reason": "NoHolder",
        "message": "it waits for the next rebalance",
        "since": "2026-11-24T01:00:00Z",
    }
    made["status"] |= {"shards": counts, "stuckShards": [stuck], "stuckShardsTotal": 1}
    identity = pages.put(made, view(names, shards))
    pages.put(*group(8, 2, name="orders"))
    pages.hour(identity)
    for reason, count in ((CONSUMER_JOINED, 6), (TRANSFER_ENDED, 6), (SESSION_TIMEOUT, 5), (SESSION_TIMEOUT, 5)):
        pages.history.rebalanced(identity, reason, count)
    shown(browser, pages, wide=1280, high=1500)

    colours = "const of = getComputedStyle(document.body); return [of.backgroundColor, of.color]"
    assert browser.run(colours) == ["rgb(255, 255, 255)", "rgb(22, 32, 43)"]
    steps = browser.run("return document.querySelectorAll(\"[aria-label^='Rebalances'] tbody tr\").length")
    assert steps == 4
    keep(browser, "page-light")
    browser.prefers(color_scheme="dark", reduced_motion="reduce")
    assert browser.run(colours) == ["rgb(16, 22, 29)", "rgb(230, 237, 243)"]
    keep(browser, "page-dark")
    browser.size(420, 1500)
    # What is drawn to measure is drawn again once it is told of its new width.
    assert browser.until(lambda: browser.run("return innerWidth <= 420 && document.documentElement.scrollWidth <= innerWidth"))
