"""A receiver of OTLP over gRPC, made of the official generated classes: each request becomes a line of JSON in a file.

    otlp_sink.py DIRECTORY

DIRECTORY has `server.pem` and `server.key`, and gets `port`, which is written when the receiver listens, and `requests.jsonl`.
"""

import json
import pathlib
import sys
from concurrent import futures

import grpc
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2_grpc as logs_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc


class Sink(logs_grpc.LogsServiceServicer):
    """Answers every request, when it is in the file."""

    def __init__(self, directory, signal, response):
        self.file = open(directory / "requests.jsonl", "a", encoding="utf-8", buffering=1)
        self.signal = signal
        self.response = response

    def Export(self, request, context):  # noqa: N802, the name of the protocol
        fields = MessageToDict(request)
        self.file.write(json.dumps({"signal": self.signal, "request": fields}) + "\n")
        return self.response()


def main():
    directory = pathlib.Path(sys.argv[1])
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    for signal, add, response in (
        ("logs", logs_grpc.add_LogsServiceServicer_to_server, logs.ExportLogsServiceResponse),
        ("metrics", metrics_grpc.add_MetricsServiceServicer_to_server, metrics.ExportMetricsServiceResponse),
        ("traces", trace_grpc.add_TraceServiceServicer_to_server, trace.ExportTraceServiceResponse),
    ):
        add(Sink(directory, signal, response), server)
    pair = ((directory / "server.key").read_bytes(), (directory / "server.pem").read_bytes())
    last = directory / "port"
    wanted = last.read_text() if last.exists() else "0"
    port = server.add_secure_port(f"127.0.0.1:{wanted}", grpc.ssl_server_credentials([pair]))
    server.start()
    last.write_text(str(port))
    (directory / "ready").touch()
    server.wait_for_termination()


main()
