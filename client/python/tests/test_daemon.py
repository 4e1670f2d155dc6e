"""The client against a daemon on a real kernel: `cargo vm test languages` starts one, has it
record, and runs this.

KPROBED_SERVER is its address, KPROBED_SOCKET a unix socket that leads there, KPROBECTL the command
line program. In its history are events of the probes `lang/values` and `lang/back`, and a program
of the name `workload` opens files all the time.
"""

import functools
import json
import os
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path

import grpc
import pytest

import kprobed
from kprobed.v1 import event_service_pb2, probe_pb2, probe_service_pb2

SERVER = os.environ["KPROBED_SERVER"]
OPEN = "p:lang/live do_sys_openat2 filename=+0(%si):string flags=+0(%dx):x64"


@pytest.fixture
def client():
    with kprobed.connect(SERVER) as client:
        yield client


def history(client, *probes, **more):
    with client.events(probes or ["lang/values", "lang/back"], oldest=True, until_now=True, **more) as stream:
        return list(stream)


def batches(items):
    return [item for item in items if isinstance(item, kprobed.Batch)]


def losses(items):
    return [item for item in items if isinstance(item, kprobed.Loss)]


def events(items):
    return [row.to_json() for batch in batches(items) for row in batch.rows()]


def test_the_host_is_described_over_tcp_and_over_a_socket(client):
    with kprobed.connect(os.environ["KPROBED_SOCKET"]) as other:
        assert client.host().kernel_release == other.host().kernel_release != ""


def test_the_example_of_the_readme_works(monkeypatch, capsys):
    text = (Path(__file__).parents[1] / "README.md").read_text()
    example = text.split("```python\n")[1].split("```")[0]
    monkeypatch.setattr(kprobed, "connect", functools.partial(kprobed.connect, SERVER))
    exec(example, {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10 and all(len(line.split()) >= 3 for line in lines)


def test_definitions_are_judged(client):
    good = client.check("p:x do_sys_openat2 filename=+0(%si):string")
    assert good.verdict == probe_service_pb2.VERDICT_ACCEPTED and good.location == "do_sys_openat2+0x0"
    bad = client.check("p:x do_sys_openat2 $nothing")
    assert bad.verdict == probe_service_pb2.VERDICT_REFUSED and bad.rule
    with pytest.raises(kprobed.KprobedError) as refused:
        client.add("p:x do_sys_openat2 $nothing")
    error = refused.value
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT and error.reason == bad.rule and not error.is_transient
    (finding,) = error.findings[:1]
    assert error.text.encode()[slice(*finding.span)] == b"$nothing" and finding.message
    assert "definition" in error.fields


def test_a_probe_is_made_watched_and_deleted(client):
    probe = client.add(OPEN, labels={"team": "python"}, request_id="python-1")
    try:
        assert probe.name == "lang/live" and probe.state == probe_pb2.PROBE_STATE_ARMED
        assert client.add(OPEN, labels={"team": "python"}, request_id="python-1").uid == probe.uid
        with pytest.raises(kprobed.KprobedError) as again:
            client.add(OPEN)
        assert again.value.reason == "PROBE_EXISTS"
        assert [one.name for one in client.probes(selector="team=python")] == ["lang/live"]
        with client.events(["lang/live"], filter='comm == "workload" && filename == "/etc/passwd"') as stream:
            assert isinstance(next(stream), kprobed.Started) and isinstance(next(stream), kprobed.Epoch)
            rows = stream.rows()
            seen = [next(rows) for _ in range(3)]
        for row in seen:
            assert row.comm == b"workload" and row.fields == {"filename": b"/etc/passwd", "flags": 0x8000}
            assert row.location.text.startswith("do_sys_openat2+0x0") and row.tgid
            assert abs(row.wall_ns / 1e9 - seen[0].wall_ns / 1e9) < 600
        client.update("lang/live", enabled=False)
        assert client.get("lang/live").state == probe_pb2.PROBE_STATE_DISABLED
        (profile,) = client.hits("lang/live")
        (account,) = [one for one in client.ledger().probes if one.probe == "lang/live"]
        assert profile.hits >= account.read >= 3
        assert account.hits == account.read + account.undecodable + account.not_read
        now = datetime.now(timezone.utc)
        series = list(client.hits_over_time(now - timedelta(days=1), step_seconds=86400, name_glob="lang/live"))
        assert sum(point.hits for one in series for point in one.points) == profile.hits
    finally:
        client.delete("lang/live")
    with pytest.raises(kprobed.KprobedError) as gone:
        client.get("lang/live")
    assert gone.value.reason == "NO_SUCH_PROBE" and gone.value.metadata["probe"] == "lang/live"


def test_events_are_those_of_kprobectl(client):
    command = [os.environ["KPROBECTL"], "--server", SERVER, "observe", "lang/values", "lang/back"]
    shown = subprocess.run([*command, "--oldest", "--until-now", "-o", "json"], check=True, capture_output=True, text=True)
    theirs = [one for one in map(json.loads, shown.stdout.splitlines()) if one["type"] == "event"]
    ours = events(history(client))
    assert len(ours) >= 20 and {one["probe"] for one in ours} == {"lang/values", "lang/back"}
    for one, other in zip(ours, theirs):
        assert {key: (one[key], other.get(key)) for key in one if one[key] != other.get(key)} == {}
    assert ours == theirs
    # Also as text: no number lost digits on the way.
    assert json.loads(json.dumps(ours)) == theirs


def test_values_mean_what_the_definition_says(client):
    (batch, *_) = batches(history(client, "lang/values"))
    (group,) = batch.groups
    assert set(group.column("big").numbers) == {(1 << 64) - 1} and group.column("big").numbers.format == "Q"
    assert set(group.column("dfd").numbers) == {-100}
    assert group.column("filename").strings.count(b"/etc/passwd") == len(group)
    assert all(group.column("bytes").row(row) == list(b"/et") for row in range(len(group)))
    assert group.timestamps_ns == sorted(group.timestamps_ns) and len(group.tids) == len(group)
    for row in batch.rows():
        # A read from a bad address is a fault, or the field is unproven where the kernel leaves no trace of it.
        assert (row.fields["bad"] is None) != ("bad" in row.unproven)
    back = [row for batch in batches(history(client, "lang/back")) for row in batch.rows()]
    assert back and all(row.return_location is not None and row.fields["fd"] >= 3 for row in back)


def test_a_stream_goes_on_at_its_cursor(client):
    whole = history(client)
    assert len(batches(whole)) >= 2
    with client.events(["lang/values", "lang/back"], oldest=True, until_now=True) as stream:
        first = []
        while not batches(first):
            first.append(next(stream))
        cursor = kprobed.Cursor.parse(str(stream.cursor))
    with client.events(["lang/values", "lang/back"], after=cursor, until_now=True) as stream:
        rest = list(stream)
    # Losses of earlier daemons are in the history too: nothing is lost or doubled between both streams.
    assert losses(first) + losses(rest) == losses(whole)
    assert events(first) + events(rest) == events(whole)
    epoch = [item for item in whole if isinstance(item, kprobed.Epoch)][-1]
    assert epoch.cursor.boot_id == cursor.boot_id and epoch.cursor.epoch == cursor.epoch
    with pytest.raises(kprobed.KprobedError) as foreign:
        next(client.events(after=kprobed.Cursor(cursor.boot_id, cursor.epoch + 1000, 5)))
    assert foreign.value.reason == "FOREIGN_CURSOR"


def test_a_selection_of_fields_and_the_order_of_time(client):
    items = history(client, "lang/values", fields=["dfd"])
    (schema,) = [item for item in items if isinstance(item, kprobed.Schema)]
    assert [field.name for field in schema.fields] == ["dfd"]
    assert all(row.tid is None and row.comm is None and row.context is None for batch in batches(items) for row in batch.rows())
    client.add(OPEN)
    try:
        with client.events(["lang/live"], in_order=True) as stream:
            until = next(item for item in stream if isinstance(item, kprobed.Watermark) and item.watermark_ns)
        assert until.watermark_ns > 0 and until.late_events == 0
    finally:
        client.delete("lang/live")


def test_rows_of_the_daemon_are_those_of_columns(client):
    request = event_service_pb2.StreamEventsRequest()
    request.selection.probes.append("lang/values")
    request.start.oldest = request.start.until_now = True
    rows = list(client.event_rows(request))
    ours = events(history(client, "lang/values"))
    assert [row.timestamp_ns for row in rows] == [one["timestamp_ns"] for one in ours]
    assert all({one.name: one.value.unsigned for one in row.fields}["big"] == (1 << 64) - 1 for row in rows)


def test_a_wrong_request_is_refused_with_its_field(client):
    with pytest.raises(kprobed.KprobedError) as error:
        next(client.events(filter="nothing == 1 &&"))
    assert error.value.reason == "BAD_FILTER" and "selection.filter" in error.value.fields
    for wrong in ("daemon", "tcp://host", "tcp://host:0", "https://host:1"):
        with pytest.raises(ValueError):
            kprobed.connect(wrong)
    with pytest.raises(ValueError, match="begins once"):
        client.events(oldest=True, last=3)
    with kprobed.connect("unix:/no/such/socket", timeout=5) as absent, pytest.raises(kprobed.KprobedError) as error:
        absent.host()
    assert error.value.is_transient
