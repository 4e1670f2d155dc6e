"""Errors of calls, with the daemon's reason, findings and metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from .v1 import diagnostic_pb2


@dataclass(frozen=True)
class Finding:
    """What is wrong with a piece of a text that was sent, such as a definition."""

    code: str
    """Upper snake case, such as ``BAD_INSN_BNDRY``."""
    message: str
    hint: str
    """What to write instead. Empty: no advice."""
    span: tuple[int, int]
    """First byte in the text (UTF-8), and the first byte after it."""


class KprobedError(Exception):
    """A call that failed. ``str()`` is the message for people."""

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
        text: str = "",
        findings: tuple[Finding, ...] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        """The gRPC code."""
        self.reason = reason
        """Upper snake case, such as ``NO_SUCH_PROBE`` (proto/reference/errors.md). Empty: the daemon gave none."""
        self.metadata = dict(metadata or {})
        """Facts about the reason."""
        self.fields = dict(fields or {})
        """Fields of the request that are at fault, and what is wrong with each."""
        self.text = text
        """The text that the findings are about."""
        self.findings = findings

    @property
    def is_transient(self) -> bool:
        """Whether the same call may succeed after a pause."""
        return self.code is grpc.StatusCode.UNAVAILABLE

    @classmethod
    def of(cls, error: grpc.RpcError) -> KprobedError:
        """Reads what the status of a failed call carries. Details that cannot be read are left out."""
        code, message, details = error.code(), error.details() or "", b""
        for entry in error.trailing_metadata() or ():
            if entry[0] == "grpc-status-details-bin" and isinstance(entry[1], bytes):
                details = entry[1]
        return cls(message, code=code, **_read(details))


def _read(details: bytes) -> dict[str, Any]:
    try:
        status = status_pb2.Status.FromString(details)
    except DecodeError:
        return {}
    found: dict[str, Any] = {}
    for detail in status.details:
        info, request, texts = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), diagnostic_pb2.Diagnostics()
        try:
            if detail.Unpack(info):
                found.update(reason=info.reason, metadata=dict(info.metadata))
            elif detail.Unpack(request):
                found["fields"] = {one.field: one.description for one in request.field_violations}
            elif detail.Unpack(texts):
                findings = tuple(
                    Finding(one.code, one.message, one.hint, (one.span_start, one.span_end)) for one in texts.diagnostics
                )
                found.update(text=texts.text, findings=findings)
        except DecodeError:
            continue
    return found
