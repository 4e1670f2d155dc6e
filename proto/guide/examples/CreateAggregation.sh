buf curl --unix-socket /run/kprobed/kprobed.sock --protocol grpc --http2-prior-knowledge \
    -d '{"name": "by-comm", "spec": {"histogram": {"probe": "kprobes/open", "keys": [{"context": "CONTEXT_KEY_COMM"}]}}, "ttl": "60s"}' \
    http://localhost/kprobed.v1.AggregationService/CreateAggregation
