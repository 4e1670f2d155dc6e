buf curl --unix-socket /run/kprobed/kprobed.sock --protocol grpc --http2-prior-knowledge \
    -d '{"start_time": "2026-01-01T00:00:00Z", "step_seconds": 86400}' \
    http://localhost/kprobed.v1.ProbeService/ListHits
