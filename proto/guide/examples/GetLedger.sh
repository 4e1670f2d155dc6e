buf curl --unix-socket /run/kprobed/kprobed.sock --protocol grpc --http2-prior-knowledge \
    -d '{}' \
    http://localhost/kprobed.v1.EventService/GetLedger
