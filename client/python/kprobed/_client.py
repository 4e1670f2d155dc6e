"""Client: the connection to a daemon, and one method for each call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import grpc

from ._errors import KprobedError
from ._events import Cursor, EventStream
from .v1 import (
    event_pb2,
    event_service_pb2,
    event_service_pb2_grpc,
    host_service_pb2,
    host_service_pb2_grpc,
    probe_pb2,
    probe_service_pb2,
    probe_service_pb2_grpc,
)

DEFAULT_SERVER = "unix:/run/kprobed/kprobed.sock"

# A peer that vanished is detected after the sum of both. Batches are of up to some hundred KiB, never near the limit.
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 64 << 20),
]

Answer = TypeVar("Answer")


def connect(
    server: str = DEFAULT_SERVER,
    *,
    ca: str | Path | None = None,
    certificate: str | Path | None = None,
    key: str | Path | None = None,
    server_name: str | None = None,
    timeout: float = 30.0,
) -> Client:
    """Opens a connection. Nothing is sent before the first call.

    ``server`` is ``unix:/PATH``, ``/PATH``, ``tcp://HOST:PORT`` (loopback and tunnels) or
    ``https://HOST:PORT`` (mutual TLS). For TLS, ``ca``, ``certificate`` and ``key`` are PEM files:
    the authority of the daemon's certificate, and this client's own; ``server_name`` is the name in
    the daemon's certificate if it is not the host. ``timeout`` is for each call, in seconds; a
    stream has no limit once it has begun.

    Raises ``ValueError`` for an address of another form, or TLS without files, and ``OSError`` for
    files that cannot be read.
    """
    options = list(_OPTIONS)
    if server.startswith("/"):
        server = f"unix:{server}"
    if server.startswith("unix:/"):
        # The name of the socket would be the `:authority` of each call, and slashes may not be in it.
        options.append(("grpc.default_authority", "localhost"))
        return Client(grpc.insecure_channel(server, options=options), timeout)
    scheme, separator, authority = server.partition("://")
    port = authority.rpartition(":")[2]
    if not separator or scheme not in ("tcp", "https") or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(
            f"`{server}` is not an address of a daemon: write `unix:/PATH`, `tcp://HOST:PORT` or `https://HOST:PORT`"
        )
    if scheme == "tcp":
        return Client(grpc.insecure_channel(authority, options=options), timeout)
    if ca is None or certificate is None or key is None:
        raise ValueError("`https://` needs `ca`, `certificate` and `key`: the daemon asks every client for a certificate")
    credentials = grpc.ssl_channel_credentials(
        root_certificates=Path(ca).read_bytes(),
        private_key=Path(key).read_bytes(),
        certificate_chain=Path(certificate).read_bytes(),
    )
    if server_name is not None:
        options.append(("grpc.ssl_target_name_override", server_name))
    return Client(grpc.secure_channel(authority, credentials, options=options), timeout)


class Client:
    """Calls of the daemon. All raise ``KprobedError``. Threads may share one."""

    def __init__(self, channel: grpc.Channel, timeout: float = 30.0) -> None:
        self.channel = channel
        """For services that have no method here: ``kprobed.v1.*_pb2_grpc`` has a stub for each."""
        self.timeout = timeout
        self._probes = probe_service_pb2_grpc.ProbeServiceStub(channel)
        self._events = event_service_pb2_grpc.EventServiceStub(channel)
        self._host = host_service_pb2_grpc.HostServiceStub(channel)

    def close(self) -> None:
        """Closes the connection, and ends its streams."""
        self.channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: Callable[..., Answer], request: Any) -> Answer:
        try:
            return method(request, timeout=self.timeout)
        except grpc.RpcError as error:
            raise KprobedError.of(error) from error

    def host(self) -> host_service_pb2.GetHostResponse:
        """Describes the host: kernel, features, and what is wrong with it."""
        return self._call(self._host.GetHost, host_service_pb2.GetHostRequest())

    def check(self, definition: str) -> probe_service_pb2.CheckProbeResponse:
        """Says whether ``add`` would make this probe now, and why not. Changes nothing. A refusal
        is an answer, not an exception.
        """
        return self._call(self._probes.CheckProbe, probe_service_pb2.CheckProbeRequest(definition=definition))

    def add(
        self,
        definition: str,
        *,
        enabled: bool = True,
        filter: str = "",
        labels: Mapping[str, str] | None = None,
        request_id: str = "",
        **more: Any,
    ) -> probe_pb2.Probe:
        """Defines a probe; when this returns, it is durable and in the kernel. ``more``: other
        fields of ``CreateProbeRequest``.

        With a ``request_id`` (any unique text) the call is safe to repeat.
        """
        request = probe_service_pb2.CreateProbeRequest(
            definition=definition, enabled=enabled, filter=filter, labels=dict(labels or {}), request_id=request_id, **more
        )
        return self._call(self._probes.CreateProbe, request).probe

    def get(self, name: str) -> probe_pb2.Probe:
        """Reads one probe: ``GROUP/EVENT``, or ``EVENT`` if only one probe has it."""
        return self._call(self._probes.GetProbe, probe_service_pb2.GetProbeRequest(name=name)).probe

    def probes(self, name_glob: str = "", *, selector: str = "") -> Iterator[probe_pb2.Probe]:
        """All probes by name, fetched page by page."""
        request = probe_service_pb2.ListProbesRequest(name_glob=name_glob, label_selector=selector, page_size=1000)
        while True:
            page = self._call(self._probes.ListProbes, request)
            yield from page.probes
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def update(self, name: str, **changes: Any) -> probe_pb2.Probe:
        """Changes a probe. ``changes``: fields of ``UpdateProbeRequest``, such as
        ``enabled=False``, ``filter=""`` or ``set_labels={...}``.
        """
        request = probe_service_pb2.UpdateProbeRequest(name=name, **changes)
        return self._call(self._probes.UpdateProbe, request).probe

    def delete(self, name: str, **more: Any) -> probe_service_pb2.DeleteProbeResponse:
        """Removes a probe, after what it has recorded is read. ``more``: fields of
        ``DeleteProbeRequest``, such as ``etag``.
        """
        return self._call(self._probes.DeleteProbe, probe_service_pb2.DeleteProbeRequest(name=name, **more))

    def ledger(self) -> event_service_pb2.GetLedgerResponse:
        """Where every hit and every event went, after everything in the kernel's buffers is read."""
        return self._call(self._events.GetLedger, event_service_pb2.GetLedgerRequest())

    def hits(self, name_glob: str = "", *, selector: str = "") -> list[probe_pb2.HitProfile]:
        """Hit counts of probes, read from the kernel now."""
        request = probe_service_pb2.ListHitsRequest(name_glob=name_glob, label_selector=selector)
        return list(self._call(self._probes.ListHits, request).profiles)

    def hits_over_time(
        self, since: datetime, *, until: datetime | None = None, step_seconds: int = 60, name_glob: str = "", selector: str = ""
    ) -> Iterator[probe_service_pb2.HitSeries]:
        """Hits by intervals of one length. Times are aware; a time without a zone raises ``ValueError``."""
        request = probe_service_pb2.ListHitsRequest(
            step_seconds=step_seconds, name_glob=name_glob, label_selector=selector
        )
        request.start_time.FromDatetime(_aware(since))
        if until is not None:
            request.end_time.FromDatetime(_aware(until))
        while True:
            page = self._call(self._probes.ListHits, request)
            yield from page.series
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def events(
        self,
        probes: Iterable[str] = (),
        *,
        selector: str = "",
        filter: str = "",
        sample_one_in: int = 0,
        fields: Iterable[str] = (),
        after: Cursor | None = None,
        since: datetime | None = None,
        last: int | None = None,
        oldest: bool = False,
        until_now: bool = False,
        in_order: bool = False,
        delivery: event_service_pb2.Delivery | None = None,
    ) -> EventStream:
        """Streams events in columns.

        ``probes`` are globs of names; ``selector`` is about labels, ``filter`` about fields, as in
        ``EventSelection``. ``fields`` leaves out all others. It begins with what happens from now
        on, or at one of ``after`` (a cursor: no event comes twice), ``since``, ``last`` (this many
        events back) or ``oldest``; ``until_now`` ends it at the present. ``in_order`` asks for
        watermarks, up to which a reader can sort.

        The request is refused with the first item, as ``KprobedError``.
        """
        begins = {"after": after is not None, "since": since is not None, "last": last is not None, "oldest": oldest}
        if sum(begins.values()) > 1:
            raise ValueError(f"one of {', '.join(name for name, given in begins.items() if given)}: a stream begins once")
        request = event_service_pb2.StreamEventsRequest(fields=list(fields))
        request.selection.probes.extend(probes)
        request.selection.label_selector = selector
        request.selection.filter = filter
        request.selection.sample_one_in = sample_one_in
        request.start.until_now = until_now
        if after is not None:
            request.start.cursor.CopyFrom(after.message())
        elif since is not None:
            request.start.since.FromDatetime(_aware(since))
        elif last is not None:
            request.start.last_events = last
        elif oldest:
            request.start.oldest = True
        if delivery is not None:
            request.delivery.CopyFrom(delivery)
        if in_order:
            request.delivery.order = event_service_pb2.EVENT_ORDER_TIME
        return EventStream(self._events.StreamEvents(request))

    def event_rows(self, request: event_service_pb2.StreamEventsRequest) -> Iterator[event_pb2.EventRow]:
        """Streams events as the daemon writes them row by row: those of one CPU in the order of
        time. It costs several times as much as ``events(...).rows()`` on both sides.
        """
        asked = event_service_pb2.StreamEventsRequest()
        asked.CopyFrom(request)
        asked.form = event_service_pb2.EVENT_FORM_ROWS
        try:
            for message in self._events.StreamEvents(asked):
                yield from message.rows.events
        except grpc.RpcError as error:
            raise KprobedError.of(error) from error


def _aware(time: datetime) -> datetime:
    if time.tzinfo is None:
        raise ValueError(f"{time} has no time zone: use `datetime.now(timezone.utc)`")
    return time
