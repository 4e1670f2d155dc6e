buf curl --unix-socket /run/kprobed/kprobed.sock --protocol grpc --http2-prior-knowledge \
    -d '{"definition": "p:open do_sys_openat2 filename=+0(%si):ustring", "explain": true}' \
    http://localhost/kprobed.v1.ProbeService/CheckProbe
