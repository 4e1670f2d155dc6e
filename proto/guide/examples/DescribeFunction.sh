buf curl --unix-socket /run/kprobed/kprobed.sock --protocol grpc --http2-prior-knowledge \
    -d '{"function": "vfs_read"}' \
    http://localhost/kprobed.v1.KernelService/DescribeFunction
