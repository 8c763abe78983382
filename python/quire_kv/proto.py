"""Message classes of quire.v1, made when this module is imported from the descriptor set beside it (quire.binpb).

There is no generated code, so any protobuf from 4.25 on serves, and the classes live in a pool of their own: they meet
no other package's. A message quire.v1.FetchRequest is `proto.FetchRequest`; a nested one, or one of google.protobuf, is
had from `message`. `make proto` writes the set, tools/check/proto.sh holds it to the .proto files.

    proto.FetchRequest(lease_id=b"l").SerializeToString()
    proto.parse(proto.FetchResponse, body)       QuireError where the bytes are no such message
"""

from __future__ import annotations

import pathlib
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from .errors import Difference, QuireError, Reason

__all__ = ["METHODS", "error_of", "message", "parse", "seconds", "set_seconds"]

_PACKAGE = "quire.v1"


def _status_file() -> descriptor_pb2.FileDescriptorProto:
    """google.rpc.Status and google.protobuf.Any: what a refused call is, besides our own detail."""
    field = descriptor_pb2.FieldDescriptorProto
    f = descriptor_pb2.FileDescriptorProto(name="quire_kv/status.proto", package="google.rpc", syntax="proto3")
    any_message = f.message_type.add(name="Any")
    any_message.field.add(name="type_url", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    any_message.field.add(name="value", number=2, type=field.TYPE_BYTES, label=field.LABEL_OPTIONAL)
    status = f.message_type.add(name="Status")
    status.field.add(name="code", number=1, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    status.field.add(name="message", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    status.field.add(name="details", number=3, type=field.TYPE_MESSAGE, label=field.LABEL_REPEATED, type_name=".google.rpc.Any")
    return f


def _pool() -> Any:
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(pathlib.Path(__file__).with_name("quire.binpb").read_bytes())
    for f in (*files.file, _status_file()):
        pool.AddSerializedFile(f.SerializeToString())
    return pool


_POOL = _pool()
_CLASSES: dict[str, Any] = {}


def message(full_name: str) -> Any:
    """The class of a message by its full name, "quire.v1.PageEvent". KeyError when there is none."""
    made = _CLASSES.get(full_name)
    if made is None:
        made = _CLASSES[full_name] = message_factory.GetMessageClass(_POOL.FindMessageTypeByName(full_name))
    return made


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    try:
        made = message(f"{_PACKAGE}.{name}")
    except KeyError:
        raise AttributeError(f"{_PACKAGE} has no message {name}") from None
    globals()[name] = made
    return made


def _methods() -> dict[str, tuple[str, Any, Any]]:
    out = {}
    for service in ("PageService", "NamespaceService", "AdminService"):
        for m in _POOL.FindServiceByName(f"{_PACKAGE}.{service}").methods:
            path = f"/{_PACKAGE}.{service}/{m.name}"
            out[f"{service}.{m.name}"] = (path, message(m.input_type.full_name), message(m.output_type.full_name))
    return out


METHODS = _methods()
"""By "PageService.Fetch": the path of gRPC, the class of the request, the class of the response."""

Status = message("google.rpc.Status")

_MISSING = object()
_CANCELLED, _UNKNOWN_CODE, _DEADLINE, _UNAVAILABLE = 1, 2, 4, 14
_REASON_OF_CODE = {
    16: Reason.UNAUTHORIZED,
    7: Reason.UNAUTHORIZED,
    12: Reason.UNSUPPORTED,
    8: Reason.LIMIT_EXCEEDED,
    11: Reason.LIMIT_EXCEEDED,
}
_BROKEN_CODES = frozenset({_CANCELLED, _UNKNOWN_CODE, _DEADLINE, 13, _UNAVAILABLE, 15})


def parse(cls: Any, body: bytes) -> Any:
    """The message in `body`. QuireError, broken, for bytes that are none: the peer does not speak this protocol."""
    try:
        return cls.FromString(body)
    except (DecodeError, ValueError, RecursionError) as e:
        raise QuireError(Reason.UNKNOWN, f"protocol: no {cls.DESCRIPTOR.name}: {e}", broken=True) from None


def error_of(status: Any, *, where: str = "") -> QuireError:
    """The error of a google.rpc.Status that is not OK. Reason and differences are the detail's where there is one.

    `broken` is set where it was not the store that spoke: no detail, and a code of the transport.
    """
    text = (where + ": " if where else "") + (status.message or f"status {status.code}")[:1000]
    for d in status.details:
        if d.type_url.endswith("/quire.v1.ErrorDetail"):
            try:
                detail = message("quire.v1.ErrorDetail").FromString(d.value)
            except DecodeError:
                continue
            differences = [Difference(x.path, x.a, x.b, getattr(x, "class")) for x in detail.differences]
            reason = Reason.of(detail.reason) or Reason.UNKNOWN
            return QuireError(reason, text, path=detail.path, differences=differences, broken=status.code == _DEADLINE)
    reason = _REASON_OF_CODE.get(status.code, Reason.UNKNOWN)
    return QuireError(reason, text, broken=status.code in _BROKEN_CODES)


def seconds(duration: Any) -> float:
    """A google.protobuf.Duration as seconds."""
    return float(duration.seconds) + float(duration.nanos) * 1e-9


def set_seconds(duration: Any, value: float) -> None:
    """Writes seconds, not negative, into a google.protobuf.Duration field."""
    whole = int(value)
    duration.seconds, duration.nanos = whole, min(999_999_999, int((value - whole) * 1e9))
    if not whole and not duration.nanos and value > 0:
        duration.nanos = 1
