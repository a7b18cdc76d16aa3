#!/bin/sh
# A step before the tests, for any CI system. The service answers every program on this machine as if it ran in vm-1.
# Start your handler with the URL http://127.0.0.1:8169. After its first request, run
# `forewarn maintenance schedule --vm vm-1`. The service's time stands still until `forewarn clock advance 15m`.
# Until a release is published, replace the argument of `pip install` by the path of a checkout.
set -eu

pip install 'forewarn[server]'
forewarn serve --clock virtual --database-url sqlite:// > forewarn.log 2>&1 &
timeout 60 sh -c 'until forewarn vm list 2> /dev/null; do sleep 0.2; done' || { cat forewarn.log; exit 1; }
