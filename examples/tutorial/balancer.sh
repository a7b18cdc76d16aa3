#!/bin/sh -e
# What HAProxy thinks of its servers: name, sessions, state.

curl --silent 'http://10.9.0.1:8404/;csv' | awk -F, '$1 == "counter" && $2 ~ /^app/ { print $2, $18, $5, "sessions" }'
