#!/bin/sh -e
# Show HAProxy's view of its servers: name, state, number of sessions.

curl --silent 'http://10.9.0.1:8404/;csv' | awk -F, '$1 == "counter" && $2 ~ /^app/ { print $2, $18, $5, "sessions" }'
