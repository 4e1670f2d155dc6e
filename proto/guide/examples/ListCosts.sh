buf curl --unix-socket /run/kprobed/kprobed.sock --protocol grpc --http2-prior-knowledge \
    -d '{"days": 7}' \
    http://localhost/kprobed.v1.ProfileService/ListCosts
