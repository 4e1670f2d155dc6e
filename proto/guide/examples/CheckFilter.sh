buf curl --unix-socket /run/kprobed/kprobed.sock --protocol grpc --http2-prior-knowledge \
    -d '{"selection": {"probes": ["kprobes/open"], "filter": "comm == \"workload\""}}' \
    http://localhost/kprobed.v1.EventService/CheckFilter
