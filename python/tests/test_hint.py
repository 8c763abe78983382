"""Hints go with publications and touches, and say only what was said."""

from __future__ import annotations

import logging

import pytest
from test_client import GUARD_SECONDS, HEADS, LAYERS, TOKENS, WIDTH, flat, good, keys_of

from quire_kv import proto
from quire_kv.cache import Cache
from quire_kv.client import Client, Options
from quire_kv.config import Config
from quire_kv.errors import QuireError, Reason
from quire_kv.hint import Hint, NextStep, WorkCategory


def test_names_are_those_of_the_protocol():
    pool = proto.message("quire.v1.Hint").DESCRIPTOR
    for field, ours, prefix in (("category", WorkCategory, "WORK_CATEGORY_"), ("next", NextStep, "NEXT_STEP_")):
        theirs = {v.name.removeprefix(prefix): v.number for v in pool.fields_by_name[field].enum_type.values}
        assert {v.name if v else "UNSPECIFIED": int(v) for v in ours} == theirs


def test_what_is_left_out_is_not_said():
    message = proto.Hint()
    Hint().write(message)
    assert message.ByteSize() == 0
    Hint(WorkCategory.AGENT, 1.5, NextStep.TOOL_CALL).write(message)
    assert (message.category, message.next, proto.seconds(message.expected_reuse)) == (2, 1, 1.5)
    Hint(expected_reuse=1e300).write(message)
    assert proto.seconds(message.expected_reuse) == 365 * 24 * 3600
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(QuireError) as e:
            Hint(expected_reuse=wrong)
        assert e.value.reason is Reason.SIZE_MISMATCH


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({}, Hint()),
        ({"category": "batch"}, Hint(WorkCategory.BATCH)),
        ({"category": None, "reuse_in_s": None, "end_of_session": None}, Hint()),
        ({"category": "agent", "reuse_in_s": 30, "tool_call_pending": True, "end_of_session": False}, Hint(WorkCategory.AGENT, 30.0, NextStep.TOOL_CALL)),
        ({"end_of_session": True}, Hint(next=NextStep.SESSION_END)),
        ({"reuse_in_s": 10**400}, Hint(expected_reuse=365.0 * 24 * 3600)),
    ],
    ids=str,
)
def test_what_a_request_says(given, want):
    assert Hint.parse(given) == want


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("agent", "object"),
        ([("category", "agent")], "object"),
        ({"sever": 1}, "sever"),
        ({5: 1}, "known are"),
        ({"category": "AGENT"}, "category"),
        ({"category": "unknown"}, "category"),
        ({"category": ["agent"]}, "category"),
        ({"category": "x\n" * 5000}, "category"),
        ({"reuse_in_s": 0}, "reuse_in_s"),
        ({"reuse_in_s": -(10**5000)}, "reuse_in_s"),
        ({"reuse_in_s": True}, "reuse_in_s"),
        ({"reuse_in_s": "30"}, "reuse_in_s"),
        ({"reuse_in_s": float("nan")}, "reuse_in_s"),
        ({"reuse_in_s": float("inf")}, "reuse_in_s"),
        ({"end_of_session": 1}, "end_of_session"),
        ({"tool_call_pending": "yes"}, "tool_call_pending"),
        ({"end_of_session": True, "tool_call_pending": True}, "end_of_session"),
        ({"end_of_session": True, "reuse_in_s": 5}, "end_of_session"),
    ],
    ids=lambda v: str(v)[:40] if not isinstance(v, dict) else "-".join(str(k) for k in v),
)
def test_what_is_wrong_in_a_request_is_named_in_one_short_line(given, named):
    with pytest.raises(ValueError, match=named) as e:
        Hint.parse(given)
    assert len(str(e.value)) < 200 and "\n" not in str(e.value)


@pytest.fixture
def said(monkeypatch):
    """The category and next step of each hint that is sent."""
    said = []

    def heard(self, message):
        write(self, message)
        said.append((message.category, message.next))

    write = Hint.write
    monkeypatch.setattr(Hint, "write", heard)
    return said


def test_a_cache_says_its_category_where_a_request_says_none(quire_server, spec_text, said, caplog):
    config = Config.parse({"server": quire_server.address, "category": "batch"})
    cache = Cache(config, spec_text(HEADS, LAYERS, WIDTH, TOKENS), logging.getLogger("test"), adapter="test")
    try:
        assert cache.wait_ready(GUARD_SECONDS)
        keys, memory = keys_of(3), flat(cache.session, 3, seed=1)[1]
        assert all(cache.save(keys, memory, hint=cache.hint_of({"category": "system"}), timeout=GUARD_SECONDS))
        assert all(cache.save(keys, memory, hint=cache.hint_of(None), timeout=GUARD_SECONDS))
        for wrong in ({"category": "urgent"}, 5):
            found = cache.lookup(keys, lease=10.0, hint=cache.hint_of(wrong), timeout=GUARD_SECONDS)
            assert found.leading == 3
            found.lease.release()
        cache.lookup(keys, lease=10.0, hint=cache.hint_of({"end_of_session": True}), timeout=GUARD_SECONDS).lease.release()
        assert cache.lookup(keys, timeout=GUARD_SECONDS).leading == 3  # pins nothing, and says nothing
        assert cache.stats()["bad_hints"] == 2
    finally:
        cache.close()
    assert said == [(4, 0), (3, 0), (3, 0), (3, 0), (3, 2)]
    assert [r.message for r in caplog.records if "hint" in r.message] == [
        "quire: a request's hint is ignored: ValueError: category is 'urgent'; want one of interactive, agent, batch, system"
    ]


def test_hints_travel(quire_server, spec_text, said):
    with Client(Options(quire_server.address, call_timeout=GUARD_SECONDS)) as client:
        session = client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS))
        keys, memory = keys_of(3), flat(session, 3, seed=1)[1]
        assert good(session.publish(keys, memory, hint=Hint(WorkCategory.INTERACTIVE, 30.0)))
        assert good(session.touch(keys, hint=Hint(next=NextStep.SESSION_END)))
        assert good(session.touch(keys)) and good(session.publish(keys, memory))
    assert said == [(1, 0), (0, 2)]


def test_the_end_of_a_request_is_no_use_of_its_pages(quire_server, spec_text):
    with pytest.raises(QuireError):
        Hint(answer_tokens=-1)
    with pytest.raises(QuireError):
        Hint(answer_tokens=2**32)
    config = Config.parse({"server": quire_server.address, "category": "batch"})  # which is not what requests say of themselves
    cache = Cache(config, spec_text(HEADS, LAYERS, WIDTH, TOKENS), logging.getLogger("test"), adapter="test")
    try:
        assert cache.wait_ready(GUARD_SECONDS)
        keys, memory = keys_of(3), flat(cache.session, 3, seed=1)[1]
        assert all(cache.save(keys, memory, timeout=GUARD_SECONDS))
        sent = []
        touch = cache.session.touch
        cache.session.touch = lambda keys, **kw: sent.append((list(keys), kw["hint"], kw["hint_only"], good(touch(keys, **kw))))
        cache.ended(keys, 12)
        cache.ended(keys, 0)  # not known
        cache.ended([], 12)
        assert sent == [(list(keys), Hint(answer_tokens=12), True, True)]
        cache.session.touch = lambda keys, **kw: 1 / 0
        cache.ended(keys, 12)  # nobody is told, and nothing is raised
        assert cache.stats()["failures_unknown"] == 1
    finally:
        cache.close()
