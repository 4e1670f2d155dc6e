buf curl --unix-socket /run/kprobed/kprobed.sock --protocol grpc --http2-prior-knowledge \
    -d '{"name": "by-comm", "once": true}' \
    http://localhost/kprobed.v1.AggregationService/StreamAggregation
