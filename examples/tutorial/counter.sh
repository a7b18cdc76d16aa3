#!/bin/sh -e
# Starts or stops the counter of the VM in whose folder this runs, as systemctl would on a real one.

pidfile=$PWD/run/counter.pid
case $1 in
  start)
    # A local disk that is new holds nothing: go on from the checkpoint.
    [ -e local/count ] || [ ! -e disk/count ] || cp disk/count local/count
    start-stop-daemon --start --oknodo --quiet --background --make-pidfile --pidfile "$pidfile" --chdir "$PWD" \
      --exec /usr/bin/python3 -- ../counter.py local/count
    until curl --silent --output /dev/null http://127.0.0.1:8080/; do sleep 0.1; done
    ;;
  stop)
    # It finishes what it has begun, and writes its count to local/count.
    start-stop-daemon --stop --oknodo --quiet --retry TERM/30 --pidfile "$pidfile"
    ;;
esac
