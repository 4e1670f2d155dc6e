buf curl --unix-socket /run/kprobed/kprobed.sock --protocol grpc --http2-prior-knowledge \
    -d '{"selection": {"probes": ["kprobes/open"]}, "start": {"last_events": 10, "until_now": true}, "form": "EVENT_FORM_ROWS"}' \
    http://localhost/kprobed.v1.EventService/StreamEvents
