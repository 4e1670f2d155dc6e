buf curl --unix-socket /run/kprobed/kprobed.sock --protocol grpc --http2-prior-knowledge \
    -d '{"name": "by-comm"}' \
    http://localhost/kprobed.v1.AggregationService/ReadAggregation
