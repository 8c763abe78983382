"""Hints go with publications and touches, and say only what was said."""

from __future__ import annotations

import pytest
from test_client import GUARD_SECONDS, HEADS, LAYERS, TOKENS, WIDTH, flat, good, keys_of

from quire_kv import proto
from quire_kv.client import Client, Options
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


def test_hints_travel(quire_server, spec_text, monkeypatch):
    said = []

    def heard(self, message):
        write(self, message)
        said.append((message.category, message.next))

    write = Hint.write
    monkeypatch.setattr(Hint, "write", heard)
    with Client(Options(quire_server.address, call_timeout=GUARD_SECONDS)) as client:
        session = client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS))
        keys, memory = keys_of(3), flat(session, 3, seed=1)[1]
        assert good(session.publish(keys, memory, hint=Hint(WorkCategory.INTERACTIVE, 30.0)))
        assert good(session.touch(keys, hint=Hint(next=NextStep.SESSION_END)))
        assert good(session.touch(keys)) and good(session.publish(keys, memory))
    assert said == [(1, 0), (0, 2)]
