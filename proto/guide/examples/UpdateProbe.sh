buf curl --unix-socket /run/kprobed/kprobed.sock --protocol grpc --http2-prior-knowledge \
    -d '{"name": "kprobes/open", "filter": "filename ~ \"/etc/*\""}' \
    http://localhost/kprobed.v1.ProbeService/UpdateProbe
