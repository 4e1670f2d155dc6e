buf curl --unix-socket /run/kprobed/kprobed.sock --protocol grpc --http2-prior-knowledge \
    -d '{"pattern": "vfs_re*"}' \
    http://localhost/kprobed.v1.KernelService/ListFunctions
