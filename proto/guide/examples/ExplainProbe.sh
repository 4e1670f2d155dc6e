buf curl --unix-socket /run/kprobed/kprobed.sock --protocol grpc --http2-prior-knowledge \
    -d '{"definition": "r:opened do_sys_openat2 fd=$retval:s64"}' \
    http://localhost/kprobed.v1.ProbeService/ExplainProbe
